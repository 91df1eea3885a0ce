"""Which workers are meant: by the beginnings of their ids, or because there is only one."""

from collections.abc import Sequence
from typing import Final

import click

from holdfast.cli.failing import NOT_FOUND, REFUSED
from holdfast.plaintext import plain
from holdfast.values import WorkerState, WorkerView

SHORTEST_ID: Final = 8


class NoSuchWorker(click.ClickException):
    """Nobody is known by that id."""

    exit_code = NOT_FOUND


class WhichWorker(click.ClickException):
    """Several could be meant."""

    exit_code = REFUSED


def named(given: str, known: Sequence[WorkerView]) -> WorkerView:
    """The one worker whose id begins like that."""
    found = [view for view in known if view.report.id.startswith(given)] if given else []
    exact = [view for view in found if view.report.id == given]
    match exact or found:
        case [view]:
            return view
        case []:
            raise NoSuchWorker(f"no worker '{plain(given)}' is known here; see  holdfast worker list")
        case several:
            which = f"'{plain(given)}' may be any of {len(several)} workers; write more of it:"
            raise WhichWorker(f"{which}\n{_candidates(several, known)}")


def unnamed(known: Sequence[WorkerView], *, everybody: bool) -> list[WorkerView]:
    running = [view for view in known if not is_lost(view)]
    if everybody or len(running) == 1:
        return running
    if running:
        raise WhichWorker(f"several workers are running; name some, or say --all:\n{_candidates(running, known)}")
    lost = "; lost ones have nothing to stop" if known else ""
    raise NoSuchWorker(f"no worker is running{lost}; see  holdfast worker list")


def short_id(view: WorkerView, known: Sequence[WorkerView]) -> str:
    """The beginning of an id that no other one shares."""
    whole = view.report.id
    others = [other.report.id for other in known if other.report.id != whole]
    for length in range(min(SHORTEST_ID, len(whole)), len(whole)):
        if not any(other.startswith(whole[:length]) for other in others):
            return plain(whole[:length])
    return plain(whole)


def _candidates(workers: Sequence[WorkerView], known: Sequence[WorkerView]) -> str:
    return "\n".join(
        plain(f"  {short_id(view, known)}  {view.state}, pid {view.report.pid} on {view.report.host}")
        for view in workers
    )


def is_lost(view: WorkerView) -> bool:
    return view.state is WorkerState.LOST
