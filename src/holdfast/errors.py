"""Every exception Holdfast raises, in one tree.

HoldfastError
├── ConfigError                 a setting, URL, key or command-line value that cannot be used
│   └── SearchRejected          a search that cannot be understood
├── DefinitionError             a job described in a way that cannot be enqueued
│   ├── PayloadRejected         the payload is not what may travel: shape, size, depth, numbers
│   └── CommandForbidden        a command job whose program nobody has allowed
├── WireError                   bytes that are not a message of ours
│   ├── EnvelopeRejected        undecodable
│   ├── BadSignature            no key of the ring made this signature
│   ├── UnknownKey              signed with a key this process does not have
│   ├── NewerWire               written by a newer Holdfast
│   └── UnknownMember           has a member that this version of Holdfast does not know
├── HandlerError
│   ├── UnknownHandler          no handler under that key here
│   └── HandlerForbidden        the queue's allowlist does not name the handler
├── BackendError
│   ├── BackendUnavailable      the engine cannot be reached or stays busy; nothing is known to have changed
│   ├── IdConflict              the id is taken by a job with other content
│   ├── StateConflict           a condition on shared state did not hold
│   ├── NotSupported            the engine declares that it cannot do this
│   ├── TransactionRefused      what was given as tx cannot carry the job
│   ├── LeaseLost               the run is no longer its worker's to complete
│   ├── ForeignDatabase         the file or schema is not ours to write
│   └── SchemaTooNew            the schema was written by a newer Holdfast
└── JobError                    what a caller learns of a job that did not complete
    ├── UnknownJob              no record under that id
    ├── JobFailed               it is dead
    ├── JobCancelled            it was cancelled
    └── ResultGone              it completed, but the result is no longer kept
"""

from holdfast.plaintext import abridged


class HoldfastError(Exception):
    """The root: catching it catches everything Holdfast raises on purpose."""


class ConfigError(HoldfastError):
    """A setting, URL, key or value that cannot be used; the message names it and says what to do."""


class SearchRejected(ConfigError):
    """A search that cannot be understood; the message points at the column."""

    def __init__(self, problem: str, text: str, column: int) -> None:
        super().__init__(f"{problem}\n  {text}\n  {' ' * (column - 1)}^ column {column}")
        self.problem = problem
        self.column = column


class DefinitionError(HoldfastError):
    """A job described in a way that cannot be enqueued."""


class PayloadRejected(DefinitionError):
    """The payload may not travel: not JSON, too large, too deep, or a number no other language could read."""


class CommandForbidden(DefinitionError):
    """A command job whose program has not been allowed."""


class WireError(HoldfastError):
    """Bytes that are not a message of ours."""


class EnvelopeRejected(WireError):
    """The bytes cannot be decoded as a message."""


class BadSignature(WireError):
    """The signature was made by none of our keys."""


class UnknownKey(WireError):
    """The message names a signing key this process does not have."""

    def __init__(self, kid: str) -> None:
        # The name comes from a message nobody vouches for: it may be long, and may hold what a terminal would obey.
        super().__init__(f"the message was signed with key {kid[:64]!a}, which is not in this worker's key ring")
        self.kid = kid


class NewerWire(WireError):
    """The message was written by a newer Holdfast than this one."""

    def __init__(self, version: int, known: int) -> None:
        super().__init__(f"the message has wire version {version}; this program knows {known}: upgrade this worker")
        self.version = version


class UnknownMember(WireError):
    """The message has a member that only a newer Holdfast knows."""

    def __init__(self, name: str) -> None:
        # If signatures are switched off, the name may come from anyone: it is truncated, and escaped for terminals.
        super().__init__(
            f"the message has the member {name[:64]!a}, which this program does not know: upgrade this worker"
        )
        self.name = name


class HandlerError(HoldfastError):
    """A handler key that cannot be resolved for a queue."""


class UnknownHandler(HandlerError):
    """No handler is registered under this key."""


class HandlerForbidden(HandlerError):
    """The queue's allowlist does not name this handler."""


class BackendError(HoldfastError):
    """Something the engine said or could not do."""


class BackendUnavailable(BackendError):
    """The engine cannot be reached or stays busy; retrying the same call is safe."""


class IdConflict(BackendError):
    """The id is taken by a job with other content; nothing was enqueued."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job '{job_id}' already exists with other content; nothing was enqueued: "
            "choose another id, or leave the id out and one is made"
        )
        self.job_id = job_id


class StateConflict(BackendError):
    """A condition on shared state did not hold, so the call changed nothing; read the state again before retrying."""


class NotSupported(BackendError):
    """The engine declares in its capabilities that it cannot do this."""


class TransactionRefused(BackendError):
    """What was given as the caller's transaction cannot carry the job; the message says what could."""


class LeaseLost(BackendError):
    """This run no longer holds its job: somebody else may, or an operator has taken it away."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job '{job_id}' is no longer this run's: nothing of its transaction was kept")
        self.job_id = job_id


class ForeignDatabase(BackendError):
    """The file or schema belongs to something else; Holdfast will not write to it unasked."""


class SchemaTooNew(BackendError):
    """The schema was written by a newer Holdfast."""


class JobError(HoldfastError):
    """What a caller learns of a job that did not complete."""


class UnknownJob(JobError):
    """There is no record under this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"no job '{abridged(job_id)}' is known here: "
            "it was never accepted, or its record has been pruned or deleted"
        )
        self.job_id = job_id


class JobFailed(JobError):
    """The job is dead; the message carries its last error."""


class JobCancelled(JobError):
    """The job was cancelled; the message carries the reason."""


class ResultGone(JobError):
    """The job completed, but its result is no longer kept."""
