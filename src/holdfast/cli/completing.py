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
        for item in offers(root, words, incomplete, ours):
            click.echo(ours.format_completion(item))
    sys.stdout.flush()
    # A thread that still asks must not keep the prompt waiting.
    os._exit(0)


def offers(root: click.Group, words: list[str], incomplete: str, shell: ShellComplete) -> list[CompletionItem[str]]:
    """What could stand here."""
    if "--" in words:
        return []
    known = shell.get_completions(words, incomplete)
    find = _names_for(root, words, incomplete)
    if find is None:
        return known
    head, comma, _ = incomplete.rpartition(",")
    found = [f"{head}{comma}{name}" for name in _asked(find)]
    return [CompletionItem(name) for name in found if name.startswith(incomplete)] or known


def _names_for(root: click.Group, words: list[str], incomplete: str) -> "Callable[[Engine], Iterable[str]] | None":
    """Who knows the names that could stand here, by the command and its parameter."""
    command, path = _command(root, words)
    last = words[-1] if words else ""
    for param in command.params:
        if isinstance(param, click.Option) and last in param.opts and not param.is_flag:
            return {"queue": _queues, "queues": _queues, "job": _jobs}.get(param.name or "")
    if incomplete.startswith("-"):
        return None
    for param in command.params:
        if isinstance(param, click.Argument):
            match (param.metavar or "").strip("[].").upper():
                case "ID":
                    return _workers if path[:1] == ["worker"] else _ids
                case "QUEUE" | "Q":
                    return _queues
    return None


def _command(root: click.Group, words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = root
    path: list[str] = []
    for word in words:
        if not isinstance(command, click.Group):
            break
        inner = command.get_command(click.Context(command), word)
        if inner is not None:
            command = inner
            path.append(word)
    return command, path


def _asked(find: "Callable[[Engine], Iterable[str]]") -> list[str]:
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception):
            engine = _engine()
            if engine is not None:
                found.extend(find(engine))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ASKED_FOR_S)
    return list(dict.fromkeys(found))


def _engine() -> "Engine | None":
    """The configured store, if it is there: without the application, which takes longer to load than we have."""
    from holdfast.config import find_project, load_settings
    from holdfast.queues.opening import BackendFactory, engine_of, sqlite_path
    from holdfast.queues.signing import Unsigned

    project = find_project()
    settings = load_settings(project)
    url = settings.url or project.default_url
    if engine_of(url) == "sqlite" and not sqlite_path(url).exists():
        return None
    engine, _ = BackendFactory(Unsigned(), table_prefix=settings.table_prefix).open(url)
    said = engine.describe()
    return engine if said.schema == said.known_schema else None


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
