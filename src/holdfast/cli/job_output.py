"""Prints a job's output to stdout, attempt by attempt; that of a running attempt as it appears."""

from __future__ import annotations

from holdfast.cli.documents import LogDocument
from holdfast.cli.output import note, write_jsonl, write_output
from holdfast.cli.progress import StatusLine
from holdfast.cli.words import attempt_summary, instant
from holdfast.values import AttemptView, JobHistory, JobView, LiveOutput, Outcome


class JobOutput:
    """Prints the part of a job's output that it has not printed yet; with a `number`, only of that attempt.

    If it `follows` the job, it prints the output of a running attempt in parts, and the rest with the outcome when the
    attempt ends. As JSON, a finished attempt is one document with all its output, whatever parts came before.
    """

    def __init__(
        self, line: StatusLine, *, follows: bool = True, number: int | None = None, as_jsonl: bool = False
    ) -> None:
        self.line = line
        self.ended = 0
        """The number of finished attempts that have been printed."""
        self._follows = follows
        self._number = number
        self._as_jsonl = as_jsonl
        self._position = 0
        self._is_mid_line = False

    def show(self, history: JobHistory) -> None:
        """Print what is new since the last call."""
        for attempt in history.attempts[self.ended :]:
            self.ended += 1
            if self._number in (None, self.ended):
                self._print_ended(history.job.id, attempt)
            self._position = 0
        if history.live_output is not None and self._number in (None, self.ended + 1):
            self._print_live(history.job, history.live_output)

    def close(self) -> None:
        """End the current line and clear the status line."""
        self._end_line()
        self.line.clear()

    def _print_ended(self, job_id: str, attempt: AttemptView) -> None:
        record = attempt.record
        if self._as_jsonl:
            self.line.clear()
            write_jsonl([ended_document(job_id, self.ended, attempt)])
            return
        why = f": {record.error.line}" if record.error else ""
        end = f"#{self.ended} {attempt_summary(record)}{why}"
        if not self._follows:
            self._note(end)
            self._write(record.output)
            self._end_line()
            return
        if not self._position and record.output:
            self._note(f"#{self.ended} began at {instant(record.started_at)}")
        of_crash = record.outcome is Outcome.CRASHED
        self._write(_rest(record.output, self._position, of_crash=of_crash))
        self._end_line()
        self._note(end)

    def _print_live(self, job: JobView, live: LiveOutput) -> None:
        if live.end <= self._position:
            return
        missed = max(0, live.start - self._position)
        news = LiveOutput(text=_from_byte(live, self._position), start=self._position + missed)
        if self._as_jsonl:
            self.line.clear()
            write_jsonl([live_document(job, self.ended + 1, news)])
        else:
            if not self._position:
                self._note(f"#{self.ended + 1} is running")
            if missed:
                self._end_line()
                self._write(f"… {missed:,} bytes not shown …\n")
            self._write(news.text)
        self._position = live.end

    def _write(self, text: str) -> None:
        if text:
            self._is_mid_line = not text.endswith("\n")
            self.line.pass_by(text, write_output)

    def _end_line(self) -> None:
        if self._is_mid_line:
            self._write("\n")

    def _note(self, text: str) -> None:
        self.line.clear()
        note(text)


def ended_document(job_id: str, number: int, attempt: AttemptView) -> LogDocument:
    """The output of a finished attempt."""
    record = attempt.record
    return LogDocument(
        id=job_id,
        attempt=number,
        delivery=attempt.delivery,
        outcome=record.outcome,
        started_at=record.started_at,
        ended_at=record.ended_at,
        error=record.error,
        start=0,
        output=record.output,
    )


def live_document(job: JobView, number: int, live: LiveOutput) -> LogDocument:
    """The output of a running attempt."""
    return LogDocument(
        id=job.id,
        attempt=number,
        delivery=job.deliveries,
        outcome=None,
        started_at=None,
        ended_at=None,
        error=None,
        start=live.start,
        output=live.text,
    )


def _rest(output: str, position: int, *, of_crash: bool) -> str:
    if not position:
        return output
    from holdfast.execution.output import rest_of

    return rest_of(output, position, of_crash=of_crash)


def _from_byte(live: LiveOutput, position: int) -> str:
    return live.text.encode()[max(0, position - live.start) :].decode(errors="replace")
