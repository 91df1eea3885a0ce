"""Frames survive however the bytes are cut on their way."""

from collections.abc import Sequence

from hypothesis import given, strategies as st

from holdfast.values import ExecutionResult, Outcome, Progress
from holdfast.worker.executors.frames import (
    Broken,
    Delivery,
    Finished,
    FrameBuffer,
    FromChild,
    Leave,
    Progressed,
    Ready,
    Recall,
    Refused,
    Returned,
    Started,
    Stop,
    ToChild,
    Work,
    packed,
)

NOW = 1_767_323_045_678_901
RESULT = ExecutionResult(
    handler="job", outcome=Outcome.SNOOZED, started_us=NOW, ended_us=NOW, result=b"[1]", output="é", snooze_s=1.5
)
TO_CHILD: Sequence[ToChild] = (
    Work((Delivery(1, b"\0\xff" * 300, 0, 1), Delivery(2, b"", 3, 4))),
    Work(()),
    Recall(),
    Stop(7, True),
    Leave(),
)
FROM_CHILD: Sequence[FromChild] = (
    Ready(),
    Broken("no"),
    Started(1),
    Finished(1, 2, RESULT),
    Refused(2, 0, "CommandForbidden", "no"),
    Returned((3, 4), True),
    Progressed(5, Progress(done=1.0, total=2.0, message="rows")),
)


@given(st.lists(st.sampled_from(TO_CHILD), max_size=10), st.lists(st.integers(1, 700), max_size=30))
def test_what_a_worker_says_arrives_whole_and_in_order(frames: list[ToChild], cuts: list[int]) -> None:
    buffer = FrameBuffer()
    heard = [frame for chunk in _cut(b"".join(map(packed, frames)), cuts) for frame in buffer.to_child(chunk)]
    assert heard == frames


@given(st.lists(st.sampled_from(FROM_CHILD), max_size=10), st.lists(st.integers(1, 300), max_size=30))
def test_what_a_child_says_arrives_whole_and_in_order(frames: list[FromChild], cuts: list[int]) -> None:
    buffer = FrameBuffer()
    heard = [frame for chunk in _cut(b"".join(map(packed, frames)), cuts) for frame in buffer.from_child(chunk)]
    assert heard == frames


def test_a_frame_that_was_cut_off_is_not_heard() -> None:
    assert list(FrameBuffer().from_child(packed(Started(1))[:-1])) == []


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks: list[bytes] = []
    for size in sizes:
        chunks.append(data[:size])
        data = data[size:]
    return [*chunks, data]
