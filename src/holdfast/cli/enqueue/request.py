"""The jobs that `holdfast enqueue` is to add: words, JSON or a command, turned into definitions."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click
import msgspec

from holdfast.app import Holdfast
from holdfast.cli.arguments import Argument, located, parse_arguments, typed, untyped
from holdfast.cli.enqueue.descriptions import Description, is_bulk, is_json, read_json
from holdfast.cli.enqueue.instants import ahead
from holdfast.cli.enqueue.options import EnqueueChoices
from holdfast.cli.options import deployment_at
from holdfast.cli.output import note
from holdfast.cli.spec import read_spec
from holdfast.definition import JobDefinition
from holdfast.definition.definition import check_id
from holdfast.errors import ConfigError, DefinitionError, UnknownHandler
from holdfast.handlers import COMMAND_KEY
from holdfast.queues.addresses import kind_of
from holdfast.queues.engines.kinds import Home


class Asked(NamedTuple):
    """One job to enqueue, where its description came from, and its id if it was given."""

    where: str
    definition: JobDefinition
    id: str | None


class Request(NamedTuple):
    """The request on the command line, read but not yet checked."""

    descriptions: list[Description]
    arguments: dict[str, Argument] | None
    is_bulk: bool

    @classmethod
    def of(cls, choices: EnqueueChoices) -> "Request":
        words = choices.words if choices.file is None else (f"@{choices.file}",)
        if choices.command is not None:
            return cls([Description("", {"command": choices.command})], None, is_bulk=False)
        if is_json(words):
            described = read_json(words, may_ask=not choices.no_input)
            if choices.job is not None:
                described = [Description(where, {"job": choices.job, "payload": one}) for where, one in described]
            return cls(described, None, is_bulk(words))
        if choices.job is not None:
            described = [Description("", {"job": choices.job})]
            return cls(described, parse_arguments(words), is_bulk=False)
        if not words:
            raise click.UsageError(
                "nothing to enqueue; pass --job KEY with its arguments, a JSON object, @FILE, - for stdin, "
                "or a command after --"
            )
        if len(words) == 1 and " " in words[0].strip():
            raise click.UsageError(
                f"{words[0]!r} is not JSON; pass a command after --, with each argument as a separate word:  "
                f"holdfast enqueue -- {words[0]}"
            )
        # The user may have meant a job with its arguments. The hint is shown only if the command is refused.
        is_job_like = "=" in " ".join(words[1:2])
        where = "the command (pass a job with its arguments after --job)" if is_job_like else ""
        return cls([Description(where, {"command": list(words)})], None, is_bulk=False)

    def jobs(self, hf: Holdfast, choices: EnqueueChoices) -> list[Asked]:
        """The jobs, checked against the application if it is known."""
        if not self.descriptions:
            raise DefinitionError("nothing to enqueue: the list of jobs is empty")
        if "id" in choices.options and len(self.descriptions) > 1:
            raise click.UsageError(f"--id names one job, but there are {len(self.descriptions):,}")
        if choices.follow and self.is_bulk:
            raise click.UsageError(
                "--follow works for one job only; enqueue them, then follow one with  holdfast logs -f ID"
            )
        overriding, is_checked = choices.fields(), choices.app is not None
        return [self._job(hf, one, overriding, is_checked=is_checked) for one in self.descriptions]

    def _job(self, hf: Holdfast, described: Description, overriding: Mapping[str, Any], *, is_checked: bool) -> Asked:
        with named(described.where):
            fields, arguments = dict(described.fields), self.arguments
            if arguments is not None:
                key = str(fields["job"])
                is_known = is_checked and key in hf.registry.keys()  # noqa: SIM118 - not a dict
                fields["payload"] = (
                    typed(arguments, hf.registry.resolve(key).payload_type, job=key) if is_known else untyped(arguments)
                )
            spec = read_spec(fields, overriding)
            made = hf.jobs.get(spec.job) if isinstance(spec.job, str) else None
            definition = spec.definition(None if made is None else made.template)
            if is_checked and definition.handler != COMMAND_KEY:
                _check_handler(hf, definition)
            return Asked(described.where, definition, spec.id if spec.id is None else check_id(spec.id))


def application(choices: EnqueueChoices) -> Holdfast:
    """The application that was named, or else one that only knows the backends."""
    if choices.app is None:
        return Holdfast(deployment=deployment_at(choices.url))
    # Imported here: most calls do not need it.
    from holdfast.loading import load_app

    hf = load_app(choices.app)
    if choices.url is not None:
        hf.engines.move_to(hf.deployment.at(choices.url))  # the module may have opened a backend on import
    return hf


def _check_handler(hf: Holdfast, definition: JobDefinition) -> None:
    """Refuse an unknown handler, one that the queue does not allow, and a payload that it cannot decode."""
    try:
        handler = hf.registry.resolve_for(definition.handler, definition.queue or hf.settings.default_queue)
    except UnknownHandler as problem:
        raise DefinitionError(str(problem)) from None
    try:
        handler.decode(bytes(definition.payload))
    except msgspec.ValidationError as problem:
        raise DefinitionError(f"job '{definition.handler}' does not accept this payload: {located(problem)}") from None


@contextmanager
def named(where: str) -> Generator[None]:
    """Put the origin of the job in front of an error, unless it is empty."""
    try:
        yield
    except DefinitionError as problem:
        raise type(problem)(f"{where}: {problem}" if where else str(problem)) from problem


def durable_backend(hf: Holdfast, jobs: Sequence[Asked]) -> str:
    """The backend of these jobs. One that only lives in this process is refused."""
    name = hf.backend_of([job.definition for job in jobs])
    if kind_of(hf.deployment.url(name)).home is Home.PROCESS:
        location = hf.deployment.location(name)
        raise ConfigError(
            f"jobs in {location} would be lost when this command exits; choose an engine that stores them"
        )
    return name


def note_times(definition: JobDefinition, *, is_bulk: bool) -> None:
    """Print the times as they were understood, unless there may be several jobs."""
    if is_bulk:
        return
    now = datetime.now(UTC)
    with suppress(OverflowError):
        if definition.run_at is not None:
            late = "; this time has already passed, so the job is due now" if definition.run_at <= now else ""
            note(f"  due {ahead(definition.run_at, now)}{late}")
        if definition.expires_at is not None:
            late = (
                "; this time has already passed, so the job will not be started" if definition.expires_at <= now else ""
            )
            note(f"  expires {ahead(definition.expires_at, now)}{late}")
