"""`Exchanger`: the thread of a worker that settles one batch of jobs, claims the next and admits it.

Everything that may block on the engine runs here, so that the worker's loop can still read the results of its
children, enforce their timeouts and serve the probes while the engine is unavailable.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import SimpleQueue
from typing import Final, NamedTuple

from msgspec import Struct

from holdfast.errors import BackendError, BackendUnavailable, IdConflict
from holdfast.queues.contract import Engine, new_owner_token
from holdfast.state.limits import Start, waits_of
from holdfast.units import counted
from holdfast.values import Entered, Entry, EntryOutcome, JobLease, Settlement, WorkerResult
from holdfast.worker.admission import Admission, Admitted, Refusal
from holdfast.worker.backoff import EngineBackoff
from holdfast.worker.circuits import QueueCircuits
from holdfast.worker.dead_letters import without_copy
from holdfast.worker.round_robin import RoundRobin
from holdfast.worker.throttle import Throttle
from holdfast.worker.verdict import has_run, released
from holdfast.worker.wake_pipe import WakePipe

log = logging.getLogger("holdfast.exchanger")

# How long a burst waits for a hint that a queue without tokens has jobs; if it has some, the hint comes at once.
BURST_LOOK_S: Final = 1.0
# How long a request waits while a circuit is open, if it would otherwise not wait.
REFUSED_WAIT_S: Final = 0.1


class EngineRequest(Struct, frozen=True, kw_only=True):
    """Settle these, then claim jobs up to the limit of each queue, waiting up to `wait_s` for the first. `is_burst`:
    the worker stops when no job is due.
    """

    settlements: Sequence[Settlement] = ()
    limits: Mapping[str, int] = {}
    wait_s: float = 0.0
    is_burst: bool = False


class EngineAnswer(Struct, frozen=True, kw_only=True):
    """The result of a request. `held` is None for a settlement without an answer before its lease expired.

    `is_limited` is set if a queue waits for its rate limit, and so may have jobs that were not claimed. `news` are
    limits that were reached. `is_refused`: a circuit is open, so at least one queue was not claimed from.
    """

    request: EngineRequest
    held: Sequence[bool | None] = ()
    admitted: Admitted = Admitted()
    problem: Exception | None = None
    is_limited: bool = False
    news: Sequence[WorkerResult] = ()
    is_refused: bool = False


class Claim(NamedTuple):
    """A claim from a queue: its token, and how many jobs it asks for. Those have their tokens of the rate limit."""

    queue: str
    limit: int
    token: str


class Exchanger:
    """Processes one request at a time. Both callbacks are called on its thread.

    `on_claimed` receives leases as soon as they are claimed, so that they are renewed while they are admitted.
    `on_answer` must only pass the answer on.
    """

    def __init__(
        self,
        backend: Engine,
        turns: RoundRobin,
        *,
        session: bytes,
        admission: Admission,
        backoff: EngineBackoff,
        throttle: Throttle,
        circuits: QueueCircuits,
        recalls: bool = True,
        on_claimed: Callable[[Sequence[JobLease]], None],
        on_answer: Callable[[EngineAnswer], None],
        fence_at: Callable[[JobLease], float],
    ) -> None:
        self._backend = backend
        self._turns = turns
        self._session = session
        self._admission = admission
        self._backoff = backoff
        self._throttle = throttle
        self._circuits = circuits
        # A burst must not wait for a circuit of a queue that may be empty.
        self._recalls = recalls
        circuits.on_ready = self.nudge
        # The claims that were given up without an answer: they may have been applied.
        self._unanswered: dict[str, Claim] = {}
        self._on_claimed = on_claimed
        self._on_answer = on_answer
        self._fence_at = fence_at
        self._requests: SimpleQueue[EngineRequest | None] = SimpleQueue()
        self._pipe = WakePipe()
        self._is_leaving = threading.Event()
        self._is_hurried = threading.Event()
        self._is_unchecked = False
        self._thread = threading.Thread(target=self._run, name="holdfast-exchanger", daemon=True)
        self._thread.start()

    def ask(self, request: EngineRequest) -> None:
        """Queue a request. The one before it must have been answered."""
        self._requests.put(request)

    def nudge(self) -> None:
        """Stop waiting for jobs and answer now: there is something to settle."""
        self._pipe.wake()

    def leave(self) -> None:
        """Stop repeating claims: the worker wants no more jobs."""
        self._is_leaving.set()
        self.nudge()

    def hurry(self) -> None:
        """Also stop repeating settlements: the worker must exit."""
        self._is_hurried.set()
        self.leave()

    def close(self, timeout_s: float) -> None:
        """End the thread. If it is blocked on the engine, give up on it after `timeout_s`."""
        self._requests.put(None)
        self.hurry()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._pipe.close()

    def _run(self) -> None:
        if self._recalls:
            self._recall()
        while (request := self._requests.get()) is not None:
            answer = self._process(request)
            self._pipe.drain()
            self._on_answer(answer)

    def _recall(self) -> None:
        try:
            self._circuits.recall(self._turns.queues)
        except BackendError as problem:
            log.debug("could not read the circuits of the queues: %s", problem)

    def _process(self, request: EngineRequest) -> EngineAnswer:
        held: Sequence[bool | None] = [None] * len(request.settlements)
        leases: list[JobLease] = []
        self._is_unchecked = False
        try:
            if request.settlements:
                held, leases, has_asked = self._settle(request)
                if not leases and request.limits and (len(request.limits) > 1 or not has_asked):
                    leases = self._claim(request.limits)
            elif request.limits:
                leases = self._claim(request.limits)
            is_refused = not leases and len(self._admitted(request.limits)) < len(request.limits)
            if not leases and request.limits and (request.wait_s > 0 or (is_refused and not request.settlements)):
                leases = self._wait_for_work(request)
            admitted = self._admit(leases) if leases else Admitted()
            self._throttle.refund()
            is_limited, news = self._is_limited(request, admitted), self._throttle.news()
            return EngineAnswer(
                request=request, held=held, admitted=admitted, is_limited=is_limited, news=news, is_refused=is_refused
            )
        except Exception as problem:
            if isinstance(problem, BackendError):
                log.warning("could not claim jobs; any that were already claimed are released: %s", problem)
            else:
                log.exception("could not claim jobs; any that were already claimed are released")
            self._throttle.refund()
            # Settlements that are already answered keep their answers, and claimed jobs are released.
            return EngineAnswer(request=request, held=held, admitted=self._released(leases), problem=problem)

    def _is_limited(self, request: EngineRequest, admitted: Admitted) -> bool:
        """Whether a queue waits for its rate limit, or for a check of it. In a burst, it must also have jobs."""
        waiting = self._at_limit(request)
        is_idle = not admitted and not request.settlements
        if self._is_unchecked or not waiting or not (request.is_burst and is_idle):
            return self._is_unchecked or bool(waiting)
        began = time.monotonic()
        try:
            self._backend.wait_for_work(waiting, BURST_LOOK_S, wake=self._pipe.fileno())
        except BackendUnavailable as problem:
            self._back_off(problem, "check for jobs", self._is_leaving)
            return True
        return time.monotonic() < began + BURST_LOOK_S

    def _at_limit(self, request: EngineRequest) -> list[str]:
        """The queues of this request that have reached their rate limits."""
        return [queue for queue in request.limits if self._throttle.has_reached(queue)]

    def _admit(self, leases: Sequence[JobLease]) -> Admitted:
        self._on_claimed(leases)
        admitted = self._admission.admit(leases, self._enter, self._pay)
        # Refused jobs are settled later, and their tokens are returned then.
        self._throttle.owe(leases[0].queue, len(admitted.blocked) + len(admitted.lost))
        return admitted

    def _enter(self, entries: Sequence[Entry]) -> list[Entered]:
        """Let jobs enter their slots, retrying for a short time while the engine is unavailable: other jobs wait."""
        try:
            what = f"enter the slots of {counted(len(entries), 'job')}"
            return self._backoff.insist(lambda: self._backend.enter(entries), what, wait=self._is_hurried.wait)
        except BackendUnavailable:
            raise
        except Exception:
            if len(entries) == 1:
                log.exception(
                    "job %s: could not enter its slots; it will be reaped when its lease expires",
                    entries[0].lease.id,
                )
                return [Entered(outcome=EntryOutcome.LOST)]
            log.exception("%d jobs could not enter their slots; retrying each job separately", len(entries))
            return [answer for entry in entries for answer in self._enter([entry])]

    def _pay(self, starts: Sequence[Start]) -> list[float]:
        """Take tokens for jobs with a rate limit. Tokens whose answer is lost are lost until the bucket refills."""
        what = f"take the tokens of {counted(len(starts), 'job')}"
        return self._backoff.insist(lambda: waits_of(self._backend.state, starts), what, wait=self._is_hurried.wait)

    def _released(self, leases: Sequence[JobLease]) -> Admitted:
        now_us = self._backend.clock.now_us()
        returns = [released(lease, now_us, "it could not be admitted", unstarted=True) for lease in leases]
        return Admitted(refusals=[Refusal(settlement=one) for one in returns])

    def _wait_for_work(self, request: EngineRequest) -> list[JobLease]:
        give_up_at = time.monotonic() + (request.wait_s or REFUSED_WAIT_S)
        while (left := give_up_at - time.monotonic()) > 0:
            self._throttle.refund()
            began, until_token = time.monotonic(), self._throttle.next_token_in(request.limits)
            left = left if until_token is None else min(left, until_token)
            # Not for jobs of the other queues, for which there is no room: they would end the wait at once.
            queues = self._admitted(request.limits)
            if refused := [queue for queue in request.limits if queue not in queues]:
                left = min(left, self._circuits.wait_s(refused))
            try:
                self._wait(queues, left)
            except BackendUnavailable as problem:
                self._back_off(problem, "claim jobs", self._is_leaving)
            if self._pipe.drain():
                self.nudge()  # the settlements must not wait for the answer of `_is_limited` either
                break
            self._throttle.waited(in_vain=time.monotonic() >= began + left)
            leases = self._claim(request.limits)
            # A burst waits for tokens, and not for jobs once it has them.
            if leases or (request.is_burst and until_token is not None and not self._at_limit(request)):
                return leases
        return []

    def _wait(self, among: Sequence[str], seconds: float) -> None:
        """Wait for jobs of those of these queues that have tokens: jobs of the others would end the wait at once."""
        queues = [queue for queue in among if not self._throttle.is_waiting(queue)]
        if queues:
            self._backend.wait_for_work(queues, seconds, wake=self._pipe.fileno())
        else:
            self._backend.clock.wait(seconds, [self._pipe.fileno()])

    def _admitted(self, queues: Iterable[str]) -> list[str]:
        """Those of these queues whose circuits are not open."""
        return [queue for queue in queues if self._circuits.admits(queue)]

    def _settle(self, request: EngineRequest) -> tuple[list[bool | None], list[JobLease], bool]:
        """Settle, and claim in the same transaction from the queue whose turn it is. Returns the answers, the claimed
        jobs, and whether a queue was asked for jobs.

        A settlement without an answer is repeated, with the same tokens, until it is answered or its lease expires.
        """
        settlements = request.settlements
        answers: list[bool | None] = [None] * len(settlements)
        open_: Sequence[int] = range(len(settlements))
        claim = self._next_claim(request.limits)
        # If a circuit is open, the next request claims: an answer to the settlements may have closed it by then.
        has_asked = claim is not None or len(self._admitted(request.limits)) < len(request.limits)
        leases: list[JobLease] = []
        while open_:
            batch = settlements if len(open_) == len(settlements) else [settlements[at] for at in open_]
            try:
                if claim is not None:
                    queue, limit, token = claim
                    held, leases = self._backend.exchange(batch, queue, limit, owner_token=token)
                    self._took(claim, leases)
                else:
                    held = self._backend.settle(batch)
            except BackendUnavailable as problem:
                if claim is not None and not self._goes_on(claim, problem):
                    claim = None  # the settlements are repeated without a claim
                self._back_off(problem, f"settle {counted(len(batch), 'job')}", self._is_hurried)
            except Exception:
                # One of them cannot be written; the others must still be settled.
                log.exception("a batch of %d settlements failed; settling each job separately", len(batch))
                if claim is not None:
                    self._unanswered[claim.queue] = claim
                return [self._settle_alone(one) for one in settlements], [], True
            else:
                self._backoff.answered()
                for at, answer in zip(open_, held, strict=True):
                    answers[at] = answer
                self._return_tokens(batch)
                break
            now = math.inf if self._is_hurried.is_set() else time.monotonic()
            open_ = [at for at in open_ if self._fence_at(settlements[at].lease) > now]
        return answers, leases, has_asked

    def _return_tokens(self, settled: Iterable[Settlement]) -> None:
        """Owe the tokens of jobs that did not run."""
        for settlement in settled:
            if settlement.lease.queue in self._throttle and not has_run(settlement):
                self._throttle.owe(settlement.lease.queue)

    def _settle_alone(self, settlement: Settlement) -> bool | None:
        while self._fence_at(settlement.lease) > time.monotonic() and not self._is_hurried.is_set():
            try:
                [held] = self._backend.settle([settlement])
            except BackendUnavailable as problem:
                self._back_off(problem, f"settle job {settlement.lease.id}", self._is_hurried)
            except Exception as problem:
                if isinstance(problem, IdConflict) and settlement.enqueues:
                    settlement = without_copy(settlement, problem)
                    continue
                log.exception("job %s could not be settled; it runs again when its lease expires", settlement.lease.id)
                return None
            else:
                self._backoff.answered()
                self._return_tokens([settlement])
                return held
        return None

    def _claim(self, limits: Mapping[str, int]) -> list[JobLease]:
        """Claim from the first queue that has jobs, in the order of the round robin."""
        for queue in self._turns.order(self._admitted(limits)):
            claim = self._claim_of(queue, limits[queue])
            if claim is not None and (leases := self._insist_on(claim)):
                return leases
        return []

    def _next_claim(self, limits: Mapping[str, int]) -> Claim | None:
        """The claim from the queue whose turn it is."""
        for queue in self._turns.order(self._admitted(limits)):
            if (claim := self._claim_of(queue, limits[queue], is_settling=True)) is not None:
                return claim
        return None

    def _claim_of(self, queue: str, wanted: int, *, is_settling: bool = False) -> Claim | None:
        """The next claim from a queue: the one that was given up, or a new one for as many jobs as its rate limit
        allows; None if it allows none, or could not be checked.
        """
        if queue in self._unanswered:
            return self._unanswered.pop(queue)
        try:
            limit = self._throttle.take(queue, wanted)
        except BackendError as problem:
            self._circuits.failed(queue, problem)
            self._is_unchecked = True
            if isinstance(problem, BackendUnavailable) and not is_settling:
                self._back_off(problem, "check a rate limit", self._is_leaving)
            else:
                log.warning("could not check the rate limit of queue '%s': %s", queue, problem)
            return None
        return Claim(queue, limit, new_owner_token(self._session)) if limit else None

    def _insist_on(self, claim: Claim) -> list[JobLease]:
        """Claim, retrying while the engine is unavailable, unless the circuit opens."""
        while True:
            try:
                # With the same token, a repeated claim finds the jobs of one whose answer was lost.
                leases = self._backend.claim(claim.queue, claim.limit, owner_token=claim.token)
            except BackendUnavailable as problem:
                if not self._goes_on(claim, problem):
                    return []
                self._back_off(problem, "claim jobs", self._is_leaving)
                if self._is_leaving.is_set():
                    return []
            except BackendError as problem:
                self._circuits.failed(claim.queue, problem)
                self._throttle.owe(claim.queue, claim.limit)
                raise
            else:
                self._backoff.answered()
                self._took(claim, leases)
                return leases

    def _took(self, claim: Claim, leases: Sequence[JobLease]) -> None:
        """Record the answer to a claim."""
        self._turns.took(claim.queue, len(leases))
        self._throttle.claimed(claim.queue, claim.limit, len(leases))
        self._circuits.claimed(claim.queue)

    def _goes_on(self, claim: Claim, problem: BackendUnavailable) -> bool:
        """Count a claim without an answer. Returns whether it may be repeated; if not, the next claim repeats it."""
        self._circuits.failed(claim.queue, problem)
        if self._circuits.admits(claim.queue):
            return True
        self._unanswered[claim.queue] = claim
        return False

    def _back_off(self, problem: BackendUnavailable, what: str, unless: threading.Event) -> None:
        unless.wait(self._backoff.failed(problem, what))
