"""Conversion between rows and values, the same for all engines with tables.

A row may hold anything: a failing disk, a partial restore or another program can have written it. `repaired` replaces
values of the wrong type, so that one damaged record never hides the others.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from holdfast.clock import MICROSECONDS, duration_us, from_us, to_us
from holdfast.queues.contract import (
    LEASE_EXPIRED,
    Crashes,
    abandoned_run,
    effect_of,
    history_of,
    kept_output,
    kept_progress,
    message_fields,
)
from holdfast.queues.engines.tables.states import CODES, OUTCOMES, POLICIES, PROCESSING, STATES, WAITING
from holdfast.values import (
    Ack,
    AttemptRecord,
    AttemptView,
    DeadReason,
    EdgeOutcome,
    ErrorInfo,
    JobEnvelope,
    JobFilter,
    JobHistory,
    JobLease,
    JobState,
    JobView,
    LeaseState,
    LiveOutput,
    OnParentFailure,
    Outcome,
    Page,
    Progress,
    QueuePause,
    QueueWait,
    Relative,
    Relatives,
    ReplayAnswer,
    Settlement,
    SlotHolder,
    SlotView,
    SlotWaiter,
)

Row: TypeAlias = tuple[Any, ...]

NEVER: Final = 2**63 - 1
# Counters stop one above this, where every engine can still store them.
MANY: Final = 2**31 - 2
# No lease is renewed for longer than this, about thirty years.
LONG_US: Final = 10**15


def dues(envelopes: Sequence[JobEnvelope], now: int) -> Sequence[int]:
    """The due times of jobs accepted together: each a microsecond after the one before, to preserve their order."""
    at_once = range(now - len(envelopes) + 1, now + 1)
    if all(one.delay <= 0 and one.run_at is None for one in envelopes):
        return at_once
    return [_due(one, now, immediate) for one, immediate in zip(envelopes, at_once, strict=True)]


def _due(envelope: JobEnvelope, now: int, immediate: int) -> int:
    if envelope.delay > 0:
        return now + duration_us(envelope.delay)
    if envelope.run_at is not None:
        due = to_us(envelope.run_at)
        return due if due > now else immediate
    return immediate


def alone_if_suspect(candidates: Sequence[Row]) -> list[int]:
    """Of candidates (number, crashes), the first ones up to the first suspect; a suspect that is first comes alone."""
    chosen: list[int] = []
    for seq, crashes in candidates:
        if crashes and chosen:
            break
        chosen.append(seq)
        if crashes:
            break
    return chosen


def leased(rows: Sequence[Row], queue: str, owner_token: str, asked_at: float) -> list[JobLease]:
    """Leases from rows: number, id, message, duration, time of the claim, deliveries, attempts, crashes, whether expiry
    is ignored, and the remaining time of the lease.
    """
    leases: list[JobLease] = []
    stamped_us, claimed_at = 0, from_us(0)
    for seq, job_id, wire, lease_us, claimed_us, deliveries, attempts, crashes, ignore_expiry, left_us in rows:
        if claimed_us != stamped_us:  # a batch was stamped at one moment
            stamped_us, claimed_at = claimed_us, from_us(claimed_us)
        leases.append(
            JobLease(
                id=job_id,
                queue=queue,
                wire=wire,
                token=seq,
                owner_token=owner_token,
                ttl_s=lease_us / MICROSECONDS,
                claimed_at=claimed_at,
                fence_at=asked_at + left_us / MICROSECONDS,
                delivery=deliveries,
                attempts=attempts,
                crashes=crashes,
                ignore_expiry=bool(ignore_expiry),
            )
        )
    return leases


def lease_state(cancel: bool | None) -> LeaseState:
    """The state of a lease, given whether a cancellation was requested; None means that the lease is lost."""
    if cancel is None:
        return LeaseState.LOST
    return LeaseState.CANCEL_REQUESTED if cancel else LeaseState.HELD


def end_key(settlement: Settlement) -> Row:
    """What a settlement is recognised by if it is repeated: number, delivery, claim, verdict."""
    lease = settlement.lease
    return (lease.token, lease.delivery, bytes.fromhex(lease.owner_token), effect_of(settlement).verdict)


def end_row(settlement: Settlement) -> Row:
    """The row of a delivery that was settled: its `end_key`, and the record of its attempt."""
    lease, record = settlement.lease, settlement.record
    head = (lease.token, lease.delivery, bytes.fromhex(lease.owner_token), effect_of(settlement).verdict)
    return (*head, *[None] * 9) if record is None else head + attempt_columns(record)


def reaped_row(row: Row, now_us: int) -> Row:
    """The same for a delivery that ended without a verdict, from a row: number, delivery, when it was claimed."""
    seq, delivery, claimed_us = row
    return (seq, delivery, None, None, *attempt_columns(abandoned_run(claimed_us, now_us)))


def ack_token(settlement: Settlement) -> str | None:
    """The claim of an acknowledgement; None for all other settlements."""
    return settlement.lease.owner_token if isinstance(settlement, Ack) else None


def effect_query(settlement: Settlement, crash_limit: int) -> dict[str, Any]:
    """The parameters of the statements that end a delivery or release its job."""
    lease, record, effect = settlement.lease, settlement.record, effect_of(settlement)
    return {
        **_claim_of(lease),
        "state": CODES[effect.state],
        "attempt": int(effect.adds_attempt),
        "error": record.error.line if record and record.error else None,
        "crash": effect.crashes is Crashes.ADD,
        "keeps_crashes": effect.crashes is Crashes.KEEP,
        "crash_limit": crash_limit,
        "delay": duration_us(effect.delay),
        "dead_reason": effect.dead_reason,
        "cancel_reason": effect.cancel_reason,
        "expired": effect.expired,
    }


def session_query(session: bytes) -> dict[str, Any]:
    """The range of the tokens that a session can claim with."""
    return {"first": session + bytes(8), "last": session + b"\xff" * 8}


def reap_query(queue: str | None, crash_limit: int) -> dict[str, Any]:
    """The parameters of the statements that reap: each job is released, and its delivery counts as a crash."""
    return {
        "queue": queue,
        "state": WAITING,
        "attempt": 0,
        "error": LEASE_EXPIRED.line,
        "crash": True,
        "keeps_crashes": False,
        "crash_limit": crash_limit,
        "delay": 0,
    }


def conditions(where: JobFilter, after: str | None, spelled: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """The conditions of a search in an engine's SQL, and their parameters. `after` is the end of the previous page."""
    chosen: list[str] = []
    query: dict[str, Any] = {}
    for name, condition in spelled.items():
        value = getattr(where, name, None)
        if value is None or value == ():
            continue
        chosen.append(condition)
        query[name] = to_us(value) if isinstance(value, datetime) else value
    if after is not None:
        finished, seq = (int(part) for part in after.split("."))
        chosen.append(spelled["after_finished" if is_by_finish(where) else "after_seq"])
        query |= {"after_finished": finished, "after_seq": seq}
    return chosen, query


