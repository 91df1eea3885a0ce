"""Progress: reported only by the holder of the lease, and shown only for the delivery that reported it."""

from datetime import timedelta

from holdfast.queues.contract import DEFAULT_CRASH_LIMIT, MAX_PROGRESS_MESSAGE_BYTES
from holdfast.testing.lab import LEASE_S, Lab
from holdfast.values import (
    DEFAULT_QUEUE,
    Abandon,
    Ack,
    CancelJob,
    DeadReason,
    JobLease,
    JobState,
    Nack,
    Progress,
    Release,
    ReplayAnswer,
)

HALF = Progress(done=1, total=2, message="half")


class ProgressLaws:
    """The guarantees of `report_progress`."""

    def test_every_handle_sees_progress_with_the_engines_time(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.view("a").progress is None
        assert lab.engine.report_progress([(lease, HALF)]) == [True]
        history = lab.open().get("a")
        assert history is not None
        self._shows(lab, HALF)
        assert history.job.progress == lab.view("a").progress
        assert history.job.progress is not None
        assert history.job.progress.at is not None
        assert abs(history.job.progress.at - lab.now()) <= timedelta(seconds=lab.grain_s)

    def test_the_latest_progress_replaces_the_previous_one(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.engine.report_progress([(lease, HALF)]) == [True]
        later = Progress(done=1.5)
        assert lab.engine.report_progress([(lease, HALF), (lease, later)]) == [True, True]
        self._shows(lab, later)

    def test_reporting_no_progress_returns_nothing(self, lab: Lab) -> None:
        assert lab.engine.report_progress([]) == []

    def test_a_stale_lease_cannot_report_progress(self, lab: Lab) -> None:
        stale = self._running(lab)
        lab.advance(LEASE_S)
        with lab.unchanged():
            assert lab.engine.report_progress([(stale, HALF)]) == [False]
        assert lab.engine.reap_expired() == 1
        with lab.unchanged():
            assert lab.engine.report_progress([(stale, HALF)]) == [False]
        lab.take("a")
        with lab.unchanged():
            assert lab.engine.report_progress([(stale, HALF)]) == [False]

    def test_a_settled_job_accepts_no_more_progress(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.engine.nack(lease, delay=60)
        with lab.unchanged():
            assert lab.engine.report_progress([(lease, HALF)]) == [False]

    def test_a_refused_report_does_not_affect_the_others(self, lab: Lab) -> None:
        lab.put("a", "b", "c")
        leases = lab.claim()
        assert lab.engine.ack(leases[1])
        assert lab.engine.report_progress([(lease, HALF) for lease in leases]) == [True, False, True]
        assert [lab.view(id).progress is not None for id in ("a", "b", "c")] == [True, False, True]

    def test_a_report_does_not_move_the_lease(self, lab: Lab) -> None:
        lease = self._running(lab)
        before = lab.view("a").lease_until
        lab.advance(LEASE_S / 2)
        assert lab.engine.report_progress([(lease, HALF)]) == [True]
        assert lab.view("a").lease_until == before

    def test_a_new_delivery_has_no_progress(self, lab: Lab) -> None:
        for settlement in (Nack, Release):
            lease = self._running(lab, settlement.__name__)
            assert lab.engine.report_progress([(lease, HALF)]) == [True]
            assert lab.engine.settle([settlement(lease=lease)]) == [True]
            lab.take(settlement.__name__)
            assert lab.view(settlement.__name__).progress is None

    def test_a_new_delivery_under_the_same_token_has_no_progress(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.engine.report_progress([(lease, HALF)]) == [True]
        lab.advance(LEASE_S)
        assert lab.engine.reap_expired() == 1
        assert len(lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=lease.owner_token)) == 1
        assert lab.view("a").progress is None

    def test_an_unsuccessful_job_shows_its_progress(self, lab: Lab) -> None:
        for settlement in (
            Nack(lease=self._reported(lab, "failed"), delay=60),
            Abandon(lease=self._reported(lab, "dead"), reason=DeadReason.FAILED),
            CancelJob(lease=self._reported(lab, "cancelled")),
        ):
            assert lab.engine.settle([settlement]) == [True]
            assert lab.view(settlement.lease.id).state == settlement.lease.id
            self._shows(lab, HALF, settlement.lease.id)

    def test_a_crash_loop_shows_the_progress_of_its_last_delivery(self, lab: Lab) -> None:
        lab.put("a")
        for number in range(DEFAULT_CRASH_LIMIT):
            assert lab.engine.report_progress([(lab.take("a"), Progress(done=number))]) == [True]
            lab.advance(LEASE_S)
            assert lab.engine.reap_expired() == 1
        assert lab.view("a").state is JobState.DEAD
        self._shows(lab, Progress(done=DEFAULT_CRASH_LIMIT - 1))

    def test_a_completed_or_released_job_shows_no_progress(self, lab: Lab) -> None:
        for settlement in (Ack(lease=self._reported(lab, "done")), Release(lease=self._reported(lab, "back"), delay=9)):
            assert lab.engine.settle([settlement]) == [True]
            assert lab.view(settlement.lease.id).progress is None

    def test_a_replayed_job_shows_no_progress(self, lab: Lab) -> None:
        assert lab.engine.abandon(self._reported(lab, "a"), DeadReason.FAILED)
        assert lab.engine.replay("a") is ReplayAnswer.REPLAYED
        assert lab.view("a").progress is None
        lab.take("a")
        assert lab.view("a").progress is None

    def test_a_long_message_is_truncated(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.engine.report_progress([(lease, Progress(done=1, message="ü" * 100_000))]) == [True]
        progress = lab.view("a").progress
        assert progress is not None
        assert progress.message == "ü" * (MAX_PROGRESS_MESSAGE_BYTES // 2)

    def test_an_invalid_report_does_not_affect_the_others(self, lab: Lab) -> None:
        lab.put("a", "b")
        odd, good = lab.claim()
        nan, endless = float("nan"), float("inf")
        reports = [(odd, Progress(done=nan, total=endless, message="\ud800")), (good, HALF)]
        assert lab.engine.report_progress(reports) == [True, True]
        self._shows(lab, Progress(done=0, message="?"))
        self._shows(lab, HALF, "b")

    def _running(self, lab: Lab, id: str = "a") -> JobLease:
        lab.put(id)
        return lab.take(id)

    def _reported(self, lab: Lab, id: str) -> JobLease:
        lease = self._running(lab, id)
        assert lab.engine.report_progress([(lease, HALF)]) == [True]
        return lease

    def _shows(self, lab: Lab, expected: Progress, id: str = "a") -> None:
        found = lab.view(id).progress
        assert found is not None
        assert (found.done, found.total, found.message) == (expected.done, expected.total, expected.message)
