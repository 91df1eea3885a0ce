"""What the shell offers when Tab is pressed: commands and options as Click knows them, and names out of the store.

The store is asked for a tenth of a second, by a thread that is left behind if it takes longer; whatever goes wrong, the
shell is told nothing. Nothing is made by asking.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from holdfast.cli import COMPLETING

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

PROGRAMS: Final = ("holdfast", "queuectl")
SHELLS: Final = ("bash", "zsh", "fish")
ASKED_FOR_S: Final = 0.1
PATIENCE_VARIABLE: Final = "HOLDFAST_COMPLETION_WAIT"
NEWEST: Final = 50
LOOKED_AT: Final = 500


def completer(shell: str, root: click.Command, program: str = PROGRAMS[0]) -> ShellComplete:
    """What speaks to this shell."""
    kind = get_completion_class(shell)
    assert kind is not None, shell  # noqa: S101 - one of SHELLS
    return kind(root, {}, program, COMPLETING)


def answer_shell(root: click.Group, instruction: str) -> int:
    """Answer a shell that asks `bash_complete`; to `bash_source`, the script that makes it ask."""
    shell, _, verb = instruction.partition("_")
    if shell not in SHELLS or verb not in ("complete", "source"):
        return 1
    ours = completer(shell, root)
    if verb == "source":
        click.echo(ours.source())
        return 0
    with suppress(Exception):  # nobody wants to read a traceback at a prompt
        words, incomplete = ours.get_completion_args()
        for item in offers(words, incomplete, ours):
            click.echo(ours.format_completion(item))
    sys.stdout.flush()
    # A thread that still asks must not keep the prompt waiting.
    os._exit(0)


def offers(words: list[str], incomplete: str, shell: ShellComplete) -> list[CompletionItem[str]]:
    """What could stand here."""
    if "--" in words:
        return []  # what follows is a command of somebody else's
    find = _names_for(words, incomplete)
    if find is not None:
        head, comma, _ = incomplete.rpartition(",")
        names = [f"{head}{comma}{name}" for name in _asked(find)]
        if fitting := [CompletionItem(name) for name in names if name.startswith(incomplete)]:
            return fitting
    return shell.get_completions(words, incomplete)


def _names_for(words: list[str], incomplete: str) -> "Callable[[Engine], Iterable[str]] | None":
    """Who knows the names that could stand here. By the words alone: to load a command takes longer than to ask."""
    if words and words[-1] in OPTIONS:
        return OPTIONS[words[-1]]
    if incomplete.startswith("-"):
        return None
    said = [word for word in words if not word.startswith("-")]
    return ARGUMENTS.get(" ".join(said[:2])) or ARGUMENTS.get(" ".join(said[:1]))


def _asked(find: "Callable[[Engine], Iterable[str]]") -> list[str]:
    """What the store says in time."""
    found: list[str] = []
    opened = _store()

    def ask() -> None:
        with suppress(Exception):
            engine = opened()
            if engine is not None:
                found.extend(find(engine))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_patience_s())
    return list(dict.fromkeys(found))


def _patience_s() -> float:
    try:
        return float(os.environ.get(PATIENCE_VARIABLE, ASKED_FOR_S))
    except ValueError:
        return ASKED_FOR_S


def _store() -> "Callable[[], Engine | None]":
    """Opens the configured store, if it is there: without the application, which takes longer to load than we have."""
    # Before the time runs: it is the store that may keep us waiting.
    from holdfast.config import find_project, load_settings
    from holdfast.queues.opening import BackendFactory, engine_of, sqlite_path
    from holdfast.queues.signing import Unsigned

    def opened() -> "Engine | None":
        project = find_project()
        settings = load_settings(project)
        url = settings.url or project.default_url
        if engine_of(url) == "sqlite" and not sqlite_path(url).exists():
            return None
        engine, _ = BackendFactory(Unsigned(), table_prefix=settings.table_prefix).open(url)
        said = engine.describe()
        return engine if said.schema == said.known_schema else None

    return opened


def _queues(engine: "Engine") -> Iterable[str]:
    return sorted(engine.counts())


def _jobs(engine: "Engine") -> Iterable[str]:
    from holdfast.values import JobFilter

    return sorted({job.job for job in engine.find(JobFilter(), limit=LOOKED_AT).jobs})


def _ids(engine: "Engine") -> Iterable[str]:
    from holdfast.values import JobFilter

    return [job.id for job in engine.find(JobFilter(), limit=NEWEST).jobs]


def _workers(engine: "Engine") -> Iterable[str]:
    return [view.report.id for view in engine.workers()]


# Whose names an option wants, and the arguments of a command.
OPTIONS: Final = {"--queue": _queues, "-q": _queues, "--job": _jobs}
ARGUMENTS: Final = {
    **dict.fromkeys(("show", "cancel", "logs", "wait", "retry", "delete"), _ids),
    **dict.fromkeys(("dlq show", "dlq retry", "dlq discard"), _ids),
    **dict.fromkeys(("worker stop", "worker show"), _workers),
    **dict.fromkeys(("queue show", "queue pause", "queue resume", "queue work", "queue reap", "queue purge"), _queues),
}
