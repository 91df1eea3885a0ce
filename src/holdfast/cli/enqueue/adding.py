"""Adding the jobs of `holdfast enqueue`, all or none, and waiting for them."""

from collections.abc import Sequence

from holdfast.app import Batch, Holdfast
from holdfast.cli.documents import EnqueuedDocument
from holdfast.cli.endings import Shape, await_job, await_jobs
from holdfast.cli.enqueue.dry_run import rehearse
from holdfast.cli.enqueue.options import EnqueueChoices
from holdfast.cli.enqueue.outlook import outlook
from holdfast.cli.enqueue.request import Asked, Request, application, durable_backend, note_times
from holdfast.cli.output import note, write, write_json, write_jsonl, write_names
from holdfast.definition import JobDefinition
from holdfast.units import counted
from holdfast.values import Accepted, JobEnvelope


def act(choices: EnqueueChoices) -> int:
    """Add the jobs, or only show them, and return the exit code."""
    request = Request.of(choices)
    with application(choices) as hf:
        jobs = request.jobs(hf, choices)
        add = rehearse if choices.dry_run else _add
        return add(hf, jobs, choices, is_bulk=request.is_bulk)


def _add(hf: Holdfast, jobs: Sequence[Asked], choices: EnqueueChoices, *, is_bulk: bool) -> int:
    backend = durable_backend(hf, jobs)
    ids, names = [job.id for job in jobs], [job.where for job in jobs]
    with hf.signed([job.definition for job in jobs], ids, names=names) as batch:
        accepted = batch.accept()
    engine = batch.engine
    _print(batch, accepted, ids, choices, is_bulk=is_bulk)
    if not choices.quiet:
        note(f"  stored in {hf.deployment.location(backend)}")
        note_times(batch.definitions[0], is_bulk=is_bulk)
        for remark in outlook(engine, [(one.queue, one.job) for one in batch.envelopes], app=choices.app):
            note(f"  {remark}")
    if not choices.is_waiting:
        return 0
    limit_s, shape = choices.wait_s or 0.0, _shape(choices)
    if not is_bulk:
        return await_job(engine, accepted[0].id, limit_s, shape, app=choices.app)
    return await_jobs(engine, [one.id for one in accepted], limit_s, shape, app=choices.app)


def _shape(choices: EnqueueChoices) -> Shape:
    if choices.follow:
        return Shape.OUTPUT_JSONL if choices.as_jsonl else Shape.OUTPUT
    if choices.quiet:
        return Shape.NOTHING
    return Shape.JSON if choices.as_json else Shape.JSONL if choices.as_jsonl else Shape.RESULT


def _print(
    batch: Batch,
    accepted: Sequence[Accepted],
    ids: Sequence[str | None],
    choices: EnqueueChoices,
    *,
    is_bulk: bool,
) -> None:
    if choices.quiet:
        write_names(one.id for one in accepted)
    elif not (choices.as_json or choices.as_jsonl):
        # If the command waits, the results are its data; this line is only a note.
        (note if choices.is_waiting else write)(_accepted(batch, accepted, ids, is_bulk=is_bulk))
    elif not choices.is_waiting:
        documents = [_document(*each) for each in zip(batch.definitions, batch.envelopes, accepted, strict=True)]
        if choices.as_jsonl:
            write_jsonl(documents)
        else:
            write_json(documents if is_bulk else documents[0])


def _document(definition: JobDefinition, envelope: JobEnvelope, accepted: Accepted) -> EnqueuedDocument:
    return EnqueuedDocument(
        id=accepted.id,
        queue=envelope.queue,
        job=envelope.job,
        created=accepted.created,
        outcome=accepted.outcome,
        delay=definition.delay,
        run_at=definition.run_at,
        expires_at=definition.expires_at,
        dry_run=False,
    )


def _accepted(batch: Batch, accepted: Sequence[Accepted], ids: Sequence[str | None], *, is_bulk: bool) -> str:
    if is_bulk:
        created = sum(one.created for one in accepted)
        already = f", {len(accepted) - created:,} already existed" if created < len(accepted) else ""
        return f"✓ {counted(created, 'job')} queued{already}"
    definition, one = batch.definitions[0], accepted[0]
    if one.created:
        return f"✓ {one.id} queued on {batch.envelopes[0].queue}"
    if one.replaced:
        return f"✓ {one.id} already had the unique key; its payload and due time were replaced"
    if definition.unique is not False and one.id != ids[0]:
        return f"• {one.id} already has the unique key; nothing was added"
    return f"• {one.id} already exists with the same content; nothing was added"
