"""Settling: the effect of each verdict, which only the holder of an unexpired lease can give."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from holdfast.clock import to_us
from holdfast.queues.contract import new_owner_token
from holdfast.testing.lab import LEASE_S, Lab
from holdfast.values import (
    OUTPUT_LIMIT,
    RESULT_LIMIT,
    Abandon,
    Ack,
    AttemptRecord,
    CancelJob,
    DeadReason,
    ErrorInfo,
    JobLease,
    JobState,
    JobView,
    Nack,
    Outcome,
    Release,
    Settlement,
)

BOOM = ErrorInfo(type="ValueError", message="boom: Zoë 🧷", traceback="Traceback …\nValueError: boom")


VERDICTS: dict[str, Callable[[JobLease], Settlement]] = {
    "ack": lambda lease: Ack(lease=lease),
    "nack": lambda lease: Nack(lease=lease, delay=999),
    "release": lambda lease: Release(lease=lease, delay=999),
    "crash": lambda lease: Release(lease=lease, delay=999, crashed=True),
    "abandon": lambda lease: Abandon(lease=lease, reason=DeadReason.FAILED),
    "cancel": lambda lease: CancelJob(lease=lease, reason="no longer wanted"),
    "expire": lambda lease: CancelJob(lease=lease, expired=True),
}


class VerdictLaws:
    """The effect of each verdict on the record."""

    def test_an_ack_completes_the_job(self, lab: Lab) -> None:
        view = self._end(lab, lambda lease: lab.engine.ack(lease, lab.record(result=b'{"n":1}', output="done\n")))
        assert (view.state, view.attempts, view.crashes) == (JobState.COMPLETED, 0, 0)
        self._is_finished(lab, view)
        [attempt] = lab.history("a").attempts
        assert (attempt.delivery, attempt.record.outcome) == (1, Outcome.SUCCEEDED)
        assert (attempt.record.result, attempt.record.output) == (b'{"n":1}', "done\n")

    def test_a_nack_costs_an_attempt_and_waits_for_its_retry(self, lab: Lab) -> None:
        record = lab.record(Outcome.FAILED, error=BOOM)
        view = self._end(lab, lambda lease: lab.engine.nack(lease, delay=30, record=record))
        assert (view.state, view.attempts, view.crashes) == (JobState.FAILED, 1, 0)
        self._waits(lab, view, 30)
        assert view.last_error == BOOM.line

    def test_a_nack_without_delay_is_due_at_once_and_still_failed(self, lab: Lab) -> None:
        view = self._end(lab, lambda lease: lab.engine.nack(lease))
        assert (view.state, view.attempts) == (JobState.FAILED, 1)
        self._waits(lab, view, 0)
        assert lab.take("a").attempts == 1

    def test_a_failed_job_stays_failed_until_it_is_claimed(self, lab: Lab) -> None:
        self._end(lab, lambda lease: lab.engine.nack(lease, delay=30))
        lab.advance(60)
        assert lab.view("a").state is JobState.FAILED
        lab.take("a")
        assert lab.view("a").state is JobState.PROCESSING

    def test_a_release_costs_no_attempt(self, lab: Lab) -> None:
        view = self._end(lab, lambda lease: lab.engine.release(lease, record=lab.record(Outcome.INTERRUPTED)))
        assert (view.state, view.attempts, view.crashes) == (JobState.PENDING, 0, 0)
        self._waits(lab, view, 0)
        assert lab.outcomes("a") == [Outcome.INTERRUPTED]
        assert lab.take("a").attempts == 0

    def test_a_release_with_a_delay_is_scheduled(self, lab: Lab) -> None:
        view = self._end(lab, lambda lease: lab.engine.release(lease, delay=30, record=lab.record(Outcome.SNOOZED)))
        assert (view.state, view.attempts, view.crashes) == (JobState.SCHEDULED, 0, 0)
        self._waits(lab, view, 30)

    def test_a_release_marked_crashed_counts_a_crash_and_no_attempt(self, lab: Lab) -> None:
        record = lab.record(Outcome.CRASHED)
        view = self._end(
            lab, lambda lease: lab.engine.settle([Release(lease=lease, delay=5, crashed=True, record=record)])[0]
        )
        assert (view.state, view.attempts, view.crashes) == (JobState.SCHEDULED, 0, 1)
        self._waits(lab, view, 5)

    def test_an_abandoned_job_is_dead_with_its_reason(self, lab: Lab) -> None:
        record = lab.record(Outcome.FAILED, error=BOOM, output="last words")
        view = self._end(lab, lambda lease: lab.engine.abandon(lease, DeadReason.FAILED, record))
        assert (view.state, view.attempts, view.crashes) == (JobState.DEAD, 1, 0)
        assert (view.dead_reason, view.last_error) == (DeadReason.FAILED, BOOM.line)
        self._is_finished(lab, view)
        [attempt] = lab.history("a").attempts
        assert attempt.record == record

    def test_only_reasons_that_follow_a_run_cost_an_attempt(self, lab: Lab) -> None:
        for reason in DeadReason:
            lab.put(reason)
            assert lab.engine.abandon(lab.take(reason), reason)
            view = lab.view(reason)
            ran = reason in (DeadReason.FAILED, DeadReason.TIMEOUT, DeadReason.NO_RETRY)
            assert (view.state, view.dead_reason, view.attempts) == (JobState.DEAD, reason, int(ran))

    def test_a_cancelled_job_has_a_reason(self, lab: Lab) -> None:
        record = lab.record(Outcome.CANCELLED)
        view = self._end(
            lab, lambda lease: lab.engine.settle([CancelJob(lease=lease, reason="superseded", record=record)])[0]
        )
        assert (view.state, view.attempts, view.crashes) == (JobState.CANCELLED, 0, 0)
        assert (view.cancel_reason, view.dead_reason) == ("superseded", None)
        self._is_finished(lab, view)

    def test_an_expired_job_is_cancelled_as_expired(self, lab: Lab) -> None:
        record = lab.record(Outcome.EXPIRED)
        view = self._end(lab, lambda lease: lab.engine.settle([CancelJob(lease=lease, expired=True, record=record)])[0])
        assert (view.state, view.attempts, view.cancel_reason) == (JobState.CANCELLED, 0, "expired")
        self._is_finished(lab, view)

    def _end(self, lab: Lab, settle: Callable[[JobLease], bool]) -> JobView:
        lab.put("a")
        lease = lab.take("a")
        lab.advance(1)
        assert settle(lease) is True
        return lab.view("a")

    def _is_finished(self, lab: Lab, view: JobView) -> None:
        assert view.lease_until is None
        assert view.finished_at is not None
        assert abs(view.finished_at - lab.now()) <= timedelta(seconds=lab.grain_s)
        assert lab.claim() == []

    def _waits(self, lab: Lab, view: JobView, delay: float) -> None:
        assert view.lease_until is None
        assert view.finished_at is None
        late_s = (view.due_at - lab.now()).total_seconds() - delay
        assert -lab.grain_s <= late_s <= lab.engine.capabilities.delay_resolution_s

    def test_attempts_count_failed_runs_only(self, lab: Lab) -> None:
        lab.put("a")
        for attempts in range(4):
            lease = lab.take("a")
            assert lease.attempts == attempts
            assert lab.engine.release(lease)
            lab.let_crash("a")
            lease = lab.take("a")
            assert lab.engine.renew(lease) is not None
            assert lab.engine.nack(lease)
        assert lab.view("a").attempts == 4

    def test_a_verdict_resets_the_crashes(self, lab: Lab) -> None:
        for name in ("ack", "nack", "release", "abandon", "cancel"):
            lab.put(name)
            lab.let_crash(name)
            lease = lab.take(name)
            assert lease.crashes == 1
            assert lab.engine.settle([VERDICTS[name](lease)]) == [True]
            assert lab.view(name).crashes == 0, name

    def test_a_job_that_was_never_started_retains_its_crashes(self, lab: Lab) -> None:
        lab.put("rejected")
        lab.let_crash("rejected")
        assert lab.engine.abandon(lab.take("rejected"), DeadReason.BAD_SIGNATURE)
        lab.put("expired")
        lab.let_crash("expired")
        assert lab.engine.settle([CancelJob(lease=lab.take("expired"), expired=True)]) == [True]
        assert (lab.view("rejected").crashes, lab.view("expired").crashes) == (1, 1)

    def test_a_settlement_needs_no_record(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.ack(lab.take("a"))
        assert lab.view("a").state is JobState.COMPLETED

    def test_each_job_of_a_large_batch_gets_its_own_attempt(self, lab: Lab) -> None:
        """Several claims and verdicts in one call: some with a result, some repeated, some forged."""
        lab.put(*(f"job{number:03}" for number in range(330)))
        claimed = [*lab.claim(130), *lab.claim(200)]
        assert [lease.id for lease in claimed] == [f"job{number:03}" for number in range(330)]
        start = to_us(datetime(2026, 1, 1, tzinfo=UTC))
        settlements: list[Settlement] = []
        for number, lease in enumerate(claimed):
            record = AttemptRecord(
                outcome=Outcome.SUCCEEDED,
                started_us=start + number,
                ended_us=start + 2 * number,
                result=b"7" if number % 50 == 49 else None,
            )
            settlements.append(Ack(lease=lease, record=record))
        settlements[77] = Nack(lease=claimed[77], delay=1, record=lab.record(Outcome.FAILED, error=BOOM))
        settlements[99] = Ack(lease=replace(claimed[99], owner_token=new_owner_token()))
        answers = lab.engine.settle([*settlements, *settlements[:120]])
        expected = [number != 99 for number in range(330)]
        assert answers == expected + expected[:120]
        assert (lab.view("job077").state, lab.view("job099").state) == (JobState.FAILED, JobState.PROCESSING)
        for number, settlement in enumerate(settlements):
            attempts = lab.history(f"job{number:03}").attempts
            assert [attempt.record for attempt in attempts] == ([] if number == 99 else [settlement.record])

    def test_the_history_has_every_attempt_in_order(self, lab: Lab) -> None:
        lab.put("a")
        records = [
            AttemptRecord(
                outcome=outcome,
                started_us=to_us(datetime(2026, 1, 1, 0, 0, second, 123456, tzinfo=UTC)),
                ended_us=to_us(datetime(2026, 1, 1, 0, 0, second, 654321, tzinfo=UTC)),
                error=error,
                output=output,
                note=note,
            )
            for second, outcome, error, output, note in (
                (1, Outcome.FAILED, BOOM, "Zoë 🧷 \x00\n", ""),
                (2, Outcome.SNOOZED, None, "", "again later"),
                (3, Outcome.TIMEOUT, ErrorInfo(type="JobTimeout", message=""), "x" * OUTPUT_LIMIT, ""),
            )
        ]
        assert lab.engine.nack(lab.take("a"), record=records[0])
        assert lab.engine.release(lab.take("a"), record=records[1])
        assert lab.engine.nack(lab.take("a"), record=records[2])
        last = replace(records[1], outcome=Outcome.SUCCEEDED, result=bytes(range(256)) * (RESULT_LIMIT // 256))
        assert lab.engine.ack(lab.take("a"), last)
        attempts = lab.history("a").attempts
        assert [attempt.delivery for attempt in attempts] == [1, 2, 3, 4]
        assert [attempt.record for attempt in attempts] == [*records, last]

    def test_the_last_error_stays_visible_while_the_job_is_retried(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.nack(lab.take("a"), record=lab.record(Outcome.FAILED, error=BOOM))
        lease = lab.take("a")
        assert lab.view("a").last_error == BOOM.line
        assert lab.engine.release(lease, record=lab.record(Outcome.INTERRUPTED))
        assert lab.view("a").last_error == BOOM.line
        worse = ErrorInfo(type="OSError", message="worse")
        assert lab.engine.abandon(lab.take("a"), DeadReason.FAILED, lab.record(Outcome.FAILED, error=worse))
        assert lab.view("a").last_error == worse.line

    def test_a_completed_job_has_no_last_error(self, lab: Lab) -> None:
        success = lab.record(Outcome.SUCCEEDED)
        for id, record in (("plain", success), ("telling", replace(success, result=b"1", output="done"))):
            lab.put(id)
            assert lab.engine.nack(lab.take(id), record=lab.record(Outcome.FAILED, error=BOOM))
            assert lab.engine.ack(lab.take(id), record)
            assert lab.view(id).last_error is None


class HolderLaws:
    """A stale worker cannot change anything, and repeating a call is safe."""

    def test_settling_nothing_changes_nothing(self, lab: Lab) -> None:
        lab.put("a")
        with lab.unchanged():
            assert lab.engine.settle([]) == []

    def test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped(self, lab: Lab) -> None:
        lab.put("a")
        stale = lab.take("a")
        lab.advance(LEASE_S)
        self._cannot_settle(lab, stale)

    def test_a_lease_can_settle_until_its_last_moment(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.advance(LEASE_S - lab.grain_s)
        assert lab.engine.ack(lease)

    def test_a_reaped_lease_cannot_settle_the_job(self, lab: Lab) -> None:
        lab.put("a")
        stale = lab.take("a")
        lab.advance(LEASE_S)
        assert lab.engine.reap_expired() == 1
        self._cannot_settle(lab, stale)

    def test_a_stale_lease_cannot_settle_a_job_that_another_holds(self, lab: Lab) -> None:
        lab.put("a")
        stale = lab.take("a")
        lab.advance(LEASE_S)
        lab.engine.reap_expired()
        current = lab.take("a")
        self._cannot_settle(lab, stale)
        assert lab.engine.ack(current)
        self._cannot_settle(lab, stale)

    def test_a_lease_that_was_settled_cannot_settle_the_next_delivery(self, lab: Lab) -> None:
        lab.put("a")
        old = lab.take("a")
        assert lab.engine.release(old)
        current = lab.take("a")
        with lab.unchanged():
            for name in ("ack", "nack", "abandon", "cancel", "expire"):
                assert lab.engine.settle([VERDICTS[name](old)]) == [False], name
        assert lab.engine.ack(current)

    def test_a_forged_token_cannot_settle(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        self._cannot_settle(lab, replace(lease, owner_token=new_owner_token()))
        self._cannot_settle(lab, replace(lease, owner_token=""))
        assert lab.engine.ack(lease)

    def test_a_lease_of_one_job_cannot_settle_another(self, lab: Lab) -> None:
        lab.put("a", "b")
        mine, theirs = lab.take("a"), lab.take("b")
        self._cannot_settle(lab, replace(mine, id=theirs.id, token=theirs.token))

    def test_a_job_that_was_never_accepted_cannot_be_settled(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        self._cannot_settle(lab, replace(lease, id="nobody", token=-1 if isinstance(lease.token, int) else "nobody"))

    def test_a_deleted_job_cannot_be_settled(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        assert lab.engine.abandon(lease, DeadReason.FAILED)
        assert lab.engine.discard("a")
        with lab.unchanged():
            assert lab.engine.settle([Ack(lease=lease), Nack(lease=lease), Release(lease=lease)]) == [False] * 3

    def test_a_replayed_job_cannot_be_settled_with_its_former_lease(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        assert lab.engine.abandon(lease, DeadReason.FAILED)
        lab.engine.replay("a")
        with lab.unchanged():
            assert lab.engine.settle([Ack(lease=lease), Nack(lease=lease), Release(lease=lease)]) == [False] * 3

    def _cannot_settle(self, lab: Lab, stale: JobLease) -> None:
        with lab.unchanged():
            for name, verdict in VERDICTS.items():
                assert lab.engine.settle([replace(verdict(stale), record=lab.record())]) == [False], name

    def test_of_two_successive_holders_only_the_second_can_settle(self, lab: Lab) -> None:
        lab.put("a")
        first = lab.take("a")
        lab.advance(LEASE_S)
        lab.engine.reap_expired()
        second = lab.take("a")
        assert lab.engine.settle([Ack(lease=first), Nack(lease=second)]) == [False, True]
        assert (lab.view("a").state, lab.view("a").attempts) == (JobState.FAILED, 1)

    def test_a_repeated_settlement_answers_true_and_changes_nothing(self, lab: Lab) -> None:
        for name, verdict in VERDICTS.items():
            lab.put(name)
            settlement = replace(verdict(lab.take(name)), record=lab.record())
            assert lab.engine.settle([settlement]) == [True]
            with lab.unchanged():
                assert lab.engine.settle([settlement]) == [True], name
                assert lab.open().settle([settlement]) == [True], name

    def test_a_settlement_repeated_after_its_lease_expired_still_answers_true(self, lab: Lab) -> None:
        lab.put("acked", "nacked")
        done, failed = Ack(lease=lab.take("acked")), Nack(lease=lab.take("nacked"), delay=999)
        assert lab.engine.settle([done, failed]) == [True, True]
        lab.advance(2 * LEASE_S)
        with lab.unchanged():
            assert lab.engine.settle([done, failed]) == [True, True]

    def test_a_settlement_repeated_after_the_job_was_claimed_again_still_answers_true(self, lab: Lab) -> None:
        lab.put("nacked", "released")
        failed = Nack(lease=lab.take("nacked"), record=lab.record(Outcome.FAILED))
        given_back = Release(lease=lab.take("released"), record=lab.record(Outcome.SNOOZED))
        assert lab.engine.settle([failed, given_back]) == [True, True]
        current = lab.claim()
        assert len(current) == 2
        with lab.unchanged():
            assert lab.engine.settle([failed, given_back]) == [True, True]
        assert lab.engine.settle([Ack(lease=lease) for lease in current]) == [True, True]
        with lab.unchanged():
            assert lab.engine.settle([failed, given_back]) == [True, True]

    def test_another_verdict_with_the_same_token_is_refused(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        assert lab.engine.ack(lease)
        with lab.unchanged():
            for name in ("nack", "release", "crash", "abandon", "cancel", "expire"):
                assert lab.engine.settle([VERDICTS[name](lease)]) == [False], name

    def test_a_settlement_twice_in_one_call_is_applied_once(self, lab: Lab) -> None:
        lab.put("a")
        failed = Nack(lease=lab.take("a"), record=lab.record(Outcome.FAILED))
        assert lab.engine.settle([failed, failed]) == [True, True]
        assert lab.view("a").attempts == 1
        assert lab.outcomes("a") == [Outcome.FAILED]

    def test_of_two_verdicts_in_one_call_the_first_applies(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        assert lab.engine.settle([Ack(lease=lease), Nack(lease=lease)]) == [True, False]
        assert (lab.view("a").state, lab.view("a").attempts) == (JobState.COMPLETED, 0)

    def test_each_settlement_of_a_batch_has_its_own_answer(self, lab: Lab) -> None:
        lab.put("stale")
        stale = lab.take("stale")
        lab.advance(LEASE_S)
        lab.put("a", "b", "c", "d", "e")
        a, b, c, d, e = lab.claim()
        answers = lab.engine.settle(
            [
                Ack(lease=a),
                Ack(lease=stale),
                Nack(lease=b, delay=30),
                Release(lease=replace(c, owner_token=new_owner_token())),
                Release(lease=c, delay=30),
                Abandon(lease=d, reason=DeadReason.TIMEOUT),
                CancelJob(lease=e, reason="enough"),
            ]
        )
        assert answers == [True, False, True, False, True, True, True]
        assert [lab.view(id).state for id in ("a", "b", "c", "d", "e")] == [
            JobState.COMPLETED,
            JobState.FAILED,
            JobState.SCHEDULED,
            JobState.DEAD,
            JobState.CANCELLED,
        ]
        assert lab.view("stale").state is JobState.PROCESSING
