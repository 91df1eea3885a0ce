"""The command line, `holdfast` and `queuectl`: one file per group of commands, loaded when it is used."""

import atexit
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Where each command lives, and what `--help` says of it without loading it.
COMMANDS: Final = {
    "run": ("holdfast.cli.run:run", "Keep one command as a job, work it here, exit with its code."),
    "enqueue": (
        "holdfast.cli.enqueue.command:enqueue",
        "Add jobs: by name, by JSON, from a file or stdin, or a command.",
    ),
    "worker": ("holdfast.cli.worker.command:worker", "Run jobs; list and stop workers."),
    "list": ("holdfast.cli.jobs:list_jobs", "Show jobs, newest first."),
    "show": ("holdfast.cli.jobs:show", "Show one job with its history."),
    "logs": ("holdfast.cli.logs:logs", "Print what a job has printed."),
    "wait": ("holdfast.cli.wait:wait", "Wait until jobs have ended."),
    "cancel": ("holdfast.cli.cancel:cancel", "Cancel jobs, waiting or running."),
    "retry": ("holdfast.cli.retry:retry", "Give dead or cancelled jobs a new life."),
    "delete": ("holdfast.cli.delete:delete", "Forget jobs that have ended."),
    "status": ("holdfast.cli.status:status", "Show how many jobs are where."),
    "top": ("holdfast.cli.top:top", "Watch queues, jobs and workers in a view that fills the terminal."),
    "queue": ("holdfast.cli.queue:queue", "Look at queues; pause, work, reap and purge them."),
    "dlq": ("holdfast.cli.dlq:dlq", "Look at dead letters; run them again or discard them."),
    "config": ("holdfast.cli.config:config", "Read, change and check settings."),
    "backend": ("holdfast.cli.backend:backend", "Show what an engine is and can do."),
    "migrate": ("holdfast.cli.migrate:migrate", "Create the schema or bring it up to date."),
    "health": ("holdfast.cli.health:health", "Say whether all is well, for monitors."),
    "doctor": ("holdfast.cli.doctor:doctor", "Look for what is wrong, and say what to do."),
    "generate": ("holdfast.cli.generate:generate", "Write what runs workers: systemd, Docker, Compose."),
    "completion": ("holdfast.cli.completion:completion", "Let the shell complete commands and names."),
    "schema": ("holdfast.cli.schemas:schema", "Print the JSON Schema of what a command prints."),
    "help": ("holdfast.cli.topics:help_on", "Explain a topic: states, search, exit-codes, output and more."),
    "version": ("holdfast.cli.version:version", "Show the version."),
}

# Options before the command are noted below this name, for the command that they concern.
GLOBALS: Final = "holdfast.global"

# A shell that wants to complete a command line sets it.
COMPLETING: Final = "_HOLDFAST_COMPLETE"

EXAMPLES: Final = """\
\b
Examples:
  holdfast run -- echo kept
  holdfast enqueue '{"id": "job1", "command": "sleep 2"}'
  holdfast worker start --allow sleep
  holdfast list --state pending
"""


class LazyGroup(click.Group):
    """A group whose commands are imported only when they run, so that `--help` and completion are fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else " holdfast --help lists them."
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else with_globals(command), rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[Any]]":
        from click.shell_completion import CompletionItem

        options = click.Command.shell_complete(self, ctx, incomplete)
        fitting = [item for item in COMMANDS.items() if item[0].startswith(incomplete)]
        return [*(CompletionItem(name, help=summary) for name, (_, summary) in fitting), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _color_option(*, hidden: bool = False) -> click.Option:
    return click.Option(
        ["--color"],
        type=click.Choice(["auto", "always", "never"]),
        hidden=hidden,
        expose_value=False,
        callback=_note_color,
        help="Colour: where a terminal is, unless NO_COLOR or FORCE_COLOR says otherwise; always; never.",
    )


def _note_color(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None or ctx.parent is None:
        ctx.color = wants_color(value or "auto", os.environ)


def _global_option(name: str, words: str, *, hidden: bool = False) -> click.Option:
    """A flag that may stand before the command as well as behind it."""
    return click.Option(
        [words], is_flag=True, hidden=hidden, expose_value=False, callback=_note_flag(name), help=_FLAGS[words][1]
    )


def _note_flag(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def note(ctx: click.Context, param: click.Parameter, given: bool) -> None:
        ctx.meta[name] = given or ctx.meta.get(name, False)

    return note


# Where each is noted, and what it means.
_FLAGS: Final = {
    "--json": (f"{GLOBALS}.as_json", "Print JSON."),
    "--utc": ("holdfast.utc", "Show times in UTC, not in local time."),
    "--no-input": ("holdfast.no_input", "Never ask; refuse what would have to be asked."),
}


def _refuse_json(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given or ctx.meta.get(_FLAGS["--json"][0]):
        raise click.UsageError(f"{ctx.info_name} prints text only; leave out --json", ctx)


def with_globals(command: click.Command) -> click.Command:
    """A copy of the command that accepts, unseen, the global options which it does not have itself."""
    from copy import copy

    copied = copy(command)
    if isinstance(copied, click.Group):
        copied.commands = {name: with_globals(inner) for name, inner in copied.commands.items()}
        return copied
    # Click keeps the help option it made first: for a command that was looked at by itself, that has no -h.
    vars(copied)["_help_option"] = None
    taken = {word for param in command.params for word in param.opts}
    flags = [_global_option(name, words, hidden=True) for words, (name, _) in _FLAGS.items() if words not in taken]
    if "--json" not in taken:
        flags[0].callback = _refuse_json
    copied.params = [*command.params, *flags, _color_option(hidden=True)]
    return copied


@click.group(
    cls=LazyGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(["--url"], metavar="URL", help="Where the jobs are: a URL, or the name of a backend."),
        *(_global_option(name, words) for words, (name, _) in _FLAGS.items()),
        _color_option(),
    ],
)
@click.version_option(__version__, message="holdfast %(version)s")
@click.pass_context
def cli(ctx: click.Context, url: str | None) -> None:
    """Holdfast keeps background jobs until they are done.

    Options that stand here are understood behind the command, too.
    """
    ctx.meta[f"{GLOBALS}.url"] = url


def wants_color(choice: str, environment: Mapping[str, str]) -> bool | None:
    """Whether output is to be coloured; None leaves it to whether somebody looks at it."""
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return False if environment.get("TERM") == "dumb" else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # a sign the terminal lacks shall not end the command
    # At its end Python looks through everything once more for what nobody needs. That takes a fifth of `--help`.
    atexit.register(gc.freeze)
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(given))


def _run(arguments: list[str]) -> int:
    try:
        answer: Any = cli.main(args=arguments, prog_name="holdfast", complete_var=COMPLETING, standalone_mode=False)
    except Exception as problem:
        from holdfast.cli.failing import report

        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
        return report(problem, as_json=_speaks_json(ours))
    return answer if isinstance(answer, int) else 0


def _speaks_json(words: list[str]) -> bool:
    forms = [after for word, after in pairwise(words) if word in ("-o", "--output")]
    forms += [word.removeprefix("--output=").removeprefix("-o") for word in words if word.startswith("-")]
    return "--json" in words or "--jsonl" in words or "json" in forms or "jsonl" in forms
