"""`holdfast enqueue --dry-run`: check the jobs and show them as they would be stored, without storing anything."""

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.app import Holdfast
from holdfast.cli.changing import MOST_SHOWN
from holdfast.cli.documents import PlannedDocument
from holdfast.cli.enqueue.options import EnqueueChoices
from holdfast.cli.enqueue.outlook import outlook
from holdfast.cli.enqueue.request import Asked, durable_backend, note_times
from holdfast.cli.job_documents import job_document
from holdfast.cli.job_options import trait_facts
from holdfast.cli.output import note, write, write_json, write_jsonl, write_names
from holdfast.cli.words import DEPENDS_ON
from holdfast.codec import decode_message, unseal, without_trace
from holdfast.deployment import job_defaults
from holdfast.errors import IdConflict, UnknownParent
from holdfast.handlers import COMMAND_KEY
from holdfast.queues.contract import Engine, check_parents
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.opening import Mode
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.units import format_duration
from holdfast.values import JobEnvelope, JobTraits, traits_of

# The members that decide whether two jobs with the same id are equal, except meta, and the backoff, which records do
# not contain.
_CONTENT: Final = (
    *("job", "payload", "queue", "max_retries", "timeout"),
    *(trait for trait in JobTraits.__struct_fields__ if trait not in ("meta", "trace_id")),
)


def rehearse(hf: Holdfast, jobs: Sequence[Asked], choices: EnqueueChoices, *, is_bulk: bool) -> int:
    """Check the jobs as if they were to be stored, and show them. The application's middleware is not called."""
    backend = durable_backend(hf, jobs)
    location = hf.deployment.location(backend)
    engine, keyring = _reading_engine(hf, backend)
    definitions, ids, names = [job.definition for job in jobs], [job.id for job in jobs], [job.where for job in jobs]
    with engine, hf.engines.replaced_by(engine, keyring):
        with hf.signed(definitions, ids, names=names, asks_middleware=False) as batch:
            _check_parents(engine, batch.envelopes)
            documents = [_planned(job, one) for job, one in zip(jobs, batch.envelopes, strict=True)]
        remarks = [
            *_taken(engine, documents),
            *outlook(engine, [(one.queue, one.job) for one in documents], app=choices.app),
        ]
    if choices.quiet:
        write_names(one.id for one in documents if one.id is not None)
        return 0
    if choices.as_jsonl:
        write_jsonl(documents)
    elif choices.as_json:
        write_json(documents if is_bulk else documents[0])
    elif is_bulk:
        for one in documents[:MOST_SHOWN]:
            write(f"would queue {one.id or 'a job'} on {one.queue}: {_what(one)}")
        if len(documents) > MOST_SHOWN:
            write(f"would queue {len(documents) - MOST_SHOWN:,} more")
    else:
        _print_facts(documents[0])
    note(f"  dry run: nothing was stored in {location}")
    note_times(jobs[0].definition, is_bulk=is_bulk)
    for remark in remarks:
        note(f"  {remark}")
    return 0


def _reading_engine(hf: Holdfast, backend: str) -> tuple[Engine, Keyring]:
    """The engine, opened to read. If there is no schema yet, an empty engine in memory stands in for it."""
    # A key of the usual length, so that a signed message has its real size.
    keyring = Keyring([SigningKey.generate()])
    envelopes = EnvelopeFactory(keyring, defaults=job_defaults(hf.settings))
    engine, _ = hf.deployment.open(backend, Mode.READ)
    try:
        has_schema = engine.describe().schema != 0
    except BaseException:
        engine.close()
        raise
    if not has_schema:
        engine.close()
        return MemoryEngine(envelopes), keyring
    engine.envelopes = envelopes
    return engine, keyring


def _check_parents(engine: Engine, envelopes: Sequence[JobEnvelope]) -> None:
    """Refuse jobs that wait for each other or for an unknown job, as without --dry-run."""
    check_parents(envelopes)
    known = {one.id for one in envelopes}
    for one in envelopes:
        for parent in one.after:
            if parent not in known and engine.get(parent) is None:
                raise UnknownParent(one.id, parent)


def _planned(job: Asked, envelope: JobEnvelope) -> PlannedDocument:
    message = decode_message(unseal(envelope.wire)[0])
    return PlannedDocument(
        id=job.id,
        queue=message.queue,
        job=message.job,
        created=False,
        delay=job.definition.delay,
        run_at=job.definition.run_at,
        expires_at=message.expires_at,
        dry_run=True,
        payload=msgspec.json.decode(message.payload),
        max_retries=message.max_retries,
        backoff=message.backoff,
        timeout=message.timeout,
        **{**traits_of(message), "meta": msgspec.json.decode(message.meta)},
    )


def _taken(engine: Engine, documents: Sequence[PlannedDocument]) -> list[str]:
    """A remark for each id that is in use. An id with other content is an error, as without --dry-run."""
    remarks: list[str] = []
    for one in documents:
        found = None if one.id is None else engine.get(one.id)
        if found is None or one.id is None:
            continue
        there = job_document(found.job)
        there["after"] = there.pop(DEPENDS_ON)
        if any(there[member] != getattr(one, member) for member in _CONTENT):
            raise IdConflict(one.id)
        if without_trace(there["meta"]) != without_trace(one.meta):
            raise IdConflict(one.id)
        remarks.append(
            f"{one.id} already exists ({found.job.state}), apparently with the same content; nothing would be added"
        )
    return remarks


def _print_facts(one: PlannedDocument) -> None:
    write(f"would queue {one.id or 'a job'} on {one.queue}")
    retries = f"{one.max_retries}, backoff {_json(one.backoff)}" if one.backoff is not None else f"{one.max_retries}"
    facts = {
        "job": one.job,
        "name": one.name,
        "payload": _json(one.payload),
        "priority": one.priority,
        "max retries": retries,
        "timeout": format_duration(one.timeout) if one.timeout else "none",
        "delay": None if one.delay is None else format_duration(one.delay),
        **trait_facts(one),
    }
    for label, value in facts.items():
        if value is not None:
            write(f"  {label:<12} {value}")


def _what(one: PlannedDocument) -> str:
    is_named = one.job == COMMAND_KEY and one.name is not None
    return f"{one.name}" if is_named else f"{one.job} {_json(one.payload)}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
