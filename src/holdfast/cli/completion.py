"""Shell completion: `completion show`, and the names that arguments and options offer through `shell_complete=`.

Completion imports none of the project's code and opens only an embedded database. An attacker may have written what it
reads there, and shells insert it without quoting, so only well-formed names are offered.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli import COMPLETING
from holdfast.cli.words import is_well_formed

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

Complete = Callable[[click.Context, click.Parameter, str], list[str]]

# The line that enables completion, and the file it goes into.
SHELLS: Final = {
    "bash": ('eval "$(holdfast completion show bash)"', "~/.bashrc"),
    "zsh": ('eval "$(holdfast completion show zsh)"', "~/.zshrc, after compinit"),
    "fish": ("holdfast completion show fish | source", "~/.config/fish/config.fish"),
}
PROGRAMS: Final = ("holdfast", "queuectl")
NEWEST: Final = 100
GIVE_UP_AFTER_S: Final = 2.0


def _shell(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    shell = value or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        problem = f"$SHELL is {shell!r}" if shell else "$SHELL is not set"
        raise click.BadParameter(f"{problem}; name one of {', '.join(SHELLS)}", ctx, param)
    return shell


@click.group()
def completion() -> None:
    """Set up shell completion."""


@completion.command()
@click.argument("shell", required=False, type=click.Choice(list(SHELLS)), callback=_shell)
@click.pass_context
def show(ctx: click.Context, shell: str) -> None:
    """Print the completion script. SHELL is bash, zsh or fish; default: your shell.

    \b
    Examples:
      eval "$(holdfast completion show bash)"
    """
    from click.shell_completion import get_completion_class

    from holdfast.cli.output import write, write_lines

    line, file = SHELLS[shell]
    write(f"# Add this line to {file}:  {line}")
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - one of SHELLS
    for program in PROGRAMS:
        script = kind(ctx.find_root().command, {}, program, COMPLETING).source().strip()
        asked = "$1" if shell == "bash" else program
        # A program that is missing, or fails, must not print at the prompt.
        write_lines(script.replace(f" {asked})", f" {asked} 2>/dev/null)").splitlines())


def matching(names: Iterable[str], incomplete: str) -> list[str]:
    """The well-formed names that complete the last part of a list such as `mail,de`."""
    head, comma, last = incomplete.rpartition(",")
    fitting = [name for name in dict.fromkeys(names) if name.startswith(last) and is_well_formed(name)]
    return [f"{head}{comma}{name}" for name in fitting]


def _read(names: "Callable[[Engine, click.Context], Iterable[str]]") -> Complete:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        import signal

        # The prompt must not wait for a locked database. Nothing but a signal can interrupt SQLite's wait.
        signal.setitimer(signal.ITIMER_REAL, GIVE_UP_AFTER_S)
        with suppress(Exception):
            engine = _embedded()
            if engine is not None:
                return matching(names(engine, ctx), incomplete)
        return []

    return complete


def _embedded() -> "Engine | None":
    """The project's embedded engine, opened to read. None if there is none, or if its schema has another version."""

    from holdfast.deployment import Deployment
    from holdfast.queues.addresses import embedded_file
    from holdfast.queues.opening import Mode

    deployment = Deployment.configured()
    file = embedded_file(deployment.url())
    if file is None or not file.is_file():
        return None
    engine = deployment.open(mode=Mode.READ).engine
    info = engine.describe()
    return engine if info.schema == info.known_schema else None


def _job_ids(engine: "Engine", ctx: click.Context) -> Iterable[str]:
    from holdfast.values import JobFilter, JobState

    states = (JobState.DEAD,) if ctx.parent is not None and ctx.parent.info_name == "dlq" else ()
    return [job.id for job in engine.find(JobFilter(states=states), limit=NEWEST).jobs]


def _worker_ids(engine: "Engine", ctx: click.Context) -> Iterable[str]:
    from holdfast.state.workers import WorkerRegistry

    return [view.report.id for view in WorkerRegistry(engine.state).all()]


def _handlers(engine: "Engine", ctx: click.Context) -> Iterable[str]:
    from holdfast.state.workers import WorkerRegistry

    return sorted({name for view in WorkerRegistry(engine.state).all() for name in view.report.handlers})


def _queues(engine: "Engine", ctx: click.Context) -> Iterable[str]:
    """The queues of the newest jobs and of workers, and paused queues. Counting all jobs could take seconds."""
    from holdfast.state.workers import WorkerRegistry
    from holdfast.values import JobFilter

    served = {name.partition(":")[0] for view in WorkerRegistry(engine.state).all() for name in view.report.queues}
    recent = {job.queue for job in engine.find(JobFilter(), limit=NEWEST).jobs}
    return sorted(served | recent | {pause.queue for pause in engine.pauses()})


def _breakers(engine: "Engine", ctx: click.Context) -> Iterable[str]:
    from holdfast.state.breakers import Breakers

    return [view.name for view in Breakers(engine.state).all()]


def _schedules(engine: "Engine", ctx: click.Context) -> Iterable[str]:
    from holdfast.state.schedules import ScheduleCells

    return sorted(ScheduleCells(engine.state).all())


def complete_app(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The application in the settings."""
    from holdfast.cli.options import configured_app

    with suppress(Exception):
        return matching([configured_app() or ""], incomplete)
    return []


complete_job_ids: Final = _read(_job_ids)
complete_worker_ids: Final = _read(_worker_ids)
complete_handlers: Final = _read(_handlers)
complete_queues: Final = _read(_queues)
complete_breakers: Final = _read(_breakers)
complete_schedules: Final = _read(_schedules)
