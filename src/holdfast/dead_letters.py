"""Dead letters as jobs: `DeadLetter`, the payload of a copy; the queue each copy goes to; and `hf.dead_letters`.

A copy is a job for the handler `dead-letter`, which the application defines. Workers create copies of the jobs that
die, in `worker/dead_letters.py`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from holdfast.clock import Clock, from_us
from holdfast.codec import encode_payload
from holdfast.errors import ConfigError, DefinitionError
from holdfast.values import ErrorInfo

if TYPE_CHECKING:
    from holdfast.definition import JobDefinition
    from holdfast.definition.builder import Enqueuer

DEAD_LETTER_KEY: Final = "dead-letter"
"""The key of the handler that receives the copies. Its own jobs are never copied."""


class DeadLetter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dead letter, as the handler `dead-letter` receives it in its parameter `letter`.

    A `partial` copy lacks the payload, the metadata and the traceback, because the message was not verified or the copy
    would be too large; the dead letter still has them. `id` is None if the application stored the letter itself.
    """

    id: str | None = None
    job: str | None = None
    queue: str
    payload: Any = None
    reason: str
    error: ErrorInfo | None = None
    attempts: int
    dead_at: datetime
    trace_id: str | None = None
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Any] = {}
    partial: bool = False


def copy_id(job_id: str, delivery: int) -> str:
    """The id of the copy of a job that died in this delivery, so that it is not copied twice."""
    from holdfast.definition.definition import check_id  # imported here: only dead letters need it

    try:
        return check_id(f"{job_id}:dead:{delivery}")
    except DefinitionError:  # too long
        import hashlib

        digest = hashlib.blake2b(f"{job_id}\0{delivery}".encode(errors="replace"), digest_size=16)
        return f"dead:{digest.hexdigest()}"


def copy_of(letter: DeadLetter, queue: str) -> "JobDefinition":
    """The definition of a copy: a job with this letter, in this queue."""
    from holdfast.definition import definition_of

    definition = definition_of(DEAD_LETTER_KEY, {"letter": letter}, {"queue": queue, "tags": letter.tags})
    return definition if letter.trace_id is None else definition.with_options(trace_id=letter.trace_id)


class DeadLetterQueues(Struct, frozen=True, kw_only=True):
    """The queues that receive copies of dead letters: those of every queue, or of one. An empty name means none."""

    default: str = ""
    by_queue: Mapping[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self.default) or any(self.by_queue.values())

    def of(self, queue: str) -> str | None:
        """The queue that receives copies of the dead letters of this queue."""
        return self.by_queue.get(queue, self.default) or None

    def check(self, routes: Mapping[str, str], default_backend: str) -> None:
        """Refuse a name that is not a valid queue name, and a queue that is in another backend than the dead letters:
        each is stored in one transaction with its copy.
        """
        if not self:
            return
        from holdfast.definition.definition import check_queue  # imported here: only dead letters need it

        for queue in filter(None, (self.default, *self.by_queue, *self.by_queue.values())):
            try:
                check_queue(queue)
            except DefinitionError as problem:
                raise ConfigError(str(problem)) from None
        for queue in (*self.by_queue, *routes):
            _check_backends(queue, self.of(queue), routes, default_backend)
        if self.default and (backend := routes.get(self.default, default_backend)) != default_backend:
            raise ConfigError(
                f"queue '{self.default}' is in backend '{backend}', so it cannot receive the dead letters of queues "
                f"in backend '{default_backend}'; set dead-letter-to to a queue in that backend"
            )


def _check_backends(queue: str, to: str | None, routes: Mapping[str, str], default_backend: str) -> None:
    ours, theirs = routes.get(queue, default_backend), routes.get(to or queue, default_backend)
    if ours != theirs:
        raise ConfigError(
            f"queue '{queue}' is in backend '{ours}', so its dead letters cannot be copied to queue '{to}' in backend "
            f"'{theirs}'; in dead-letter-queues, set {queue} to a queue in '{ours}', or to \"\" for no copies"
        )


class DeadLetters:
    """`hf.dead_letters`: stores the application's own dead letters."""

    def __init__(self, app: "Enqueuer", queues: DeadLetterQueues, clock: Clock, default_queue: str) -> None:
        self._app = app
        self._queues = queues
        self._default_queue = default_queue
        self._clock = clock

    def store(self, payload: object, handler: str, reason: str, attempts: int = 0, *, queue: str | None = None) -> str:
        """Enqueue a job for the handler `dead-letter`, as if a job of `queue` (default: the default queue) with this
        handler and payload had died. Returns its id.
        """
        _check_stored(handler, reason, attempts, queue)
        queue = queue or self._default_queue
        to = self._queues.of(queue)
        if to is None:
            raise ConfigError(
                f"no queue is configured for the dead letters of queue '{queue}', so nothing was stored; set one:  "
                "holdfast config set dead-letter-to failed_jobs"
            )
        letter = DeadLetter(
            job=handler,
            queue=queue,
            payload=encode_payload(payload),
            reason=reason,
            attempts=attempts,
            dead_at=from_us(self._clock.now_us()),
        )
        return self._app.enqueue(copy_of(letter, to))


def _check_stored(handler: str, reason: str, attempts: int, queue: str | None) -> None:
    """Refuse values that no job that died can have: the handler `dead-letter` must not have to expect them."""
    from holdfast.definition.definition import check_handler, check_queue  # imported here: only dead letters need it

    check_handler(handler)
    # Users may pass anything.
    if not isinstance(reason, str) or not reason.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"reason must be non-empty text, like 'the file has no such row', not {reason!r}")
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"attempts must be an integer, 0 or more, not {attempts!r}")
    if queue is not None:
        check_queue(queue)
