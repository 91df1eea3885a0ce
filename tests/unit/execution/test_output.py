"""What an attempt prints is captured; if it is too long, a mark shows where it was cut."""

import contextvars
import io
import operator
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

import pytest
from hypothesis import given, strategies as st

from holdfast.execution.output import MIN_LIMIT, Output, cut, rest_of, streams_installed
from holdfast.values import OUTPUT_LIMIT, LiveOutput

from .conftest import redirected

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
mark = re.compile(r"\n… ([\d,]+) bytes cut …\n")


@given(st.lists(texts | st.text("aé€😀", min_size=200, max_size=900), max_size=6), st.integers(MIN_LIMIT, 2000))
def test_nothing_is_cut_below_the_limit_and_above_it_the_mark_says_how_much(pieces: list[str], limit: int) -> None:
    output = Output(limit=limit)
    for piece in pieces:
        output.write(piece)
    whole, kept = "".join(pieces), output.text()
    size = len(whole.encode())
    if size <= limit:
        assert kept == whole
        return
    assert len(kept.encode()) <= limit
    found = next(m for m in mark.finditer(kept) if whole.startswith(kept[: m.start()]))
    head, tail = kept[: found.start()], kept[found.end() :]
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert int(found[1].replace(",", "")) == size - len(head.encode()) - len(tail.encode())
    assert min(len(head.encode()), len(tail.encode())) >= limit // 2 - 64 - 3


@given(st.text("aé€😀", min_size=200, max_size=2000), st.lists(st.integers(0, 2000)))
def test_the_size_of_the_writes_does_not_matter(text: str, places: list[int]) -> None:
    at_once, in_pieces = Output(limit=MIN_LIMIT), Output(limit=MIN_LIMIT)
    at_once.write(text)
    for start, end in zip([0, *sorted(places)], [*sorted(places), len(text)], strict=True):
        in_pieces.write(text[start:end])
    assert in_pieces.text() == at_once.text()


@given(st.lists(st.tuples(texts | st.text("aé€😀", min_size=200, max_size=900), st.booleans()), max_size=8))
def test_whoever_hears_the_news_has_in_the_end_what_is_kept(pieces: list[tuple[str, bool]]) -> None:
    output, copy = Output(limit=MIN_LIMIT), Output(limit=MIN_LIMIT)
    for piece, is_asked in [*pieces, ("", True)]:
        output.write(piece)
        for skipped, text in output.news() if is_asked else []:
            copy.write(text, skipped=skipped)
    assert output.news() == []
    assert (copy.text(), copy.total) == (output.text(), output.total)


