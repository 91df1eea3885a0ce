"""`holdfast completion`: let the shell complete commands, options and names."""

import os
from pathlib import Path
from typing import Final

import click

from holdfast.cli.completing import PROGRAMS, SHELLS, script_for
from holdfast.cli.documents import Document
from holdfast.cli.options import json_option
from holdfast.cli.output import glyph, print_json, say
from holdfast.cli.selecting import dry_run_option
from holdfast.errors import ConfigError

_BLOCK_BEGINS: Final = "# >>> holdfast completion >>>"
_BLOCK_ENDS: Final = "# <<< holdfast completion <<<"


def _shell(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """The shell that was named, else the user's own."""
    shell = value or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        said = f"the shell here is {shell!r}" if shell else "$SHELL does not say which shell you use"
        raise click.BadParameter(f"{said}; name one of {', '.join(SHELLS)}", ctx, param)
    return shell


class ScriptDocument(Document, frozen=True, kw_only=True, tag="holdfast.completion/1"):
    """What `completion show --json` prints."""

    shell: str
    script: str


class InstalledDocument(Document, frozen=True, kw_only=True, tag="holdfast.completion.install/1"):
    """What `completion install --json` prints: the files that were written, or with `--dry-run` would be."""

    shell: str
    files: tuple[str, ...]
    written: bool


_argument = click.argument("shell", required=False, type=click.Choice(SHELLS), callback=_shell)


@click.group()
def completion() -> None:
    """Let the shell complete commands, options and names."""


@completion.command()
@_argument
@click.pass_context
@json_option
def show(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the script for SHELL (bash, zsh or fish; your own if not said).

    \b
    Examples:
      source <(holdfast completion show bash)
    """
    script = _script(ctx, shell)
    if as_json:
        print_json(ScriptDocument(shell=shell, script=script))
    else:
        click.echo(script)


@completion.command()
@_argument
@click.pass_context
@dry_run_option
@json_option
def install(ctx: click.Context, shell: str, dry_run: bool, as_json: bool) -> None:
    """Install it for SHELL (bash, zsh or fish; your own if not said), for shells started from now on.

    The script goes where the shell looks for completions, into your home; zsh, which looks nowhere there, is told in
    ~/.zshrc. Installing it again changes nothing but what is out of date.

    \b
    Examples:
      holdfast completion install
    """
    from holdfast.config.writing import replace_file

    texts = _texts(ctx, shell)
    for path, text in texts.items() if not dry_run else ():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text, private=False)
    if as_json:
        print_json(InstalledDocument(shell=shell, files=tuple(map(str, texts)), written=not dry_run))
        return
    for path in texts:
        click.echo(f"would write {path}" if dry_run else f"{glyph('✓', '*')} {path}")
    if dry_run:
        say("nothing was written: --dry-run")
        return
    say(f"start a new {shell}, and press Tab")


def _script(ctx: click.Context, shell: str) -> str:
    """For both names of the program: each is asked under its own, with the variable they share."""
    root = ctx.find_root().command
    return "\n".join(script_for(shell, root, program) for program in PROGRAMS)


def _texts(ctx: click.Context, shell: str) -> dict[Path, str]:
    """What has to be in which files."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    root = ctx.find_root().command
    scripts = {name: f"{script_for(shell, root, name)}\n" for name in PROGRAMS}
    match shell:
        case "bash":
            # bash-completion loads the file that has the command's name.
            home = data / "bash-completion" / "completions"
            return {home / name: script for name, script in scripts.items()}
        case "fish":
            home = settings / "fish" / "completions"
            return {home / f"{name}.fish": script for name, script in scripts.items()}
        case _:
            script = data / "holdfast" / "completion.zsh"
            startup = Path(os.environ.get("ZDOTDIR") or Path.home()) / ".zshrc"
            line = f'[ -r "{script}" ] && source "{script}"'
            return {script: f"{_script(ctx, shell)}\n", startup: _with_block(startup, line)}


def _with_block(path: Path, line: str) -> str:
    """What is in the file, with our lines in it once."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before, begins, rest = text.partition(_BLOCK_BEGINS)
    _, ends, after = rest.partition(_BLOCK_ENDS)
    if begins and not ends:
        raise ConfigError(
            f"{path} has the line '{_BLOCK_BEGINS}' without '{_BLOCK_ENDS}' behind it, so that nobody knows where the "
            "lines of Holdfast end: remove what is left of them, then run this again"
        )
    if not begins and before and not before.endswith("\n"):
        before += "\n"
    # Completions of zsh work only behind compinit.
    return f"{before}{_BLOCK_BEGINS}\nautoload -Uz compinit && compinit\n{line}\n{_BLOCK_ENDS}{after or chr(10)}"