def counted(rows: Iterable[Row]) -> dict[str, dict[JobState, int]]:
    """Numbers of jobs from rows: queue, stored state, whether they are due later, number."""
    numbers: dict[str, dict[JobState, int]] = {}
    for queue, code, is_later, number in rows:
        if number:
            state = JobState.SCHEDULED if is_later else STATES.get(code, JobState.BLOCKED)
            states = numbers.setdefault(text(queue), {})
            states[state] = states.get(state, 0) + number
    return numbers


def oldest_waits(rows: Iterable[Row], now: int) -> dict[str, QueueWait]:
    """The longest wait of each queue, from rows: queue, when a job is due (anything but a number is left out)."""
    oldest: dict[str, int] = {}
    for queue, due_at in rows:
        if isinstance(due_at, int) and due_at <= now:
            name = text(queue)
            oldest[name] = min(oldest.get(name, now), due_at)
    return {
        queue: QueueWait(since=from_us(due_at), seconds=(now - due_at) / MICROSECONDS)
        for queue, due_at in oldest.items()
    }


def is_by_finish(where: JobFilter) -> bool:
    """Whether a search is ordered by when jobs finished: all states it asks for are final."""
    return bool(where.states) and all(state.is_final for state in where.states)


def progress_report(lease: JobLease, progress: Progress) -> dict[str, Any]:
    """The parameters of the statement that stores a job's progress."""
    kept = kept_progress(progress, 0)
    return {**_claim_of(lease), "done": kept.done, "total": kept.total, "message": kept.message}


def output_report(lease: JobLease, output: LiveOutput) -> dict[str, Any]:
    """The parameters of the statement that stores a job's latest output."""
    kept = kept_output(output)
    return {**_claim_of(lease), "start": kept.start, "text": kept.text}