@given(st.lists(texts | st.text("aé€😀", min_size=200, max_size=900), max_size=6), st.integers(1, 300))
def test_the_latest_part_ends_where_all_of_it_ends(pieces: list[str], size: int) -> None:
    output = Output(limit=MIN_LIMIT)
    for piece in pieces:
        output.write(piece)
    whole, latest = "".join(pieces), output.latest(size)
    assert whole.endswith(latest.text)
    assert latest.end == output.total == len(whole.encode())
    assert min(size, MIN_LIMIT // 2, output.total) - 3 <= len(latest.text.encode()) <= size


def test_nothing_written_is_nothing_new() -> None:
    output = Output()
    assert output.news() == []
    assert (output.latest(10).text, output.latest(10).end, output.total) == ("", 0, 0)


long_texts = st.builds(operator.mul, st.text("aé€😀\n", min_size=1, max_size=9), st.integers(0, 9_000))


@given(st.lists(texts | long_texts, max_size=6), st.data())
def test_the_rest_of_an_output_begins_where_it_was_left(pieces: list[str], data: st.DataObject) -> None:
    """A reader that has read some pieces and continues with the rest has read all that is stored."""
    output = Output()
    for piece in pieces:
        output.write(piece)
    whole, kept = "".join(pieces), output.text()
    read = "".join(pieces[: data.draw(st.integers(0, len(pieces)))])
    rest = rest_of(kept, len(read.encode()))
    if len(whole.encode()) <= OUTPUT_LIMIT:
        assert read + rest == whole
        return
    found = mark.search(rest)
    if found is None:
        assert read + rest == whole
    else:
        missing = int(found[1].replace(",", ""))
        assert len((read + rest[: found.start()] + rest[found.end() :]).encode()) + missing == len(whole.encode())
        assert whole.startswith(read + rest[: found.start()])
        assert kept.endswith(rest[found.end() :])


def test_the_rest_of_what_a_crash_has_left_begins_where_it_was_left() -> None:
    left = LiveOutput(text="five\nsix\n", start=1000).marked
    assert rest_of(left, 1005, of_crash=True) == "six\n"
    assert rest_of(left, 1009, of_crash=True) == ""
    assert rest_of(left, 990, of_crash=True) == "\n… 10 bytes cut …\nfive\nsix\n"
    assert rest_of("five\nsix\n", 5, of_crash=True) == "six\n"


def test_a_mark_that_the_job_has_printed_itself_cuts_nothing() -> None:
    printed = "… 3,625 bytes cut …\none\ntwo\n"
    assert rest_of(printed, len("… 3,625 bytes cut …\none\n".encode())) == "two\n"
    long = "x" * (OUTPUT_LIMIT // 2 - 1) + f"\n{printed}"
    assert rest_of(long, OUTPUT_LIMIT // 2) == printed


def test_the_tee_finds_what_it_hears_in_the_output_already() -> None:
    found: list[str] = []
    output = Output()

    def look(text: str) -> None:
        found.append(output.text())

    output.tee = look
    output.write("one ")
    output.write("two")
    assert found == ["one ", "one two"]


def test_much_output_takes_little_memory() -> None:
    output = Output()
    for _ in range(200):
        output.write("x" * 100_000)
    output.write("the end")
    text = output.text()
    assert text.endswith("xxxthe end")
    assert "… 19,934,5" in text
    assert len(text.encode()) <= OUTPUT_LIMIT
    held = [len(value) for value in vars(output).values() if isinstance(value, bytearray)]
    assert sum(held) <= 2 * OUTPUT_LIMIT


def test_what_an_engine_could_not_store_is_replaced() -> None:
    assert cut("a\0b\udc80c", 1000) == "a\ufffdb?c"


def test_a_limit_without_room_for_the_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves no room for the truncation marker"):
        Output(limit=MIN_LIMIT - 1)


def test_prints_are_caught_and_the_streams_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    output = Output()
    with redirected(output):
        print("out")
        print("err", file=sys.stderr)
        sys.stdout.buffer.write(b"bytes \xff\n")
    assert (sys.stdout, sys.stderr) == before
    print("after")
    assert output.text() == "out\nerr\nbytes \ufffd\n"
    assert capsys.readouterr().out == "after\n"


def test_the_streams_come_back_after_a_job_that_replaced_or_closed_them() -> None:
    before = sys.stdout
    first, second = Output(), Output()
    with redirected(first):
        sys.stdout.close()
        sys.stdout = io.StringIO()
    assert sys.stdout is before
    with redirected(second):
        print("still here")
    assert second.text() == "still here\n"


def test_a_stream_kept_after_its_job_writes_to_the_real_one(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    with redirected(output):
        kept = sys.stdout
    print("late", file=kept)
    assert output.text() == ""
    assert capsys.readouterr().out == "late\n"


def test_a_task_left_over_from_a_job_does_not_write_into_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Output(), Output()
    with redirected(first):
        context = contextvars.copy_context()
    with redirected(second):
        context.run(print, "late")
    assert (first.text(), second.text()) == ("", "")
    assert capsys.readouterr().out == "late\n"


def test_a_stand_in_put_back_by_a_latecomer_does_not_write_to_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with redirected(Output()):
        stand_in = sys.stdout
    monkeypatch.setattr(sys, "stdout", stand_in)
    with redirected(Output()):
        pass
    print("not lost")
    assert capsys.readouterr().out == "not lost\n"


def test_a_thread_the_job_starts_is_caught_too() -> None:
    output = Output()
    with redirected(output):
        thread = threading.Thread(target=print, args=("from a thread",))
        thread.start()
        thread.join()
    assert output.text() == "from a thread\n"


def test_jobs_on_two_threads_keep_their_outputs_apart() -> None:
    before = sys.stdout
    outputs = [Output(), Output()]
    both = threading.Barrier(2, timeout=10)

    def job(number: int) -> None:
        with redirected(outputs[number]):
            both.wait()
            print(f"job {number}")
            both.wait()

    threads = [threading.Thread(target=job, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [output.text() for output in outputs] == ["job 0\n", "job 1\n"]
    assert sys.stdout is before


def test_the_tee_hears_everything_as_it_comes() -> None:
    heard: list[str] = []
    output = Output(limit=MIN_LIMIT, tee=heard.append)
    output.write("a" * 1000)
    output.write("b")
    assert heard == ["a" * 1000, "b"]


def test_a_tee_that_prints_prints_to_the_real_stream(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(tee=lambda text: print(f"job: {text}"))
    with redirected(output):
        sys.stdout.write("hello")
    assert output.text() == "hello"
    assert capsys.readouterr().out == "job: hello\n"


def test_a_tee_that_fails_is_not_asked_again_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    def broken(text: str) -> None:
        asked.append(text)
        raise BrokenPipeError

    output = Output(tee=broken)
    output.write("one ")
    output.write("two")
    assert output.text() == "one two"
    assert asked == ["one "]
    assert "live output stopped" in caplog.text


def test_a_subprocess_can_be_given_the_stream(capfd: pytest.CaptureFixture[str]) -> None:
    with redirected(Output()):
        subprocess.run(["echo", "from below"], stdout=sys.stdout, check=True)
    assert capfd.readouterr().out == "from below\n"


def test_kept_stand_ins_catch_for_jobs_only_and_leave_in_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    outputs = [Output(), Output()]
    with streams_installed():
        kept = sys.stdout
        for output in outputs:
            print("between")
            with redirected(output):
                assert sys.stdout is kept
                print("inside")
    assert (sys.stdout, sys.stderr) == before
    assert [output.text() for output in outputs] == ["inside\n", "inside\n"]
    assert capsys.readouterr().out == "between\nbetween\n"


def leave_a_stream_of_its_own() -> None:
    sys.stdout = io.StringIO()


def detach_the_stream() -> None:
    sys.stdout.detach()  # type: ignore[union-attr] # pyright: ignore


def change_how_the_stream_writes() -> None:
    sys.stderr.reconfigure(encoding="ascii", errors="strict")  # type: ignore[union-attr] # pyright: ignore


@pytest.mark.parametrize("spoil", [leave_a_stream_of_its_own, detach_the_stream, change_how_the_stream_writes])
def test_kept_stand_ins_survive_a_job_that_spoils_them(
    spoil: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr
    output = Output()
    with streams_installed():
        with redirected(Output()):
            spoil()
        print("between")
        with redirected(output):
            print("außen", file=sys.stderr)
            print("inside")
    assert (sys.stdout, sys.stderr) == before
    assert output.text() == "außen\ninside\n"
    assert capsys.readouterr().out == "between\n"


def test_a_program_that_redirects_between_jobs_gets_its_own_prints(capsys: pytest.CaptureFixture[str]) -> None:
    output, theirs, errors = Output(), io.StringIO(), io.StringIO()
    with streams_installed():
        with redirect_stdout(theirs), redirect_stderr(errors):
            print("theirs")
            with redirected(output):
                print("the job's")
            print("theirs again")
            print("an error", file=sys.stderr)
        print("outside")
    assert output.text() == "the job's\n"
    assert (theirs.getvalue(), errors.getvalue()) == ("theirs\ntheirs again\n", "an error\n")
    assert capsys.readouterr().out == "outside\n"


def test_stand_ins_that_several_keep_leave_with_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    output = Output()
    with redirected(output):
        with streams_installed():
            with streams_installed():
                pass
            assert sys.stdout is not before
        print("still caught")
    assert sys.stdout is before
    assert output.text() == "still caught\n"


def test_a_stream_the_program_has_put_there_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = io.StringIO()
    with streams_installed():
        monkeypatch.setattr(sys, "stdout", theirs)
    assert sys.stdout is theirs


def test_a_kept_stand_in_is_a_terminal_where_the_real_stream_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    with streams_installed():
        assert sys.stdout.isatty()
        with redirected(Output()):
            assert not sys.stdout.isatty()
