"""Waiting for work: a hint that may come without reason, but that never fails to come and never makes a worker spin."""

import os
import select
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.testing.lab import Lab
from holdfast.values import DEFAULT_QUEUE

LONG_S = 60.0
PATIENCE = 2000
"""How many hints without reason are too many."""


@contextmanager
def pipe() -> Generator[tuple[int, int]]:
    """Where to look whether one shall wake up, and where to say so."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


class WaitingLaws:
    """What `wait_for_work` promises."""

    def test_nobody_waits_while_a_job_is_due(self, lab: Lab) -> None:
        lab.put("a")
        before = lab.clock.monotonic()
        lab.engine.wait_for_work([DEFAULT_QUEUE], LONG_S)
        assert lab.clock.monotonic() - before < LONG_S

    def test_what_was_accepted_after_the_last_look_is_noticed(self, lab: Lab) -> None:
        assert lab.claim() == []
        lab.engine.wait_for_work([DEFAULT_QUEUE], 1)
        assert lab.claim() == []
        lab.open().accept([lab.envelope("a")])
        before = lab.clock.monotonic()
        lab.engine.wait_for_work([DEFAULT_QUEUE], LONG_S)
        assert lab.clock.monotonic() - before < LONG_S

    def test_the_wait_ends_when_a_job_falls_due(self, lab: Lab) -> None:
        lab.put("a", delay=5)
        self._gets_within(lab, "a", LONG_S)

    def test_the_wait_ends_when_a_retry_falls_due(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.nack(lab.take("a"), delay=5)
        self._gets_within(lab, "a", LONG_S)

    def test_each_of_the_queues_can_end_the_wait(self, lab: Lab) -> None:
        for queue in ("mail", "slow", "rare"):
            lab.put(f"in-{queue}", queue=queue, delay=5)
            before = lab.clock.monotonic()
            while not lab.claim(queue=queue):
                lab.engine.wait_for_work(["mail", "slow", "rare"], LONG_S)
            assert lab.clock.monotonic() - before < LONG_S

    def test_waiting_ends_when_its_time_is_up(self, lab: Lab) -> None:
        before = lab.clock.monotonic()
        self._lets_time_pass(lab, 1.0)
        assert lab.clock.monotonic() - before < LONG_S

    def test_waiting_for_no_time_returns(self, lab: Lab) -> None:
        before = lab.clock.monotonic()
        lab.engine.wait_for_work([DEFAULT_QUEUE], 0)
        assert lab.clock.monotonic() - before < LONG_S

    def test_what_cannot_be_claimed_lets_nobody_spin(self, lab: Lab) -> None:
        lab.put("paused")
        lab.engine.pause(DEFAULT_QUEUE)
        lab.put("elsewhere", queue="aside")
        lab.put("taken", "done", "cancelled", queue="mail")
        lab.take("taken", queue="mail")
        assert lab.engine.ack(lab.take("done", queue="mail"))
        lab.engine.cancel("cancelled")
        self._lets_time_pass(lab, 10.0, queues=(DEFAULT_QUEUE, "mail"))

    def test_the_wait_ends_when_somebody_else_wants_it_to(self, lab: Lab) -> None:
        with pipe() as (wake, waker):
            os.write(waker, b"!")
            before = lab.clock.monotonic()
            lab.engine.wait_for_work([DEFAULT_QUEUE], LONG_S, wake=wake)
            assert lab.clock.monotonic() - before < LONG_S
            assert select.select([wake], [], [], 0)[0] == [wake], "what woke it up is for the caller to read"

    def test_a_quiet_descriptor_lets_time_pass(self, lab: Lab) -> None:
        with pipe() as (wake, _):
            self._lets_time_pass(lab, 1.0, wake=wake)

    def _gets_within(self, lab: Lab, id: str, seconds: float) -> None:
        give_up_at = lab.clock.monotonic() + seconds
        while not (leases := lab.claim()):
            lab.engine.wait_for_work([DEFAULT_QUEUE], give_up_at - lab.clock.monotonic())
        assert lab.clock.monotonic() < give_up_at, "the job was due earlier"
        assert [lease.id for lease in leases] == [id]

    def _lets_time_pass(
        self, lab: Lab, seconds: float, *, queues: tuple[str, ...] = (DEFAULT_QUEUE,), wake: int | None = None
    ) -> None:
        give_up_at = lab.clock.monotonic() + seconds
        for _ in range(PATIENCE):
            lab.engine.wait_for_work(queues, give_up_at - lab.clock.monotonic(), wake=wake)
            if lab.clock.monotonic() >= give_up_at:
                return
        raise AssertionError(f"woken {PATIENCE} times without reason")