def _claim_of(lease: JobLease) -> dict[str, Any]:
    return {"seq": lease.token, "token": bytes.fromhex(lease.owner_token)}


def attempt_columns(record: AttemptRecord) -> Row:
    """An attempt as columns: outcome, start, end, error (type, message, traceback), output, result, note."""
    error = record.error
    problem = (error.type, error.message, error.traceback) if error else (None, None, None)
    times = (record.outcome.value, record.started_us, record.ended_us)
    return (*times, *problem, record.output or None, record.result, record.note or None)


_MAYBE_INT: Final = (int, type(None))
_MAYBE_TEXT: Final = (str, type(None))
_MAYBE_NUMBER: Final = (float, int, type(None))
_VIEW: Final = (
    *(int, str, str, int, str, bytes, int, int, int, int, int, _MAYBE_INT, _MAYBE_INT),
    *(_MAYBE_TEXT, _MAYBE_TEXT, _MAYBE_TEXT, _MAYBE_TEXT, _MAYBE_NUMBER, _MAYBE_NUMBER, _MAYBE_TEXT, _MAYBE_INT),
    *(_MAYBE_TEXT, _MAYBE_INT),
)
_ATTEMPT: Final = (
    *(int, str, int, int, _MAYBE_TEXT, _MAYBE_TEXT, _MAYBE_TEXT, _MAYBE_TEXT, (bytes, type(None)), _MAYBE_TEXT),
)
_OUTPUT: Final = (int, int, str)
_PAUSE: Final = (str, str, int)
_RELATIVE: Final = (str, int, int, int, int)


def repaired(row: Row, kinds: Sequence[type | tuple[type, ...]]) -> Row:
    """The row with each value of the wrong type replaced; the same row if there is none."""
    if all(map(isinstance, row, kinds)):
        return row
    return tuple(one if isinstance(one, kind) else _repaired(one, kind) for one, kind in zip(row, kinds, strict=True))


def _repaired(value: Any, kind: type | tuple[type, ...]) -> Any:
    wanted = kind[0] if isinstance(kind, tuple) else kind
    if wanted is str:
        return text(value)
    if wanted is bytes:
        return b""
    if isinstance(value, float) and math.isfinite(value):
        return int(value)
    return None if isinstance(kind, tuple) else 0


def text(stored: Any) -> str:
    """A stored value as text, whatever its type."""
    if isinstance(stored, bytes):
        return stored.decode(errors="replace")
    return str(stored) if isinstance(stored, str | int | float) else ""


def view(row: Row, now: int) -> JobView:
    """A job as people see it, from a row: number, id, queue, state, job, message, attempts, crashes, deliveries, when
    it was accepted, is due, finished, its lease expires, dead reason, cancel reason, cancellation request, last error,
    progress (done, total, message, time), and for a blocked job its slot and the time at which it was blocked.
    """
    stored, row = row, repaired(row, _VIEW)
    state, due_at, finished_at, lease_until, blocked_since = row[3], row[10], row[11], row[12], row[22]
    return JobView(
        id=row[1],
        queue=row[2],
        state=JobState.SCHEDULED if state == WAITING and due_at > now else STATES.get(state, JobState.BLOCKED),
        job=row[4],
        attempts=row[6],
        crashes=row[7],
        deliveries=row[8],
        accepted_at=from_us(row[9]),
        due_at=from_us(due_at),
        finished_at=None if finished_at is None else from_us(finished_at),
        lease_until=from_us(lease_until) if state == PROCESSING and lease_until is not None else None,
        dead_reason=DeadReason(row[13]) if row[13] in list(DeadReason) else None,
        cancel_reason=row[14],
        cancel_requested=row[15] is not None,
        last_error=row[16],
        progress=_progress(row[17:21]),
        blocked_on=row[21],
        blocked_since=None if blocked_since is None else from_us(blocked_since),
        damaged=row is not stored or state not in STATES,
        **message_fields(row[5]),
    )


def page(rows: Sequence[Row], now: int, *, limit: int, by_finish: bool) -> Page:
    """A page from rows as `view` takes them: one row more than the limit means that there is a next page."""
    shown = rows[:limit]
    cursors = tuple(f"{row[11] if by_finish else 0}.{row[0]}" for row in shown)
    following = cursors[-1] if len(rows) > limit and cursors else None
    return Page(jobs=tuple(view(row, now) for row in shown), next=following, cursors=cursors)


