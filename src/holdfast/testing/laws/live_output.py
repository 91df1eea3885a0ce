"""Live output: reported only by the holder of the lease, shown while the job runs, and retained if it crashes."""

from holdfast.queues.contract import LIVE_OUTPUT_BYTES
from holdfast.testing.lab import LEASE_S, Lab
from holdfast.values import (
    DEFAULT_QUEUE,
    Ack,
    CancelJob,
    ErrorInfo,
    JobLease,
    LiveOutput,
    Nack,
    Outcome,
    Release,
    cut_mark,
)

SOME = LiveOutput(text="one\n")
MORE = LiveOutput(text="two\nthree\n", start=4)


class LiveOutputLaws:
    """The guarantees of `report_output`."""

    def test_every_handle_sees_the_output_of_a_running_job(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert self._seen(lab) is None
        assert lab.engine.report_output([(lease, SOME)]) == [True]
        history = lab.open().get("a")
        assert history is not None
        assert history.live_output == SOME
        assert history.attempts == ()

    def test_the_latest_output_replaces_the_previous_one(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.engine.report_output([(lease, SOME)]) == [True]
        assert lab.engine.report_output([(lease, SOME), (lease, MORE)]) == [True, True]
        assert self._seen(lab) == MORE

    def test_reporting_no_output_returns_nothing(self, lab: Lab) -> None:
        assert lab.engine.report_output([]) == []

    def test_a_stale_lease_cannot_report_output(self, lab: Lab) -> None:
        stale = self._running(lab)
        lab.advance(LEASE_S)
        with lab.unchanged():
            assert lab.engine.report_output([(stale, SOME)]) == [False]
        assert lab.engine.reap_expired() == 1
        with lab.unchanged():
            assert lab.engine.report_output([(stale, SOME)]) == [False]
        lab.take("a")
        with lab.unchanged():
            assert lab.engine.report_output([(stale, SOME)]) == [False]
        assert self._seen(lab) is None

    def test_a_settled_job_accepts_no_more_output(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.engine.nack(lease, record=lab.record(Outcome.FAILED))
        with lab.unchanged():
            assert lab.engine.report_output([(lease, SOME)]) == [False]
        assert self._recorded(lab) == [""]

    def test_refused_output_does_not_affect_the_others(self, lab: Lab) -> None:
        lab.put("a", "b", "c")
        leases = lab.claim()
        assert lab.engine.ack(leases[1])
        assert lab.engine.report_output([(lease, SOME) for lease in leases]) == [True, False, True]
        assert [self._seen(lab, id) for id in ("a", "b", "c")] == [SOME, None, SOME]

    def test_output_does_not_move_the_lease(self, lab: Lab) -> None:
        lease = self._running(lab)
        before = lab.view("a").lease_until
        lab.advance(LEASE_S / 2)
        assert lab.engine.report_output([(lease, SOME)]) == [True]
        assert lab.view("a").lease_until == before

    def test_recorded_output_replaces_reported_output(self, lab: Lab) -> None:
        ends = (
            (Ack, Outcome.SUCCEEDED),
            (Nack, Outcome.FAILED),
            (Release, Outcome.SNOOZED),
            (CancelJob, Outcome.CANCELLED),
        )
        lab.put(*(outcome for _, outcome in ends))
        for (settlement, outcome), lease in zip(ends, lab.claim(), strict=True):
            assert lab.engine.report_output([(lease, SOME)]) == [True]
            record = lab.record(outcome, output="all of it\n")
            assert lab.engine.settle([settlement(lease=lease, record=record)]) == [True]
            assert self._seen(lab, outcome) is None
            assert self._recorded(lab, outcome) == ["all of it\n"]

    def test_reported_output_remains_if_the_verdict_has_none(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.engine.report_output([(lease, SOME)]) == [True]
        record = lab.record(Outcome.INTERRUPTED, error=ErrorInfo(type="Stopped", message="in the middle"))
        assert lab.engine.settle([Release(lease=lease, record=record)]) == [True]
        assert self._seen(lab) is None
        assert self._recorded(lab) == ["one\n"]

    def test_a_new_delivery_has_no_live_output(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.engine.report_output([(lease, SOME)]) == [True]
        assert lab.engine.settle([Nack(lease=lease, record=lab.record(Outcome.FAILED, output="one\n"))]) == [True]
        lab.take("a")
        assert self._seen(lab) is None

    def test_a_new_delivery_under_the_same_token_has_no_live_output(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.engine.report_output([(lease, SOME)]) == [True]
        lab.advance(LEASE_S)
        assert lab.engine.reap_expired() == 1
        assert len(lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=lease.owner_token)) == 1
        assert self._seen(lab) is None

    def test_the_output_of_a_crashed_delivery_is_retained(self, lab: Lab) -> None:
        lab.put("a")
        for output in (SOME, MORE):
            assert lab.engine.report_output([(lab.take("a"), output)]) == [True]
            lab.advance(LEASE_S)
            assert lab.engine.reap_expired() == 1
            assert self._seen(lab) is None
        lease = lab.take("a")
        assert lab.engine.report_output([(lease, SOME)]) == [True]
        assert lab.engine.ack(lease, lab.record(Outcome.SUCCEEDED, output="done\n"))
        assert self._recorded(lab) == ["one\n", f"{cut_mark(4)}\ntwo\nthree\n", "done\n"]

    def test_the_end_of_a_long_output_is_retained(self, lab: Lab) -> None:
        lease = self._running(lab)
        assert lab.engine.report_output([(lease, LiveOutput(text="ü" * LIVE_OUTPUT_BYTES + "!", start=5))]) == [True]
        seen = self._seen(lab)
        assert seen is not None
        assert seen.text == "ü" * (LIVE_OUTPUT_BYTES // 2 - 1) + "!"
        assert seen.end == 5 + 2 * LIVE_OUTPUT_BYTES + 1

    def test_invalid_output_does_not_affect_the_others(self, lab: Lab) -> None:
        lab.put("a", "b")
        odd, good = lab.claim()
        assert lab.engine.report_output([(odd, LiveOutput(text="\0 \ud800 \U0001f40c")), (good, SOME)]) == [True, True]
        seen = self._seen(lab)
        assert seen is not None
        assert seen.text == "\ufffd ? \U0001f40c"
        assert self._seen(lab, "b") == SOME

    def _running(self, lab: Lab, id: str = "a") -> JobLease:
        lab.put(id)
        return lab.take(id)

    def _seen(self, lab: Lab, id: str = "a") -> LiveOutput | None:
        return lab.history(id).live_output

    def _recorded(self, lab: Lab, id: str = "a") -> list[str]:
        return [attempt.record.output for attempt in lab.history(id).attempts]
