"""Every exception Holdfast raises, in one tree.

HoldfastError
├── ConfigError                 a setting, URL, key or command-line value that cannot be used
│   └── SearchRejected          a search that cannot be parsed
├── DefinitionError             a job described in a way that cannot be enqueued
│   ├── PayloadRejected         the payload is not valid JSON, too large, too deep, or has invalid numbers
│   └── CommandForbidden        a command job whose program is not allowed
├── WireError                   bytes that are not a valid message
│   ├── EnvelopeRejected        the bytes cannot be decoded
│   ├── BadSignature            the signature does not match any key in the key ring
│   ├── UnknownKey              signed with a key that this process does not have
│   ├── NewerWire               written by a newer version of Holdfast
│   └── UnknownMember           has a member that this version of Holdfast does not know
├── HandlerError                a handler that cannot run jobs of this queue
│   ├── UnknownHandler          no handler is registered under that key
│   └── HandlerForbidden        the queue's allowlist does not include the handler
├── BackendError                the engine of a backend refused a request or failed
│   ├── BackendUnavailable      the engine is unavailable; the request may or may not have been applied
│   ├── IdConflict              the id belongs to a job with different content
│   ├── UniqueConflict          another job has the unique key
│   ├── UnknownParent           a job depends on a job that does not exist in the backend
│   ├── StateConflict           a condition on shared state did not hold
│   ├── NotSupported            the engine does not support this
│   ├── TransactionRefused      the job cannot be stored in the transaction passed as tx
│   ├── LeaseLost               the run no longer holds the lease on its job
│   ├── ForeignDatabase         the file or schema belongs to another program
│   └── SchemaTooNew            the schema was created by a newer version of Holdfast
├── RateLimited                 a rate limit has no token left; `retry_after` is when to try again
├── CircuitOpen                 a circuit breaker is open, so a call was not made
└── JobError                    a job has no result to return
    ├── UnknownJob              there is no record with that id
    ├── JobFailed               it is dead
    ├── JobCancelled            it was cancelled
    └── ResultGone              it completed, but its result cannot be read
"""

from holdfast.plaintext import abridged
from holdfast.units import format_duration


class HoldfastError(Exception):
    """The base class of every exception that Holdfast raises on purpose."""


class ConfigError(HoldfastError):
    """A setting, URL, key or command-line value that cannot be used; the message names it and says what to do."""


class SearchRejected(ConfigError):
    """A search that cannot be parsed; the message points at the column."""

    def __init__(self, problem: str, text: str, column: int) -> None:
        super().__init__(f"{problem}\n  {text}\n  {' ' * (column - 1)}^ column {column}")
        self.problem = problem
        self.column = column


class DefinitionError(HoldfastError):
    """A job described in a way that cannot be enqueued."""


class PayloadRejected(DefinitionError):
    """The payload is not valid JSON, too large, nested too deeply, or has a number that other languages cannot read."""


class CommandForbidden(DefinitionError):
    """A command job whose program is not allowed."""


class WireError(HoldfastError):
    """Bytes that are not a valid message."""


class EnvelopeRejected(WireError):
    """The bytes cannot be decoded as a message."""


class BadSignature(WireError):
    """The signature does not match any key in the key ring."""


class UnknownKey(WireError):
    """A message or schedule names a signing key that this process does not have."""

    def __init__(self, kid: str, *, what: str = "message") -> None:
        # The name comes from an unverified message: it is truncated, and escaped for terminals.
        super().__init__(f"the {what} was signed with key {kid[:64]!a}, which is not in this worker's key ring")
        self.kid = kid


class NewerWire(WireError):
    """The message was written by a newer version of Holdfast."""

    def __init__(self, version: int, known: int) -> None:
        super().__init__(
            f"the message has wire version {version}; this program supports up to {known}; upgrade this worker"
        )
        self.version = version


class UnknownMember(WireError):
    """The message has a member that only a newer version of Holdfast knows."""

    def __init__(self, name: str) -> None:
        # If signatures are switched off, the name may come from anyone: it is truncated, and escaped for terminals.
        super().__init__(
            f"the message has the member {name[:64]!a}, which this program does not know; upgrade this worker"
        )
        self.name = name


class HandlerError(HoldfastError):
    """A handler that cannot run jobs of this queue."""


class UnknownHandler(HandlerError):
    """No handler is registered under this key."""


class HandlerForbidden(HandlerError):
    """The queue's allowlist does not include this handler."""


class BackendError(HoldfastError):
    """The engine of a backend refused a request or failed."""


class BackendUnavailable(BackendError):
    """The engine of a backend is unavailable or stays busy. Retrying the same call is safe."""


class IdConflict(BackendError):
    """The id belongs to a job with different content; nothing was enqueued."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job '{job_id}' already exists with different content, so nothing was enqueued; "
            "choose another id, or leave it out to have one generated"
        )
        self.job_id = job_id


class UniqueConflict(BackendError):
    """Another job has the unique key, and `on_conflict` is `reject`; nothing was enqueued."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(f"job '{job_id}' already has the unique key '{key}', so nothing was enqueued")
        self.key = key
        self.job_id = job_id


class UnknownParent(BackendError):
    """A job depends on a job that does not exist in this backend; nothing was enqueued."""

    def __init__(self, job_id: str, parent: str, backends: tuple[str, str] | None = None) -> None:
        if backends is None:
            problem = (
                "does not exist in this backend, so nothing was enqueued; enqueue the parent first, and note that "
                "records of completed jobs are deleted after a while"
            )
        else:
            ours, theirs = backends
            problem = (
                f"is in backend '{theirs}', so nothing was enqueued; a job can depend only on jobs in its own backend, "
                f"'{ours}'"
            )
        super().__init__(f"job '{job_id}' depends on '{parent}', which {problem}")
        self.job_id = job_id
        self.parent = parent


class StateConflict(BackendError):
    """A condition on shared state did not hold, so nothing was changed. Read the state again before retrying."""


class NotSupported(BackendError):
    """The engine does not support this, as its capabilities declare."""


class TransactionRefused(BackendError):
    """The job cannot be stored in the transaction that was passed; the message says what can be passed."""


class LeaseLost(BackendError):
    """This run no longer holds the lease on its job: the lease has expired, or an operator cancelled the job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"lost the lease on job '{job_id}'; its transaction was not committed")
        self.job_id = job_id


class ForeignDatabase(BackendError):
    """The file or schema belongs to another program; Holdfast does not write to it unless asked to."""


class SchemaTooNew(BackendError):
    """The schema was created by a newer version of Holdfast."""


class RateLimited(HoldfastError):
    """A rate limit has no token left. If a handler raises it, its job runs again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class CircuitOpen(HoldfastError):
    """A circuit breaker is open, so a call was not made. If a job raises it, the job runs again after `retry_after`
    seconds, and no attempt is counted.
    """

    def __init__(self, name: str, retry_after: float) -> None:
        super().__init__(
            f"the circuit '{abridged(name)}' is open, so the call was not made; retry in {format_duration(retry_after)}"
        )
        self.name = name
        self.retry_after = retry_after


class JobError(HoldfastError):
    """A job has no result to return."""


class UnknownJob(JobError):
    """There is no record with this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"there is no job '{abridged(job_id)}'; it was never accepted, or its record has been pruned or deleted"
        )
        self.job_id = job_id


class JobFailed(JobError):
    """The job is dead; the message contains its last error."""


class JobCancelled(JobError):
    """The job was cancelled; the message contains the reason."""


class ResultGone(JobError):
    """The job completed, but its result was not stored, was deleted, or cannot be decoded."""
