"""The registry of workers, which operators read and send stop orders through, by the engine's clock."""

from datetime import UTC, datetime, timedelta

from holdfast.state.workers import LOST_AFTER_BEATS, SHOW_LOST_S, WorkerRegistry
from holdfast.testing.lab import Lab
from holdfast.values import DEFAULT_QUEUE, RunningJob, StopOrder, WorkerReport, WorkerState, WorkerView

BEAT_S = 10.0
STARTED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def report(id: str = "w1", *, draining: bool = False, done: int = 0, started_at: datetime = STARTED_AT) -> WorkerReport:
    """A report of a worker."""
    return WorkerReport(
        id=id,
        host="ship",
        pid=4711,
        version="1.2.3",
        started_at=started_at,
        queues=("mail:3", DEFAULT_QUEUE),
        handlers=("mail.send",),
        processes=2,
        slots=8,
        beat_every_s=BEAT_S,
        draining=draining,
        jobs=(RunningJob(id="a", job="mail.send", queue="mail", started_at=STARTED_AT),),
        running=1,
        done=done,
    )


class RegistryLaws:
    """The guarantees of the registry of workers."""

    def test_every_handle_sees_a_worker_as_it_reports_itself(self, lab: Lab) -> None:
        assert list(lab.workers.all()) == []
        assert lab.workers.beat(report()) is None
        [view] = WorkerRegistry(lab.open().state).all()
        assert (view.report, view.state, view.order) == (report(), WorkerState.LIVE, None)
        assert abs(view.heard_at - lab.now()) <= timedelta(seconds=lab.grain_s)

    def test_the_latest_report_of_a_worker_is_shown(self, lab: Lab) -> None:
        lab.workers.beat(report())
        lab.advance(BEAT_S)
        lab.workers.beat(report(done=5))
        view = self._only(lab)
        assert view.report == report(done=5)
        assert abs(view.heard_at - lab.now()) <= timedelta(seconds=lab.grain_s)

    def test_the_oldest_worker_comes_first(self, lab: Lab) -> None:
        for id, minutes in (("b", 5), ("c", 9), ("a", 5), ("d", 1)):
            lab.workers.beat(report(id, started_at=STARTED_AT + timedelta(minutes=minutes)))
        assert [view.report.id for view in lab.workers.all()] == ["d", "a", "b", "c"]

    def test_a_worker_is_draining_when_it_reports_so(self, lab: Lab) -> None:
        lab.workers.beat(report(draining=True))
        assert self._only(lab).state is WorkerState.DRAINING

    def test_a_worker_is_lost_after_missed_heartbeats_until_the_next_one(self, lab: Lab) -> None:
        lab.workers.beat(report(draining=True))
        lab.advance(LOST_AFTER_BEATS * BEAT_S - lab.grain_s)
        assert self._only(lab).state is WorkerState.DRAINING
        lab.advance(2 * lab.grain_s)
        assert self._only(lab).state is WorkerState.LOST
        lab.workers.beat(report())
        assert self._only(lab).state is WorkerState.LIVE

    def test_a_stop_order_is_returned_with_each_heartbeat(self, lab: Lab) -> None:
        lab.workers.beat(report())
        assert lab.workers.order_of("w1") is None
        assert WorkerRegistry(lab.open().state).order_stop("w1", StopOrder.DRAIN) is True
        assert lab.workers.order_of("w1") is StopOrder.DRAIN
        assert lab.workers.beat(report()) is StopOrder.DRAIN
        assert lab.workers.beat(report(draining=True)) is StopOrder.DRAIN
        assert lab.workers.order_of("w1") is StopOrder.DRAIN
        assert self._only(lab).order is StopOrder.DRAIN

    def test_a_stop_order_is_for_one_worker(self, lab: Lab) -> None:
        for id in ("w1", "w2"):
            lab.workers.beat(report(id))
        lab.workers.order_stop("w1", StopOrder.NOW)
        assert lab.workers.order_of("w2") is None
        assert lab.workers.beat(report("w2")) is None
        assert [view.order for view in lab.workers.all()] == [StopOrder.NOW, None]

    def test_of_two_stop_orders_the_more_urgent_one_applies(self, lab: Lab) -> None:
        lab.workers.beat(report())
        for given, stands in (
            (StopOrder.DRAIN, StopOrder.DRAIN),
            (StopOrder.NOW, StopOrder.NOW),
            (StopOrder.DRAIN, StopOrder.NOW),
        ):
            assert lab.workers.order_stop("w1", given) is True
            assert lab.workers.order_of("w1") is stands
            assert lab.workers.beat(report()) is stands

    def test_an_unknown_worker_cannot_be_stopped(self, lab: Lab) -> None:
        lab.workers.beat(report("other"))
        with lab.unchanged():
            assert lab.workers.order_stop("w1", StopOrder.NOW) is False
            assert lab.workers.order_of("w1") is None
        assert lab.workers.beat(report("w1")) is None

    def test_a_worker_that_left_is_deleted_with_its_stop_order(self, lab: Lab) -> None:
        for id in ("w1", "w2"):
            lab.workers.beat(report(id))
        lab.workers.order_stop("w1", StopOrder.DRAIN)
        lab.workers.leave("w1")
        assert self._only(lab).report.id == "w2"
        with lab.unchanged():
            lab.workers.leave("w1")
            assert lab.workers.order_stop("w1", StopOrder.NOW) is False
        assert lab.workers.beat(report("w1")) is None

    def test_a_lost_worker_is_listed_for_a_day(self, lab: Lab) -> None:
        lab.workers.beat(report("lost"))
        lab.advance(LOST_AFTER_BEATS * BEAT_S + SHOW_LOST_S - lab.grain_s)
        lab.workers.beat(report("live"))
        assert lab.engine.prune() == 0
        assert [view.state for view in lab.workers.all()] == [WorkerState.LIVE, WorkerState.LOST]
        lab.advance(2 * lab.grain_s)
        assert lab.engine.prune() == 0, "only jobs are counted"
        assert self._only(lab).report.id == "live"

    def test_a_lease_does_not_depend_on_the_worker_registry(self, lab: Lab) -> None:
        lab.put("a")
        lab.workers.beat(report())
        lease = lab.take("a")
        lab.workers.leave("w1")
        assert lab.engine.ack(lease)

    def _only(self, lab: Lab) -> WorkerView:
        [view] = lab.workers.all()
        return view
