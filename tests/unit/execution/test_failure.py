"""An exception as text, short enough to store."""

import asyncio
import traceback

import pytest

from holdfast.errors import PayloadRejected
from holdfast.execution.failure import MESSAGE_LIMIT, TRACEBACK_LIMIT, describe_error, name_of
from holdfast.execution.timeout import Timeout


class Outer:
    class Inner(Exception):
        pass


def throw(error: Exception) -> None:
    raise error


def caught(error: Exception) -> Exception:
    try:
        throw(error)
    except Exception as problem:
        return problem
    raise AssertionError


def test_a_type_is_named_as_users_import_it() -> None:
    assert name_of(ValueError) == "ValueError"
    assert name_of(PayloadRejected) == "holdfast.PayloadRejected"
    assert name_of(asyncio.CancelledError) == "asyncio.exceptions.CancelledError"
    assert name_of(Outer.Inner) == f"{__name__}.Outer.Inner"


def test_a_long_message_is_cut_visibly() -> None:
    info = describe_error(caught(ValueError("é" * 100_000)))
    assert len(info.message.encode()) <= MESSAGE_LIMIT
    assert "bytes cut …" in info.message
    assert len(info.traceback.encode()) <= TRACEBACK_LIMIT


def test_a_bottomless_recursion_is_cut_and_ends_where_it_ended() -> None:
    def down(n: int) -> int:
        return down(n + 1) if n >= 0 else 0

    with pytest.raises(RecursionError) as raised:
        down(0)
    info = describe_error(raised.value)
    assert info.type == "RecursionError"
    assert len(info.traceback.encode()) <= TRACEBACK_LIMIT
    assert info.traceback.rstrip().splitlines()[-1].startswith("RecursionError: maximum recursion depth")


def test_no_local_value_is_written_down() -> None:
    def work(password: str) -> None:
        raise ValueError

    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the test raises it itself
        work("hunter" + "2")
    assert "hunter2" not in describe_error(raised.value).traceback


def test_an_exception_that_cannot_be_written_is_described_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    info = describe_error(caught(Mute()))
    assert info.type.endswith("Mute")
    assert info.message == "the message could not be formatted: RuntimeError"


def test_causes_and_groups_are_kept_without_frames_of_ours() -> None:
    def work() -> None:
        try:
            throw(KeyError("first"))
        except KeyError as problem:
            raise ExceptionGroup("several", [caught(ValueError("inner"))]) from problem

    ended = Timeout(30).run(work)
    assert ended.raised is not None
    assert "execution/timeout.py" in "".join(traceback.format_exception(ended.raised))
    text = describe_error(ended.raised).traceback
    assert "execution/timeout.py" not in text
    assert "KeyError: 'first'" in text
    assert "ValueError: inner" in text
    assert text.count("in work") == 2
