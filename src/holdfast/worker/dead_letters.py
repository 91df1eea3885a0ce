"""Copies of dead letters, for the application's handler `dead-letter`.

`DeadLetterCopies` adds a copy to the settlement that dead-letters a job. `UnsettledDeaths` copies the jobs that an
engine has dead-lettered by itself, which have no settlement.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.clock import from_us, to_us
from holdfast.codec import JobMessage
from holdfast.dead_letters import DEAD_LETTER_KEY, DeadLetter, DeadLetterQueues, copy_id, copy_of
from holdfast.errors import BackendError, HoldfastError, IdConflict, StateConflict
from holdfast.queues.contract import Engine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Signer
from holdfast.values import (
    Abandon,
    Cell,
    DeadReason,
    ErrorInfo,
    JobEnvelope,
    JobFilter,
    JobState,
    JobView,
    Put,
    Settlement,
)

log = logging.getLogger("holdfast.worker")

KIND: Final = "dead-letter-copies"
_ALL: Final = "all"
# Jobs may become visible in a different order from the one in which they died, so those that died this long before the
# last one are checked again. Their copies are recognised by their ids, which every engine knows for an hour.
LOOK_BACK: Final = timedelta(minutes=10)
IDS_KNOWN: Final = timedelta(minutes=45)
_BATCH: Final = 50
_UNSETTLED: Final = (DeadReason.CRASH_LOOP, DeadReason.UNDECODABLE)
_PAGE: Final = 100


class DeadLetterCopies:
    """Creates the copies. A job's own queue for dead letters, which is signed, overrides that of the settings."""

    def __init__(self, envelopes: EnvelopeFactory, signer: Signer, queues: DeadLetterQueues) -> None:
        self._envelopes = envelopes
        self._signer = signer
        self._queues = queues
        self.is_used = bool(queues)
        """Whether the settings name a queue, or a job has named its own."""

    def carried_by(self, settlement: Settlement, message: JobMessage | None) -> Settlement:
        """The settlement; if it dead-letters the job, with a copy of the job to enqueue in the same commit."""
        if message is not None and message.dead_letter_to is not None:
            self.is_used = True
        if not isinstance(settlement, Abandon):
            return settlement
        lease, record = settlement.lease, settlement.record
        letter = DeadLetter(
            id=lease.id,
            queue=lease.queue,
            reason=settlement.reason,
            error=None if record is None else record.error,
            attempts=lease.attempts + settlement.reason.follows_a_run,
            dead_at=lease.claimed_at if record is None else record.ended_at,
        )
        copy = self._copy(letter, message, lease.delivery)
        return settlement if copy is None else msgspec.structs.replace(settlement, enqueues=(copy,))

    def of_unsettled(self, job: JobView, wire: bytes, error: ErrorInfo | None) -> JobEnvelope | None:
        """The copy of a job that the engine has dead-lettered, with its message as stored; None if it needs none."""
        letter = DeadLetter(
            id=job.id,
            queue=job.queue,
            reason=job.dead_reason or DeadReason.UNDECODABLE,
            error=error,
            attempts=job.attempts,
            dead_at=job.finished_at or job.due_at,
        )
        return self._copy(letter, self._verified(job, wire), job.deliveries)

    def may_copy(self, job: JobView) -> bool:
        """Whether a copy of this job may be needed, as far as its unverified message shows."""
        return job.job != DEAD_LETTER_KEY and (job.dead_letter_to or self._queues.of(job.queue)) is not None

    def _verified(self, job: JobView, wire: bytes) -> JobMessage | None:
        try:
            message = self._signer.open(wire)
        except HoldfastError:
            return None
        return message if (message.identifier, message.queue) == (job.id, job.queue) else None

    def _copy(self, letter: DeadLetter, message: JobMessage | None, delivery: int) -> JobEnvelope | None:
        variants: list[Callable[[], DeadLetter]] = [partial(_bare, letter)]
        if message is None:
            # Nothing unverified is signed. If the queue receives copies itself, this probably was one.
            to = self._queues.of(letter.queue)
            is_copy = to == letter.queue
        else:
            to = message.dead_letter_to or self._queues.of(letter.queue)
            is_copy = message.job == DEAD_LETTER_KEY
            variants = [partial(_complete, letter, message), partial(_shortened, letter, message), *variants]
        if to is None or is_copy:
            return None
        failure: Exception | None = None
        for variant in variants:
            try:
                return self._envelopes.make(copy_of(variant(), to), id=copy_id(str(letter.id), delivery))
            except (HoldfastError, msgspec.MsgspecError, ValueError, RecursionError) as problem:
                failure = problem
        # The job is dead anyway.
        log.error("job %s: its dead letter could not be copied to queue '%s': %s", letter.id, to, failure)
        return None


def without_copy(settlement: Settlement, problem: IdConflict) -> Settlement:
    """The settlement of a job whose copy has the id of another job: one that had the same id in an earlier life. The
    job must not run again because of its copy.
    """
    log.error("job %s: its dead letter was not copied: %s", settlement.lease.id, problem)
    return msgspec.structs.replace(settlement, enqueues=())


def _complete(letter: DeadLetter, message: JobMessage) -> DeadLetter:
    return msgspec.structs.replace(
        letter,
        job=message.job,
        payload=message.payload,
        trace_id=message.trace_id,
        tags=message.tags,
        meta=msgspec.json.decode(message.meta, type=dict[str, Any]),
    )


