"""Waiting for work: a wait may end without a reason, but it never misses a job and never makes a worker spin."""

import os
import select
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.testing.lab import Lab
from holdfast.values import DEFAULT_QUEUE

LONG_S = 60.0
PATIENCE = 2000
"""How many wake-ups without a reason are too many."""


@contextmanager
def pipe() -> Generator[tuple[int, int]]:
    """The two ends of a pipe: one to wait on, one to write to."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


class WaitingLaws:
    """The guarantees of `wait_for_work`."""

    def test_a_wait_returns_immediately_if_a_job_is_due(self, lab: Lab) -> None:
        lab.put("a")
        before = lab.clock.monotonic()
        lab.engine.wait_for_work([DEFAULT_QUEUE], LONG_S)
        assert lab.clock.monotonic() - before < LONG_S

    def test_a_wait_notices_a_job_accepted_after_the_last_poll(self, lab: Lab) -> None:
        assert lab.claim() == []
        lab.engine.wait_for_work([DEFAULT_QUEUE], 1)
        assert lab.claim() == []
        lab.open().accept([lab.envelope("a")])
        before = lab.clock.monotonic()
        lab.engine.wait_for_work([DEFAULT_QUEUE], LONG_S)
        assert lab.clock.monotonic() - before < LONG_S

    def test_a_wait_ends_when_a_job_is_due(self, lab: Lab) -> None:
        lab.put("a", delay=5)
        self._gets_within(lab, "a", LONG_S)

    def test_a_wait_ends_when_a_retry_is_due(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.nack(lab.take("a"), delay=5)
        self._gets_within(lab, "a", LONG_S)

    def test_a_job_in_any_of_the_queues_ends_the_wait(self, lab: Lab) -> None:
        for queue in ("mail", "slow", "rare"):
            lab.put(f"in-{queue}", queue=queue, delay=5)
            before = lab.clock.monotonic()
            while not lab.claim(queue=queue):
                lab.engine.wait_for_work(["mail", "slow", "rare"], LONG_S)
            assert lab.clock.monotonic() - before < LONG_S

    def test_a_wait_ends_at_its_timeout(self, lab: Lab) -> None:
        before = lab.clock.monotonic()
        self._lets_time_pass(lab, 1.0)
        assert lab.clock.monotonic() - before < LONG_S

    def test_a_wait_with_timeout_zero_returns(self, lab: Lab) -> None:
        before = lab.clock.monotonic()
        lab.engine.wait_for_work([DEFAULT_QUEUE], 0)
        assert lab.clock.monotonic() - before < LONG_S

    def test_a_job_that_cannot_be_claimed_does_not_end_a_wait(self, lab: Lab) -> None:
        lab.put("paused")
        lab.engine.pause(DEFAULT_QUEUE)
        lab.put("elsewhere", queue="aside")
        lab.put("taken", "done", "cancelled", queue="mail")
        lab.take("taken", queue="mail")
        assert lab.engine.ack(lab.take("done", queue="mail"))
        lab.engine.cancel("cancelled")
        self._lets_time_pass(lab, 10.0, queues=(DEFAULT_QUEUE, "mail"))

    def test_a_wait_ends_when_the_wake_descriptor_is_readable(self, lab: Lab) -> None:
        with pipe() as (wake, waker):
            os.write(waker, b"!")
            before = lab.clock.monotonic()
            lab.engine.wait_for_work([DEFAULT_QUEUE], LONG_S, wake=wake)
            assert lab.clock.monotonic() - before < LONG_S
            assert select.select([wake], [], [], 0)[0] == [wake], "the wait must leave the data for the caller to read"

    def test_a_wait_with_an_unreadable_descriptor_times_out(self, lab: Lab) -> None:
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
        raise AssertionError(f"woken {PATIENCE} times without a reason")
