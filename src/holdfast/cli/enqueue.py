"""`holdfast enqueue`: jobs from JSON, from a file, from lines on stdin, or from a command."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import click

from holdfast.cli.options import Span, WithWait, json_option, url_option, wait_option
from holdfast.cli.output import glyph, print_json, say
from holdfast.errors import ConfigError, DefinitionError
from holdfast.values import Accepted, JobEnvelope

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.definition import JobDefinition

MAX_INPUT_BYTES: Final = 4 * 1024**3


@click.command(cls=WithWait)
@click.argument("spec", nargs=-1, type=click.UNPROCESSED)
@click.option("--queue", "-q", metavar="NAME", help="The queue, instead of the one in the JSON.")
@click.option("--id", "job_id", metavar="ID", help="The id: enqueueing it again with the same content adds nothing.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 to 9, higher first.")
@click.option("--max-retries", type=click.IntRange(0, 1000), metavar="N", help="Retries after the first run.")
@click.option("--timeout", type=Span(), metavar="SPAN", help="The longest one attempt may take.")
@click.option("--delay", type=Span(), metavar="SPAN", help="Not before that long from now.")
@click.option("--fence", is_flag=True, help="Kill a run whose worker cannot prove its lease.")
@wait_option(alone="0", help="Wait that long for the job to end, and print its result.")
@url_option
@json_option
def enqueue(
    spec: tuple[str, ...],
    queue: str | None,
    job_id: str | None,
    priority: int | None,
    max_retries: int | None,
    timeout: float | None,
    delay: float | None,
    fence: bool,
    wait_s: float | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Add jobs: a JSON object, @FILE, - for JSON lines on stdin, or a command after --.

    All jobs of one call are added, or none.

    \b
    Examples:
      holdfast enqueue '{"id": "job1", "command": "sleep 2"}'
      holdfast enqueue '{"job": "send_mail", "payload": {"to": "ada@example.org"}, "priority": 8}'
      holdfast enqueue @jobs.jsonl
      make-jobs | holdfast enqueue -
      holdfast enqueue --queue nightly -- pg_dump shop
      holdfast enqueue --wait 5m '{"job": "resize", "payload": {"width": 640}}'
    """
    from holdfast.app import Holdfast
    from holdfast.cli.endings import await_job, await_jobs

    given = {
        "queue": queue,
        "id": job_id,
        "priority": priority,
        "max_retries": max_retries,
        "timeout": timeout,
        "delay": delay,
        "fence": fence or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    described = _read(spec)
    if not described:
        raise DefinitionError("there is nothing to enqueue: the list of jobs is empty")
    with Holdfast(url) as hf:
        if not hf.backend().capabilities.shared:
            raise ConfigError(f"jobs in {hf.location} end with this command: name an engine that keeps them")
        jobs = [_job(where, fields, options) for where, fields in described]
        with hf.enqueueing([job.definition for job in jobs]) as enqueueing:
            envelopes = _envelopes(hf, jobs, enqueueing.definitions)
            accepted = hf.backend().accept(envelopes)
            enqueueing.ids = [one.id for one in accepted]
        is_bulk, is_waiting = _is_bulk(spec), wait_s is not None
        if as_json and not is_waiting:
            _print_accepted(envelopes, accepted, is_bulk=is_bulk)
        elif not as_json:
            # What a job has come to is the data of a command that waits for it; the rest is remarks.
            click.echo(_accepted(envelopes, accepted, is_bulk=is_bulk), err=is_waiting)
        say(f"  kept in {hf.location}")
        if wait_s is None:
            return 0
        if is_bulk:
            return await_jobs(hf.backend(), [one.id for one in accepted], wait_s, as_json=as_json)
        return await_job(hf.backend(), accepted[0].id, wait_s, as_json=as_json)


class _Described(NamedTuple):
    """One job to enqueue, and where its description came from."""

    where: str
    definition: JobDefinition
    id: str | None


def _job(where: str, fields: Mapping[str, Any], options: Mapping[str, Any]) -> _Described:
    from holdfast.cli.spec import read_spec

    with _named(where):
        spec = read_spec(fields, options)
        return _Described(where, spec.definition(), spec.id)


@contextmanager
def _named(where: str) -> Generator[None]:
    """Let an error say which job it is about."""
    try:
        yield
    except DefinitionError as problem:
        raise type(problem)(f"{where}: {problem}") from problem


def _is_bulk(spec: tuple[str, ...]) -> bool:
    return len(spec) == 1 and (spec[0] == "-" or spec[0].lstrip().startswith(("@", "[")))


def _read(spec: tuple[str, ...]) -> list[tuple[str, Mapping[str, Any]]]:
    """The job descriptions, each with the place it came from, for messages."""
    from holdfast.codec import strict_json

    if not spec:
        raise click.UsageError("say what to enqueue: a JSON object, @FILE, - for stdin, or a command after --")
    if len(spec) == 1 and spec[0] == "-":
        return _split(sys.stdin.buffer.read(), "line")
    if len(spec) == 1 and spec[0].startswith("@"):
        path = Path(spec[0][1:])
        try:
            return _split(path.read_bytes(), f"{path}:")
        except OSError as problem:
            raise ConfigError(f"cannot read {path}: {problem.strerror}") from problem
    if len(spec) == 1 and spec[0].lstrip().startswith(("{", "[")):
        return _described(strict_json(spec[0].encode(errors="surrogateescape"), what="the job"), "the job")
    if spec[0].lstrip().startswith(("{", "[")):
        raise click.UsageError("one JSON text at a time: several jobs go into a list, a file (@FILE), or stdin (-)")
    if len(spec) == 1 and " " in spec[0].strip():
        raise click.UsageError(
            f"{spec[0]!r} is not JSON; a command goes after --, word by word:  holdfast enqueue -- {spec[0]}"
        )
    return [("the command", {"command": list(spec)})]


def _split(text: bytes, what: str) -> list[tuple[str, Mapping[str, Any]]]:
    """JSON lines, or one JSON array or object over several lines."""
    from holdfast.codec import strict_json

    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise DefinitionError("there is nothing to enqueue: the input is empty")
    one_document = text.lstrip().startswith(b"[") or (len(lines) > 1 and not lines[0][1].rstrip().endswith(b"}"))
    if one_document:
        return _described(strict_json(text, what="the input", limit=MAX_INPUT_BYTES), what)
    return [
        one
        for number, line in lines
        for one in _described(strict_json(line, what=f"{what} {number}"), f"{what} {number}")
    ]


def _described(value: object, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, dict):
        return [(where, cast("dict[str, Any]", value))]
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [one for place, item in enumerate(items, 1) for one in _described(item, f"{where} item {place}")]
    raise DefinitionError(f"{where}: a job is a JSON object, not {type(value).__name__}")


def _envelopes(hf: Holdfast, jobs: list[_Described], definitions: Sequence[JobDefinition]) -> list[JobEnvelope]:
    factory = hf.backend().envelopes
    envelopes: list[JobEnvelope] = []
    signed = list(zip(jobs, definitions, strict=True))
    with click.progressbar(signed, label="signing", file=sys.stderr, hidden=not _shows_progress(jobs)) as items:
        for job, definition in items:
            with _named(job.where):
                hf.check(definition)
                envelopes.append(factory.make(definition, id=job.id))
    return envelopes


def _shows_progress(jobs: list[_Described]) -> bool:
    return len(jobs) >= 1000 and sys.stderr.isatty()


def _print_accepted(envelopes: list[JobEnvelope], accepted: list[Accepted], *, is_bulk: bool) -> None:
    documents = [
        {"id": one.id, "queue": envelope.queue, "created": one.created}
        for envelope, one in zip(envelopes, accepted, strict=True)
    ]
    print_json(documents if is_bulk else documents[0])


def _accepted(envelopes: list[JobEnvelope], accepted: list[Accepted], *, is_bulk: bool) -> str:
    if is_bulk:
        created = sum(one.created for one in accepted)
        already = f", {len(accepted) - created:,} were there already" if created < len(accepted) else ""
        return f"{glyph('✓', '*')} {created:,} {'job' if created == 1 else 'jobs'} queued{already}"
    queue, one = envelopes[0].queue, accepted[0]
    if one.created:
        return f"{glyph('✓', '*')} {one.id} queued on {queue}"
    return f"{glyph('•', '-')} {one.id} is already there with the same content; nothing was added"
