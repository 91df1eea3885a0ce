"""Choosing workers: by a prefix of their id, or all that run on this host."""

import socket
from collections.abc import Sequence
from typing import Final

import click

from holdfast.cli.failing import NOT_FOUND, REFUSED
from holdfast.cli.output import note
from holdfast.cli.selecting import confirm
from holdfast.plaintext import plain
from holdfast.state.workers import queues_of
from holdfast.units import counted
from holdfast.values import WorkerState, WorkerView

SHORTEST_ID: Final = 8


class NoSuchWorker(click.ClickException):
    """No worker has that id."""

    exit_code = NOT_FOUND


class WhichWorker(click.ClickException):
    """Several workers match."""

    exit_code = REFUSED


def named(given: str, known: Sequence[WorkerView]) -> WorkerView:
    """The one worker whose id starts with `given`."""
    found = [view for view in known if view.report.id.startswith(given)] if given else []
    exact = [view for view in found if view.report.id == given]
    match exact or found:
        case [view]:
            return view
        case []:
            raise NoSuchWorker(f"there is no worker '{plain(given)}'; see  holdfast worker list")
        case several:
            which = f"'{plain(given)}' matches {len(several)} workers; pass more of the id:"
            raise WhichWorker(f"{which}\n{_candidates(several, known)}")


def everywhere(known: Sequence[WorkerView]) -> list[WorkerView]:
    """All running workers, on any host."""
    return [view for view in known if not is_lost(view)]


def on_this_host(known: Sequence[WorkerView], *, yes: bool) -> list[WorkerView]:
    """All running workers on this host. If others run on other hosts, the user confirms that those keep running."""
    running, host = everywhere(known), socket.gethostname()
    here = [view for view in running if view.report.host == host]
    elsewhere = [view for view in running if view.report.host != host]
    if not running:
        lost = "; lost workers cannot be stopped" if known else ""
        raise NoSuchWorker(f"no worker is running{lost}; see  holdfast worker list")
    if not here:
        which = f"no worker is running on this host ({host}); name one on another host, or pass --all:"
        raise WhichWorker(f"{which}\n{_candidates(elsewhere, known)}")
    if elsewhere:
        hosts = plain(", ".join(sorted({view.report.host for view in elsewhere})))
        note(
            f"{counted(len(elsewhere), 'worker')} on other hosts ({hosts}) will not be stopped; --all stops all workers"
        )
        confirm(f"stop {counted(len(here), 'worker')} on this host ({host}) only", yes=yes)
    return here


def short_id(view: WorkerView, known: Sequence[WorkerView]) -> str:
    """The shortest unique prefix of the worker's id, at least eight characters."""
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


def served_queues(workers: Sequence[WorkerView]) -> set[str]:
    """The queues that live workers process."""
    return {queue for view in workers if view.state is WorkerState.LIVE for queue in queues_of(view)}


def is_lost(view: WorkerView) -> bool:
    return view.state is WorkerState.LOST
