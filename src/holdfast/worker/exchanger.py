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
from typing import Final

from msgspec import Struct

from holdfast.errors import BackendError, BackendUnavailable
from holdfast.queues.contract import Engine, new_owner_token
from holdfast.units import counted
from holdfast.values import Entered, Entry, EntryOutcome, JobLease, Settlement
from holdfast.worker.admission import ENTER_LIMIT_S, Admission, Admitted, Refusal
from holdfast.worker.backoff import EngineBackoff
from holdfast.worker.circuits import QueueCircuits
from holdfast.worker.round_robin import RoundRobin
from holdfast.worker.verdict import released
from holdfast.worker.wake_pipe import WakePipe

log = logging.getLogger("holdfast.exchanger")

# How long a request waits while a circuit is open, if it would not wait at all.
REFUSED_WAIT_S: Final = 0.1


class EngineRequest(Struct, frozen=True, kw_only=True):
    """Settle these, then claim jobs up to the limit of each queue, waiting up to `wait_s` for the first."""

    settlements: Sequence[Settlement] = ()
    limits: Mapping[str, int] = {}
    wait_s: float = 0.0


class EngineAnswer(Struct, frozen=True, kw_only=True):
    """The result of a request. `held` is None for a settlement without an answer before its lease expired.
    `is_refused`: a circuit is open, so at least one queue was not claimed from.
    """

    request: EngineRequest
    held: Sequence[bool | None] = ()
    admitted: Admitted = Admitted()
    problem: Exception | None = None
    is_refused: bool = False


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
        circuits: QueueCircuits,
        on_claimed: Callable[[Sequence[JobLease]], None],
        on_answer: Callable[[EngineAnswer], None],
        fence_at: Callable[[JobLease], float],
    ) -> None:
        self._backend = backend
        self._turns = turns
        self._session = session
        self._admission = admission
        self._backoff = backoff
        self._circuits = circuits
        circuits.on_ready = self.nudge
        # The tokens of claims that were given up without an answer: they may have been applied.
        self._unanswered: dict[str, str] = {}
        self._on_claimed = on_claimed
        self._on_answer = on_answer
        self._fence_at = fence_at
        self._requests: SimpleQueue[EngineRequest | None] = SimpleQueue()
        self._pipe = WakePipe()
        self._is_leaving = threading.Event()
        self._is_hurried = threading.Event()
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
        self._recall()
        while (request := self._requests.get()) is not None:
            answer = self._process(request)
            self._pipe.drain()
            self._on_answer(answer)

    def _recall(self) -> None:
        try:
            self._circuits.recall(self._turns.queues)
        except BackendError as problem:
            log.debug("the circuits of the queues could not be read: %s", problem)

    def _process(self, request: EngineRequest) -> EngineAnswer:
        held: Sequence[bool | None] = [None] * len(request.settlements)
        leases: list[JobLease] = []
        try:
            if request.settlements:
                held, leases = self._settle(request)
                if not leases and len(request.limits) > 1:
                    leases = self._claim(request.limits)
            elif request.limits:
                leases = self._claim(request.limits)
            is_refused = not leases and len(self._admitted(request.limits)) < len(request.limits)
            if not leases and request.limits and (request.wait_s > 0 or (is_refused and not request.settlements)):
                leases = self._wait_for_work(request)
            admitted = self._admit(leases) if leases else Admitted()
            return EngineAnswer(request=request, held=held, admitted=admitted, is_refused=is_refused)
        except Exception as problem:
            if isinstance(problem, BackendError):
                log.warning("could not claim jobs; any that were already claimed are released: %s", problem)
            else:
                log.exception("could not claim jobs; any that were already claimed are released")
            # Settlements that are already answered keep their answers, and claimed jobs are released.
            return EngineAnswer(request=request, held=held, admitted=self._released(leases), problem=problem)

    def _admit(self, leases: Sequence[JobLease]) -> Admitted:
        self._on_claimed(leases)
        return self._admission.admit(leases, self._enter)

    def _enter(self, entries: Sequence[Entry]) -> list[Entered]:
        """Let jobs enter their slots, retrying for a short time while the engine is unavailable: other jobs wait."""
        give_up_at = time.monotonic() + ENTER_LIMIT_S
        while True:
            try:
                answers = self._backend.enter(entries)
            except BackendUnavailable as problem:
                if time.monotonic() >= give_up_at or self._is_hurried.is_set():
                    raise
                self._back_off(problem, f"enter the slots of {counted(len(entries), 'job')}", self._is_hurried)
            except Exception:
                if len(entries) == 1:
                    log.exception(
                        "job %s: could not enter its slots; it will be reaped when its lease expires",
                        entries[0].lease.id,
                    )
                    return [Entered(outcome=EntryOutcome.LOST)]
                log.exception("%d jobs could not enter their slots; retrying each job separately", len(entries))
                return [answer for entry in entries for answer in self._enter([entry])]
            else:
                self._backoff.answered()
                return answers

    def _released(self, leases: Sequence[JobLease]) -> Admitted:
        now_us = self._backend.clock.now_us()
        returns = [released(lease, now_us, "it could not be admitted", unstarted=True) for lease in leases]
        return Admitted(refusals=[Refusal(settlement=one) for one in returns])

    def _wait_for_work(self, request: EngineRequest) -> list[JobLease]:
        give_up_at = time.monotonic() + (request.wait_s or REFUSED_WAIT_S)
        while (left := give_up_at - time.monotonic()) > 0:
            queues = self._admitted(self._turns.queues)
            if refused := [queue for queue in self._turns.queues if queue not in queues]:
                left = min(left, self._circuits.wait_s(refused))
            try:
                if queues:
                    self._backend.wait_for_work(queues, left, wake=self._pipe.fileno())
                else:
                    self._backend.clock.wait(left, [self._pipe.fileno()])
            except BackendUnavailable as problem:
                self._back_off(problem, "claim jobs", self._is_leaving)
            if self._pipe.drain():
                break
            leases = self._claim(request.limits)
            if leases:
                return leases
        return []

    def _admitted(self, queues: Iterable[str]) -> list[str]:
        """Those of these queues whose circuits are not open."""
        return [queue for queue in queues if self._circuits.admits(queue)]

    def _settle(self, request: EngineRequest) -> tuple[list[bool | None], list[JobLease]]:
        """Settle, and claim in the same transaction from the queue whose turn it is.

        A settlement without an answer is repeated, with the same tokens, until it is answered or its lease expires.
        """
        settlements = request.settlements
        answers: list[bool | None] = [None] * len(settlements)
        open_: Sequence[int] = range(len(settlements))
        queue = next(iter(self._turns.order(self._admitted(request.limits))), None)
        token = self._token(queue)
        leases: list[JobLease] = []
        while open_:
            batch = settlements if len(open_) == len(settlements) else [settlements[at] for at in open_]
            try:
                if queue is not None:
                    held, leases = self._backend.exchange(batch, queue, request.limits[queue], owner_token=token)
                    self._turns.took(queue, len(leases))
                    self._circuits.claimed(queue)
                else:
                    held = self._backend.settle(batch)
            except BackendUnavailable as problem:
                if queue is not None and not self._goes_on(queue, token, problem):
                    queue = None  # the settlements are repeated without a claim
                self._back_off(problem, f"settle {counted(len(batch), 'job')}", self._is_hurried)
            except Exception:
                # One of them cannot be written; the others must still be settled.
                log.exception("a batch of %d settlements failed; settling each job separately", len(batch))
                return [self._settle_alone(one) for one in settlements], []
            else:
                self._backoff.answered()
                for at, answer in zip(open_, held, strict=True):
                    answers[at] = answer
                break
            now = math.inf if self._is_hurried.is_set() else time.monotonic()
            open_ = [at for at in open_ if self._fence_at(settlements[at].lease) > now]
        return answers, leases

    def _settle_alone(self, settlement: Settlement) -> bool | None:
        while self._fence_at(settlement.lease) > time.monotonic() and not self._is_hurried.is_set():
            try:
                [held] = self._backend.settle([settlement])
            except BackendUnavailable as problem:
                self._back_off(problem, f"settle job {settlement.lease.id}", self._is_hurried)
            except Exception:
                log.exception("job %s could not be settled; it runs again when its lease expires", settlement.lease.id)
                return None
            else:
                self._backoff.answered()
                return held
        return None

    def _claim(self, limits: Mapping[str, int]) -> list[JobLease]:
        """Claim from the first queue that has jobs, in the order of the round robin."""
        for queue in self._turns.order(limits):
            if not self._circuits.admits(queue):
                continue
            leases = self._claim_from(queue, limits[queue])
            self._turns.took(queue, len(leases))
            if leases:
                return leases
        return []

    def _claim_from(self, queue: str, limit: int) -> list[JobLease]:
        token = self._token(queue)
        while True:
            try:
                # With the same token, a repeated claim finds the jobs of one whose answer was lost.
                leases = self._backend.claim(queue, limit, owner_token=token)
            except BackendUnavailable as problem:
                if not self._goes_on(queue, token, problem):
                    return []
                self._back_off(problem, "claim jobs", self._is_leaving)
                if self._is_leaving.is_set():
                    return []
            except BackendError as problem:
                self._goes_on(queue, token, problem)
                raise
            else:
                self._backoff.answered()
                self._circuits.claimed(queue)
                return leases

    def _token(self, queue: str | None) -> str:
        """The token of the next claim from this queue: a new one, unless the last claim was given up."""
        return self._unanswered.pop(queue or "", "") or new_owner_token(self._session)

    def _goes_on(self, queue: str, token: str, problem: BackendError) -> bool:
        """Count a failed claim. Returns whether it may be repeated; if not, the next claim repeats it."""
        self._circuits.failed(queue, problem)
        if self._circuits.admits(queue):
            return True
        self._unanswered[queue] = token
        return False

    def _back_off(self, problem: BackendUnavailable, what: str, unless: threading.Event) -> None:
        unless.wait(self._backoff.failed(problem, what))
