"""Edges: jobs that wait for other jobs. The decisions are implemented once, on rows that engines provide.

An edge connects a parent with a child, and the child is blocked while one of its edges is open. Whatever finishes,
replays or deletes a parent with edges leaves a *note* in its own commit; `resolve` reads the notes and brings the edges
in line with the states of the parents. So the code that finishes a job does not need to know about dependencies, a
commit changes a bounded number of jobs, and a note survives a crash.

A note is written in a new statement, after the parent has been locked. Otherwise an edge that is committed while that
statement waits for the lock would be missed, and its child would wait forever.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum, auto
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

from holdfast.errors import DefinitionError
from holdfast.queues.contract.slots import JobNumber
from holdfast.values import EdgeOutcome, JobEnvelope, JobState, OnParentFailure

MAX_CHILDREN: Final = 1000
"""The maximum number of edges that one commit changes. The next commit continues."""
PARENTS_AT_ONCE: Final = 100
ROUNDS: Final = 100
"""The maximum number of commits in one `repair`."""

OPEN, MET, CANCELLED = EdgeOutcome


class Turn(NamedTuple):
    """A change that the state of a parent implies for all its edges with this policy and outcome."""

    parent: JobNumber
    on_failure: OnParentFailure
    before: EdgeOutcome
    after: EdgeOutcome


class Edge(NamedTuple):
    """An edge whose outcome changes."""

    parent: JobNumber
    child: JobNumber
    before: EdgeOutcome
    after: EdgeOutcome


class Resolved(NamedTuple):
    """The work of one commit: the number of notes that it read, and of edges that it changed."""

    notes: int
    edges: int


class Change(Enum):
    """A change of a child: a cancelled child is blocked again, or a blocked child is made claimable or cancelled."""

    REOPEN = auto()
    RELEASE = auto()
    CANCEL = auto()


class EdgeRows(ABC):
    """The rows of edges and notes, in one open transaction and at one instant, `now_us`. Arguments are never empty."""

    now_us: int

    @abstractmethod
    def dismiss(self) -> None:
        """Delete the notes on unfinished parents that have cancelled no child. On a server, this is a transaction of
        its own: it locks each parent without waiting, so that no parent can be about to finish, and leaves the notes on
        those that another transaction has locked.
        """

    @abstractmethod
    def parents(self, limit: int) -> Mapping[JobNumber, JobState | None]:
        """Lock the oldest notes, without waiting for those that another transaction has locked, and return the state of
        the parent of each, read in one snapshot; None if its record was deleted. Only parents with something to do are
        returned: finished or deleted ones, and unfinished ones that have cancelled a child.
        """

    @abstractmethod
    def edges(self, turns: Sequence[Turn], limit: int) -> list[Edge]:
        """Up to `limit` edges that one of these turns changes."""

    @abstractmethod
    def lock(self, children: Sequence[JobNumber]) -> Mapping[JobNumber, JobState]:
        """Lock these jobs in the order of their numbers, whatever their states, so that none of them is replayed in the
        meantime. Return the states of those that are blocked, or were cancelled because a parent failed.
        """

    @abstractmethod
    def turn(self, edges: Sequence[Edge]) -> None:
        """Store the new outcome of each of these edges that still has the old one."""

    @abstractmethod
    def outcomes(self, children: Sequence[JobNumber]) -> set[tuple[JobNumber, EdgeOutcome]]:
        """The outcomes of all edges of these children, read in a new statement."""

    @abstractmethod
    def change(self, change: Change, children: Sequence[JobNumber]) -> None:
        """Make these blocked jobs claimable, cancel them with the reason `PARENT_FAILED`, or block these cancelled jobs
        again. For those that are parents themselves, a note is left, unless they became claimable.
        """

    @abstractmethod
    def forget(self, parents: Sequence[JobNumber]) -> None:
        """Delete the notes on these parents that `parents` has locked. On a server, a note stays if its parent is
        locked or its state has changed: whatever replays or deletes it may not have seen an edge that was committed
        since.
        """


def resolve(rows: EdgeRows) -> Resolved:
    """Bring up to `MAX_CHILDREN` edges in line with the states of their parents. A child that is cancelled or blocked
    again may leave a note of its own.
    """
    parents = rows.parents(PARENTS_AT_ONCE)
    if not parents:
        return Resolved(0, 0)
    turns = [turn for parent, state in parents.items() for turn in turns_of(parent, state)]
    edges = rows.edges(turns, MAX_CHILDREN)
    changed = _turn(rows, edges) if edges else ()
    # The note on an unfinished parent may be deleted only while the parent is locked: see `dismiss`. A parent that was
    # itself just changed, as a child of another, has a new note.
    finished = [
        parent for parent, state in parents.items() if (state is None or state.is_final) and parent not in changed
    ]
    if finished and len(edges) < MAX_CHILDREN:
        rows.forget(finished)
    return Resolved(len(parents), len(edges))


def resolve_all(resolve_once: Callable[[], Resolved], limit: int | None = None) -> int:
    """Repeat `resolve_once`, a commit each, while there are notes and fewer than `limit` edges were changed. Returns
    how many edges were changed.
    """
    changed = 0
    for _ in range(ROUNDS):
        notes, edges = resolve_once()
        changed += edges
        if not notes or (limit is not None and changed >= limit):
            break
    return changed


def turns_of(parent: JobNumber, state: JobState | None) -> list[Turn]:
    """The changes that the state of a parent implies. An edge that is met stays met, even if the parent is replayed.
    A replayed parent may complete before all the children that it has cancelled are blocked again. A deleted parent
    counts as failed, and since it cannot be replayed, no child waits for it.
    """
    match state:
        case JobState.COMPLETED:
            # A parent that failed may have been replayed, and have completed before its first note was read.
            return [Turn(parent, policy, before, MET) for policy in OnParentFailure for before in (OPEN, CANCELLED)]
        case JobState.DEAD | JobState.CANCELLED | None:
            turns = [
                Turn(parent, OnParentFailure.CANCEL, OPEN, CANCELLED),
                Turn(parent, OnParentFailure.RUN, OPEN, MET),
            ]
            if state is None:
                turns.append(Turn(parent, OnParentFailure.WAIT, OPEN, CANCELLED))
            return turns
        case _:
            return [Turn(parent, policy, CANCELLED, OPEN) for policy in OnParentFailure]


def _turn(rows: EdgeRows, edges: Sequence[Edge]) -> Collection[JobNumber]:
    """Store the outcomes, then decide about the children. They are locked first, because two parents of a child may
    finish at the same time: the second transaction sees what the first one has stored. Returns the children that may
    have changed.
    """
    states = rows.lock(list(dict.fromkeys(edge.child for edge in edges)))
    rows.turn(edges)
    if not states:
        return ()
    outcomes: dict[JobNumber, set[EdgeOutcome]] = {}
    for child, outcome in rows.outcomes(list(states)):
        outcomes.setdefault(child, set()).add(outcome)
    changes = {child: _changes(state, outcomes.get(child, set())) for child, state in states.items()}
    for change in Change:
        if children := [child for child, needed in changes.items() if change in needed]:
            rows.change(change, children)
    return states.keys()


def _changes(state: JobState, outcomes: Collection[EdgeOutcome]) -> Collection[Change]:
    """The change of a child in this state whose edges have these outcomes."""
    is_cancelled = state is JobState.CANCELLED
    if CANCELLED in outcomes:
        return () if is_cancelled else (Change.CANCEL,)
    changes = (Change.REOPEN,) if is_cancelled else ()
    return changes if OPEN in outcomes else (*changes, Change.RELEASE)


def check_parents(envelopes: Sequence[JobEnvelope]) -> None:
    """Refuse jobs of one call that wait for each other."""
    try:
        TopologicalSorter({one.id: one.after for one in envelopes if one.after}).prepare()
    except CycleError as problem:
        path = " → ".join(reversed(problem.args[1]))
        raise DefinitionError(f"these jobs wait for each other, so none of them could run: {path}") from None


def parents_of(envelopes: Iterable[JobEnvelope]) -> list[str]:
    """The ids of all parents, once each."""
    return list(dict.fromkeys(parent for one in envelopes for parent in one.after))
