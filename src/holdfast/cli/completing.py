"""What the shell offers when Tab is pressed: commands and options as Click knows them, and names out of the store.

The store is asked for a tenth of a second, by a thread that is left behind if it takes longer; whatever goes wrong, the
shell is told nothing. Nothing is made by asking. The embedded file is asked past its engine, which would take longer to
load than to answer.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
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


def script_for(shell: str, root: click.Command, program: str = PROGRAMS[0]) -> str:
    """What makes this shell ask; where the program is not there, nobody wants to read that at a prompt."""
    asked = "$1" if shell == "bash" else program
    return completer(shell, root, program).source().strip().replace(f" {asked})", f" {asked} 2>/dev/null)")


def answer_shell(root: click.Group, instruction: str) -> int:
    """Answer a shell that asks `bash_complete`; to `bash_source`, the script that makes it ask."""
    shell, _, verb = instruction.partition("_")
    if shell not in SHELLS or verb not in ("complete", "source"):
        return 1
    if verb == "source":
        click.echo(script_for(shell, root))
        return 0
    ours = completer(shell, root)
    with suppress(Exception):  # nobody wants to read a traceback at a prompt
        words, incomplete = ours.get_completion_args()
        for item in offers(words, incomplete, ours):
            click.echo(ours.format_completion(item))
    sys.stdout.flush()
    # A thread that still asks must not keep the prompt waiting.
    os._exit(0)


def offers(words: list[str], incomplete: str, shell: ShellComplete) -> list[CompletionItem[str]]:
    """What could stand here, as the shell will put it in the place of what is incomplete."""
    if "--" in words:
        return []  # what follows is a command of somebody else's
    words, incomplete, glued = _unglued(words, incomplete)
    found = _offers(words, incomplete, shell)
    return [CompletionItem(f"{glued}{item.value}", item.type, item.help) for item in found] if glued else found


def _unglued(words: list[str], incomplete: str) -> tuple[list[str], str, str]:
    """The words as if no value were glued to its option, and what has to be put in front of what is offered.

    To bash, the `=` of `--state=dead` is a word of its own, and it keeps what stands before; zsh and fish take all for
    one word, and replace it.
    """
    last = words[-1] if words else ""
    words = [word for before, word in pairwise(["", *words]) if not (word == "=" and before.startswith("--"))]
    if incomplete == "=" and last.startswith("--"):
        return words, "", ""
    option, equals, value = incomplete.partition("=")
    if equals and option.startswith("--"):
        return [*words, option], value, f"{option}="
    return words, incomplete, ""


def _offers(words: list[str], incomplete: str, shell: ShellComplete) -> list[CompletionItem[str]]:
    if states := _states(words, incomplete):
        return [CompletionItem(state) for state in states]
    kind = _kind_of(words, incomplete)
    if kind is not None:
        head, comma, _ = incomplete.rpartition(",")
        names = [f"{head}{comma}{name}" for name in _asked(kind)]
        if fitting := [CompletionItem(name) for name in names if name.startswith(incomplete)]:
            return fitting
    return shell.get_completions(words, incomplete)


def _states(words: list[str], incomplete: str) -> list[str]:
    """The states that could stand here: behind an option that wants them, or in a search."""
    head = ""
    if words[-1:] == ["--where"]:
        head = incomplete[: _last(incomplete, " ")]
        field, colon, _ = incomplete[len(head) :].partition(":")
        if not colon or field.removeprefix("-") not in STATE_FIELDS:
            return []
        head += field + colon
    elif words[-3:-2] == ["--where"] and words[-2] in STATE_FIELDS and words[-1] == ":":
        pass  # bash takes a colon for a word of its own
    elif words[-2:-1] == ["--where"] and words[-1] in STATE_FIELDS and incomplete == ":":
        incomplete = ""
    elif words[-1:] != ["--state"] and words[-1:] != ["--status"]:
        return []
    from holdfast.values import FINAL_STATES, JobState

    head = incomplete[: max(len(head), _last(incomplete, ","))]
    names = [state.value for state in JobState if "purge" not in words or state in FINAL_STATES]
    return [f"{head}{name}" for name in names if f"{head}{name}".startswith(incomplete)]


def _last(text: str, sign: str) -> int:
    """Where what follows the last such sign begins."""
    return text.rfind(sign) + 1


def _kind_of(words: list[str], incomplete: str) -> str | None:
    """Of which kind the names are that could stand here. By the words alone: to load a command takes longer."""
    if words and words[-1] in OPTIONS:
        # To lists, -q is --quiet, and wants nothing.
        return None if words[-1] == "-q" and "list" in words else OPTIONS[words[-1]]
    if incomplete.startswith("-"):
        return None
    said = [word for word in words if not word.startswith("-")]
    return ARGUMENTS.get(" ".join(said[:2])) or ARGUMENTS.get(" ".join(said[:1]))


def _asked(kind: str) -> list[str]:
    """What the store says in time."""
    found: list[str] = []
    names = _store()

    def ask() -> None:
        with suppress(Exception):
            found.extend(names(kind))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_patience_s())
    return list(dict.fromkeys(found))


def _patience_s() -> float:
    try:
        return float(os.environ.get(PATIENCE_VARIABLE, ASKED_FOR_S))
    except ValueError:
        return ASKED_FOR_S


def _store() -> "Callable[[str], Iterable[str]]":
    """Whom to ask for the names of a kind: the configured store, without the application."""
    # Loaded before the time runs: it is the store that may keep us waiting.
    from holdfast.config import find_project, load_settings
    from holdfast.queues.addresses import embedded_file, sqlite_prefix

    with suppress(Exception):
        project = find_project()
        settings = load_settings(project)
        url = settings.url or project.default_url
        path = embedded_file(url)
        if path is None:
            return _server(url, settings.table_prefix)
        asked = sqlite_prefix(url)
        if path.exists():
            from holdfast.queues.engines.sqlite.glance import glance

            return lambda kind: glance(path, settings.table_prefix if asked is None else asked, kind)
    return lambda kind: ()


def _server(url: str, prefix: str) -> "Callable[[str], Iterable[str]]":
    from holdfast.queues.opening import BackendFactory
    from holdfast.queues.signing import Unsigned

    def names(kind: str) -> Iterable[str]:
        engine, _ = BackendFactory(Unsigned(), table_prefix=prefix).open(url)
        said = engine.describe()
        return BY_ENGINE[kind](engine) if said.schema == said.known_schema else ()

    return names


def _queues(engine: "Engine") -> Iterable[str]:
    return sorted(engine.counts())


def _jobs(engine: "Engine") -> Iterable[str]:
    from holdfast.values import JobFilter

    return sorted({job.job for job in engine.find(JobFilter(), limit=LOOKED_AT).jobs})


def _ids(engine: "Engine") -> Iterable[str]:
    from holdfast.values import JobFilter

    return [job.id for job in engine.find(JobFilter(), limit=NEWEST).jobs]


def _dead(engine: "Engine") -> Iterable[str]:
    from holdfast.values import JobFilter, JobState

    return [job.id for job in engine.find(JobFilter(states=(JobState.DEAD,)), limit=NEWEST).jobs]


def _workers(engine: "Engine") -> Iterable[str]:
    from holdfast.state.workers import WorkerRegistry

    return [view.report.id for view in WorkerRegistry(engine.state).all()]


BY_ENGINE: "Final[dict[str, Callable[[Engine], Iterable[str]]]]" = {
    "queues": _queues,
    "jobs": _jobs,
    "ids": _ids,
    "dead": _dead,
    "workers": _workers,
}
STATE_FIELDS: Final = ("state", "status")
# Names of which kind an option wants, and the arguments of a command.
OPTIONS: Final = {"--queue": "queues", "-q": "queues", "--job": "jobs"}
ARGUMENTS: Final = {
    **dict.fromkeys(("show", "cancel", "logs", "wait", "retry", "delete"), "ids"),
    **dict.fromkeys(("dlq show", "dlq retry", "dlq discard"), "dead"),
    **dict.fromkeys(("worker stop", "worker show"), "workers"),
    **dict.fromkeys(("queue show", "queue pause", "queue resume", "queue work", "queue reap", "queue purge"), "queues"),
}
