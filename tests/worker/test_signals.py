"""Signals reach their handler, whatever a job does with signals, event loops and forks."""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.worker.signals import handling_signals

from ..faults.processes import DEADLINE_S


@contextmanager
def listening() -> Generator[tuple[list[signal.Signals], threading.Event]]:
    came: list[signal.Signals] = []
    any_came = threading.Event()

    def act(number: signal.Signals) -> None:
        came.append(number)
        any_came.set()

    with handling_signals(act, [signal.SIGUSR1]):
        yield came, any_came


def send(pid: int) -> None:
    os.kill(pid, signal.SIGUSR1)


def test_a_signal_has_been_acted_on_before_the_main_thread_goes_on() -> None:
    with listening() as (came, _):
        for number in range(1, 20):
            signal.raise_signal(signal.SIGUSR1)
            assert len(came) == number


def test_the_handlers_of_before_are_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with listening():
        assert signal.getsignal(signal.SIGUSR1) != before
    assert signal.getsignal(signal.SIGUSR1) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_is_heard_although_an_event_loop_has_taken_the_pipe_away() -> None:
    with listening() as (came, any_came):
        signal.set_wakeup_fd(-1)
        signal.raise_signal(signal.SIGUSR1)
        assert any_came.wait(DEADLINE_S)
        assert came == [signal.SIGUSR1]


def test_a_signal_to_a_forked_child_does_not_reach_its_parent_and_ends_the_child() -> None:
    with listening() as (came, _):
        ready, release = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"!")
            os.read(release[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        send(child)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGUSR1
        assert came == []


def test_leaving_does_not_wait_for_a_child_that_was_forked_meanwhile() -> None:
    release = os.pipe()
    with listening():
        child = os.fork()
        if child == 0:
            os.read(release[0], 1)
            os._exit(0)
    os.write(release[1], b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
