"""The command line, `holdfast` and `queuectl`: one file per group of commands, imported when it is used."""

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

# The commands as `--help` groups them: where each one is, and its summary, which is shown without loading it.
SECTIONS: Final = {
    "Jobs": {
        "enqueue": (
            "holdfast.cli.enqueue.command:enqueue",
            "Enqueue jobs by name, as JSON, from a file or stdin, or as commands.",
        ),
        "run": ("holdfast.cli.run:run", "Run one command as a durable job and exit with its code."),
        "list": ("holdfast.cli.jobs:list_jobs", "List jobs, newest first."),
        "show": ("holdfast.cli.jobs:show", "Show one job and its history."),
        "graph": (
            "holdfast.cli.jobs:graph",
            "Show the jobs that a job depends on, and those that depend on it, as a tree.",
        ),
        "logs": ("holdfast.cli.logs:logs", "Print a job's output."),
        "wait": ("holdfast.cli.wait:wait", "Wait until jobs finish."),
        "cancel": ("holdfast.cli.cancel:cancel", "Cancel waiting or running jobs."),
        "retry": ("holdfast.cli.retry:retry", "Retry dead or cancelled jobs."),
        "delete": ("holdfast.cli.delete:delete", "Delete finished jobs."),
        "dlq": ("holdfast.cli.dlq:dlq", "List, retry and discard dead letters."),
        "cronjob": ("holdfast.cli.cronjob.command:cronjob", "List, run and change schedules."),
    },
    "Workers": {
        "worker": ("holdfast.cli.worker.command:worker", "Start, list and stop workers."),
        "queue": ("holdfast.cli.queue:queue", "List, pause, resume and purge queues."),
        "lock": ("holdfast.cli.lock:lock", "List and show the keys that jobs hold or wait for."),
        "breaker": ("holdfast.cli.breaker:breaker", "List, show, reset and trip circuit breakers."),
    },
    "Operations": {
        "status": ("holdfast.cli.status:status", "Show the number of jobs by queue and state."),
        "top": ("holdfast.cli.top:top", "Monitor queues, jobs and workers in a full-screen view."),
        "health": ("holdfast.cli.health:health", "Check whether everything is working, for monitoring."),
        "doctor": ("holdfast.cli.doctor:doctor", "Diagnose problems and suggest fixes."),
    },
    "Set-up": {
        "config": ("holdfast.cli.config:config", "Show, change and check settings."),
        "migrate": ("holdfast.cli.migrate:migrate", "Create or upgrade the database schema."),
        "backend": ("holdfast.cli.backend:backend", "Show the engine and its capabilities."),
        "generate": (
            "holdfast.cli.generate:generate",
            "Generate deployment files for workers: systemd, Docker, Compose.",
        ),
        "completion": ("holdfast.cli.completion:completion", "Set up shell completion."),
        "schema": ("holdfast.cli.schemas:schema", "Print the JSON Schemas of --json output and settings."),
        "help": ("holdfast.cli.topics:help_on", "Explain a command, job states, searching or exit codes."),
        "version": ("holdfast.cli.version:version", "Print the version."),
    },
}
COMMANDS: Final = {name: command for section in SECTIONS.values() for name, command in section.items()}

# Options given before the command are stored in the context under this prefix, for the command to read.
GLOBALS: Final = "holdfast.global"

# The number of new objects after which Python collects garbage; its own default is 700.
GC_THRESHOLD: Final = 20_000

# The variable that a shell sets to request completions.
COMPLETING: Final = "_HOLDFAST_COMPLETE"

EXAMPLES: Final = """\
\b
Examples:
  holdfast run -- echo hello
  holdfast enqueue '{"id": "job1", "command": "sleep 2"}'
  holdfast worker start --allow sleep
  holdfast list --state pending
"""


