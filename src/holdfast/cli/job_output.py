"""What a job prints, on our own stdout: attempt by attempt, and of the one that is running as it comes."""

from __future__ import annotations

import sys

import click

from holdfast.cli.documents import LogDocument
from holdfast.cli.output import instant, plain, print_jsonl, say, span
from holdfast.cli.progress import StatusLine
from holdfast.values import AttemptView, JobHistory, LiveOutput, Outcome, cut_mark


class JobOutput:
    """Prints of a job's output what it has not printed yet; with a `number`, only of that attempt.

    What a running attempt prints comes in parts, the rest when it has ended. As JSON, an attempt that has ended is one
    document with all of its output, whatever parts came before it.
    """

    def __init__(self, line: StatusLine, *, number: int | None = None, as_jsonl: bool = False) -> None:
        self.ended = 0
        """How many attempts have ended, and been printed."""
        self.line = line
        self._number = number
        self._as_jsonl = as_jsonl
        self._position = 0
        self._is_mid_line = False

    def show(self, history: JobHistory) -> None:
        """Print what is new since the last time."""
        for attempt in history.attempts[self.ended :]:
            self.ended += 1
            if self._number in (None, self.ended):
                self._print_ended(attempt)
            self._position = 0
        if history.live_output is not None and self._number in (None, self.ended + 1):
            self._print_live(history.job.deliveries, history.live_output)

    def close(self) -> None:
        """Leave nothing behind but whole lines."""
        self._end_line()
        self.line.clear()

    def _print_ended(self, attempt: AttemptView) -> None:
        record = attempt.record
        if self._as_jsonl:
            self.line.clear()
            print_jsonl([ended_document(self.ended, attempt)])
            return
        header = f"#{self.ended} {record.outcome} at {instant(record.started_at)}, took {span(record.duration_s)}"
        if self._position:
            from holdfast.execution.output import rest_of

            of_crash = record.outcome is Outcome.CRASHED
            self._write(rest_of(record.output, self._position, of_crash=of_crash))
            self._end_line()
            self._say(header)
        else:
            self._say(header)
            self._write(record.output)
            self._end_line()

    def _print_live(self, delivery: int, live: LiveOutput) -> None:
        if live.end <= self._position:
            return
        if self._as_jsonl:
            self.line.clear()
            news = LiveOutput(text=_from_byte(live, self._position), start=max(live.start, self._position))
            print_jsonl([live_document(self.ended + 1, delivery, news)])
        else:
            if not self._position:
                self._say(f"#{self.ended + 1} is running")
            if live.start > self._position:
                self._end_line()
                self._write(f"{cut_mark(live.start - self._position)}\n")
            self._write(_from_byte(live, self._position))
        self._position = live.end

    def _write(self, text: str) -> None:
        if text:
            self._is_mid_line = not text.endswith("\n")
            self.line.pass_by(plain(text), _to_stdout)

    def _end_line(self) -> None:
        if self._is_mid_line:
            self._write("\n")

    def _say(self, text: str) -> None:
        self.line.clear()
        say(text)


def ended_document(number: int, attempt: AttemptView) -> LogDocument:
    """What an attempt has printed that has ended."""
    record = attempt.record
    return LogDocument(
        attempt=number,
        delivery=attempt.delivery,
        outcome=record.outcome,
        started_at=record.started_at,
        ended_at=record.ended_at,
        start=0,
        output=record.output,
    )


def live_document(number: int, delivery: int, live: LiveOutput) -> LogDocument:
    """What an attempt has printed that is running."""
    return LogDocument(
        attempt=number,
        delivery=delivery,
        outcome=None,
        started_at=None,
        ended_at=None,
        start=live.start,
        output=live.text,
    )


def _from_byte(live: LiveOutput, position: int) -> str:
    return live.text.encode()[max(0, position - live.start) :].decode(errors="replace")


def _to_stdout(text: str) -> None:
    click.echo(text, nl=False)
    sys.stdout.flush()