def _shortened(letter: DeadLetter, message: JobMessage) -> DeadLetter:
    """The letter without what may be too large or too deeply nested for a copy."""
    error = letter.error and ErrorInfo(type=letter.error.type, message=letter.error.message)
    labels = {"trace_id": message.trace_id, "tags": message.tags}
    return msgspec.structs.replace(letter, job=message.job, error=error, partial=True, **labels)


def _bare(letter: DeadLetter) -> DeadLetter:
    """The letter with nothing from the message."""
    return msgspec.structs.replace(letter, error=None, partial=True)


class UnsettledDeaths:
    """Copies jobs that died without a settlement: the reaper dead-lettered them, or their records are damaged.

    A cell records the time of the last of these deaths. It advances in the commit that enqueues the copies, unless
    another worker has changed it. A worker that is killed before that commit leaves the jobs to the others.
    """

    def __init__(self, engine: Engine, copies: DeadLetterCopies) -> None:
        self._engine = engine
        self._copies = copies
        self._started_at = from_us(engine.clock.now_us())
        self._has_checked = False
        self._known: frozenset[str] = frozenset()

    def check(self) -> None:
        """Copy such jobs, if any job can have a copy. The first check also finds what a killed worker left behind."""
        if self._copies.is_used or not self._has_checked:
            self.copy()
            self._has_checked = True

    def reaped(self, dead: Sequence[JobView]) -> None:
        """Copy the jobs that were dead-lettered by the reaper just now."""
        if self._copies.is_used or any(map(self._copies.may_copy, dead)):
            self.copy()

    def copy(self) -> None:
        """Enqueue a copy of each such job that does not have one."""
        while self._copy_some():
            pass

    def _copy_some(self) -> bool:
        """Copy the first of these jobs, up to a limit. Returns whether to continue."""
        cell = self._cell()
        dead = {copy_id(job.id, job.deliveries): job for job in self._dead_since(self._since(cell))}
        new = [id for id in dead if id not in self._known]
        some, is_last = new[:_BATCH], len(new) <= _BATCH
        copies = [copy for id in some if (copy := self._copy_of(dead[id])) is not None]
        self._copies.is_used = self._copies.is_used or bool(copies)
        if self._copies.is_used or cell is not None:
            until = _died_at(dead[some[-1]]) if some else self._time_of(cell)
            # Others may have died at the same time.
            mark = self._mark(until if is_last else until - timedelta(microseconds=1), cell)
            if copies and not self._store(copies, mark):
                return True
            if not copies and (some or cell is None):
                self._engine.state.write([mark])
        self._known = self._known.intersection(dead).union(some)
        return not is_last

    def _since(self, cell: Cell | None) -> datetime:
        """The time since which jobs may have died without being copied."""
        now, last = from_us(self._engine.clock.now_us()), self._time_of(cell)
        # After that, the ids of copies may be unknown, and no transaction is that slow.
        if cell is not None and now - last > IDS_KNOWN:
            return last + timedelta(microseconds=1)
        return min(last, now) - LOOK_BACK  # if the clock was set back, jobs die before the recorded time

    def _dead_since(self, since: datetime) -> list[JobView]:
        """The jobs that died without a settlement, oldest first."""
        dead: list[JobView] = []
        for reason in _UNSETTLED:
            where = JobFilter(states=(JobState.DEAD,), dead_reason=reason, finished_from=since)
            after: str | None = None
            while True:
                page = self._engine.find(where, limit=_PAGE, after=after)
                dead += page.jobs
                if (after := page.next) is None:
                    break
        return sorted(dead, key=_died_at)

    def _copy_of(self, job: JobView) -> JobEnvelope | None:
        if not self._copies.may_copy(job):
            return None
        try:
            history = self._engine.get(job.id)
            if history is None or (history.job.state, history.job.deliveries) != (JobState.DEAD, job.deliveries):
                return None  # replayed or deleted since
            errors = [one.record.error for one in history.attempts]
            return self._copies.of_unsettled(history.job, history.wire, errors[-1] if errors else None)
        except BackendError:
            raise
        except Exception:
            log.exception("job %s: its dead letter could not be copied; continuing with the next one", job.id)
            return None

    def _store(self, copies: Sequence[JobEnvelope], mark: Put) -> bool:
        """Enqueue the copies, unless another worker has changed the cell."""
        try:
            self._engine.accept(copies, writes=[mark])
        except StateConflict:
            return False
        except IdConflict:
            # A worker with other settings has copied one of them.
            for copy in copies:
                with suppress(IdConflict):
                    self._engine.accept([copy])
            self._engine.state.write([mark])
        return True

    def _cell(self) -> Cell | None:
        return next(iter(self._engine.state.read(KIND, [_ALL])), None)

    def _mark(self, until: datetime, cell: Cell | None) -> Put:
        """The write that advances the cell to this time, unless another worker has changed it."""
        latest = until if cell is None else max(until, self._time_of(cell))
        return Put(kind=KIND, key=_ALL, value=b"%d" % to_us(latest), if_version=0 if cell is None else cell.version)

    def _time_of(self, cell: Cell | None) -> datetime:
        """The time in the cell. If there is none, jobs that died before this worker was started are not copied."""
        is_time = cell is not None and cell.value.isdigit()
        return from_us(int(cell.value)) if cell is not None and is_time else self._started_at


def _died_at(job: JobView) -> datetime:
    return job.finished_at or job.due_at