def slot_views(holders: Iterable[Row], waiting: Iterable[Row], waiters: Iterable[Row]) -> list[SlotView]:
    """Slots, ordered by name, from rows of their holders (slot, id, queue, since, fence), of the number of jobs that
    wait for each (slot, number), and of the first of these (slot, id, queue, since). Each is in the order to show.
    """
    held: dict[str, list[SlotHolder]] = {}
    for slot, job_id, queue, since, fence in holders:
        holder = SlotHolder(job_id=text(job_id), queue=text(queue), since=from_us(since), fence=fence)
        held.setdefault(text(slot), []).append(holder)
    first: dict[str, list[SlotWaiter]] = {}
    for slot, job_id, queue, since in waiters:
        first.setdefault(text(slot), []).append(
            SlotWaiter(job_id=text(job_id), queue=text(queue), since=from_us(since))
        )
    numbers = {text(slot): number for slot, number in waiting}
    return [
        SlotView(
            name=name,
            holders=tuple(held.get(name, ())),
            waiting=numbers.get(name, 0),
            waiters=tuple(first.get(name, ())),
        )
        for name in sorted({*held, *numbers})
    ]


def relatives(parents: Iterable[Row], children: Iterable[Row], numbers: Sequence[Row]) -> Relatives:
    """The relatives of a job, from rows of its parents and of its children (id, stored state, whether they are due
    later, policy, outcome), and a row with the numbers of open parents and of children, unless the job is unknown.
    """
    [(open_parents, child_count)] = numbers or [(0, 0)]
    return Relatives(
        parents=tuple(map(_relative, parents)),
        children=tuple(map(_relative, children)),
        open_parents=open_parents,
        child_count=child_count,
    )


def _relative(row: Row) -> Relative:
    job_id, code, is_later, policy, outcome = repaired(row, _RELATIVE)
    return Relative(
        job_id=job_id,
        state=JobState.SCHEDULED if code == WAITING and is_later else STATES.get(code, JobState.BLOCKED),
        on_failure=POLICIES.get(policy, OnParentFailure.CANCEL),
        outcome=OUTCOMES.get(outcome, EdgeOutcome.OPEN),
    )


def not_replayed(state: JobState | None) -> ReplayAnswer:
    """Why a job in this state was not replayed; None is an unknown job."""
    match state:
        case None:
            return ReplayAnswer.UNKNOWN
        case JobState.DEAD | JobState.CANCELLED:
            return ReplayAnswer.EXPIRED
        case _:
            return ReplayAnswer.NOT_FINAL


def _progress(row: Row) -> Progress | None:
    done, total, message, at = row
    if done is None or not math.isfinite(done):
        return None
    is_known = total is not None and math.isfinite(total)
    return Progress(done=done, total=total if is_known else None, message=message or "", at=from_us(at or 0))


_OUTCOMES: Final = frozenset(Outcome)


def attempt(row: Row) -> AttemptView:
    """An attempt from a row: delivery, and the columns of `attempt_columns`."""
    sound = repaired(row, _ATTEMPT)
    delivery, outcome, started_us, ended_us, error_type, message, traceback, output, result, note = sound
    error = None if error_type is None else ErrorInfo(type=error_type, message=message or "", traceback=traceback or "")
    if sound is not row or outcome not in _OUTCOMES:
        note = f"this record is damaged; its outcome was '{outcome}'"
    return AttemptView(
        delivery=delivery,
        record=AttemptRecord(
            outcome=Outcome(outcome) if outcome in _OUTCOMES else Outcome.INTERRUPTED,
            started_us=started_us,
            ended_us=ended_us,
            error=error,
            output=output or "",
            result=result,
            note=note or "",
        ),
    )


def history(job: JobView, attempts: Iterable[Row], outputs: Iterable[Row], wire: Any) -> JobHistory:
    """A job with its attempts and its message, and with live output from rows: delivery, start, text."""
    printed = (repaired(row, _OUTPUT) for row in outputs)
    live = {delivery: LiveOutput(text=text, start=max(0, start)) for delivery, start, text in printed}
    return history_of(job, map(attempt, attempts), live, wire if isinstance(wire, bytes) else b"")


def pauses(rows: Iterable[Row]) -> tuple[QueuePause, ...]:
    """The pauses from rows: queue, reason, since when."""
    each = (repaired(row, _PAUSE) for row in rows)
    return tuple(QueuePause(queue=queue, reason=reason, since=from_us(since)) for queue, reason, since in each)