class OrderedGroup(click.Group):
    """A group whose help lists the commands as they were defined, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


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
            from holdfast.spelling import closest

            near = closest(args[0], COMMANDS)
            hint = f"Did you mean '{near}'?" if near else f"{ctx.command_path} --help lists the commands."
            ctx.fail(f"No such command '{args[0]}'. {hint}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else with_globals(command), rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[Any]]":
        from click.shell_completion import CompletionItem

        options = click.Command.shell_complete(self, ctx, incomplete)
        fitting = [item for item in COMMANDS.items() if item[0].startswith(incomplete)]
        return [*(CompletionItem(name, help=summary) for name, (_, summary) in fitting), *options]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in commands.items()])


def _color_option(*, hidden: bool = False) -> click.Option:
    return click.Option(
        ["--color"],
        type=click.Choice(["auto", "always", "never"]),
        hidden=hidden,
        expose_value=False,
        callback=_note_color,
        help="Whether to use colour; default: auto, which respects NO_COLOR and FORCE_COLOR.",
    )


def _note_color(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None or ctx.parent is None:
        ctx.color = wants_color(value or "auto", os.environ)


def _project_option(*, hidden: bool = False) -> click.Option:
    return click.Option(
        ["--project"],
        type=click.Path(exists=True, file_okay=False),
        metavar="DIR",
        hidden=hidden,
        expose_value=False,
        is_eager=True,  # before any option whose default comes from the settings
        callback=_use_project,
        help="Project directory, used without checking its owner; default: HOLDFAST_PROJECT, or the nearest project "
        "in or above the current directory.",
    )


def _use_project(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    from holdfast.config.trust import PROJECT_VARIABLE

    # A variable also reaches the processes that the command starts.
    before = os.environ.get(PROJECT_VARIABLE)
    os.environ[PROJECT_VARIABLE] = os.path.abspath(value)

    def restore() -> None:
        del os.environ[PROJECT_VARIABLE]
        if before is not None:
            os.environ[PROJECT_VARIABLE] = before

    if not ctx.resilient_parsing:  # completion closes the context before it asks for names
        ctx.call_on_close(restore)


def _global_option(name: str, words: str, *, hidden: bool = False) -> click.Option:
    """A flag that can be given before or after the command."""
    return click.Option(
        [words], is_flag=True, hidden=hidden, expose_value=False, callback=_note_flag(name), help=_FLAGS[words][1]
    )


def _note_flag(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def note(ctx: click.Context, param: click.Parameter, given: bool) -> None:
        ctx.meta[name] = given or ctx.meta.get(name, False)

    return note


# Where the context stores each flag, and its help.
_FLAGS: Final = {
    "--json": (f"{GLOBALS}.as_json", "Print JSON."),
    "--utc": ("holdfast.utc", "Show times in UTC instead of local time."),
    "--no-input": ("holdfast.no_input", "Never prompt; fail if a prompt would be needed."),
}


def _refuse_json(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given or ctx.meta.get(_FLAGS["--json"][0]):
        raise click.UsageError(f"{ctx.info_name} prints text only; leave out --json", ctx)


def with_globals(command: click.Command) -> click.Command:
    """A copy of the command that also accepts the global options, which its help does not list."""
    from copy import copy

    copied = copy(command)
    if isinstance(copied, click.Group):
        copied.commands = {name: with_globals(inner) for name, inner in copied.commands.items()}
        return copied
    # Click caches the help option. One that was created outside of the group has no -h.
    vars(copied)["_help_option"] = None
    taken = {word for param in command.params for word in param.opts}
    flags = [_global_option(name, words, hidden=True) for words, (name, _) in _FLAGS.items() if words not in taken]
    if "--json" not in taken:
        flags[0].callback = _refuse_json
    copied.params = [*command.params, *flags, _project_option(hidden=True), _color_option(hidden=True)]
    return copied


@click.group(
    cls=LazyGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(["--url"], metavar="URL", help="Backend to use: a URL, or the name of a configured backend."),
        _project_option(),
        *(_global_option(name, words) for words, (name, _) in _FLAGS.items()),
        _color_option(),
    ],
)
@click.version_option(__version__, message="holdfast %(version)s")
@click.pass_context
def cli(ctx: click.Context, url: str | None) -> None:
    """Holdfast keeps background jobs until they are done.

    The options below also work after the command. A DURATION is a number of seconds, or a value such as 90s, 15m, 2h
    or 3d.
    """
    ctx.meta[f"{GLOBALS}.url"] = url


def wants_color(choice: str, environment: Mapping[str, str]) -> bool | None:
    """Whether to colour the output. None means only on a terminal."""
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return False if environment.get("TERM") == "dumb" else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # a character that the terminal lacks must not stop the command
    # Loading modules creates many objects and no garbage. Looking for garbage would take a twentieth of the time of
    # `--help`, and Python's final collection at exit a fifth.
    gc.set_threshold(GC_THRESHOLD)
    atexit.register(gc.freeze)
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(given))


def _run(arguments: list[str]) -> int:
    try:
        answer: Any = cli.main(args=arguments, prog_name=_program(), complete_var=COMPLETING, standalone_mode=False)
    except Exception as problem:
        from holdfast.cli.failing import report

        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
        return report(problem, ours, as_json=_speaks_json(ours))
    return answer if isinstance(answer, int) else 0


def _program() -> str:
    """The name that the user typed, for usage lines and hints."""
    return "queuectl" if os.path.basename(sys.argv[0]) == "queuectl" else "holdfast"


def _speaks_json(words: list[str]) -> bool:
    forms = [after for word, after in pairwise(words) if word in ("-o", "--output")]
    forms += [word.removeprefix("--output=").removeprefix("-o") for word in words if word.startswith("-")]
    return "--json" in words or "--jsonl" in words or "json" in forms or "jsonl" in forms
