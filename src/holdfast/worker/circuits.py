"""`QueueCircuits`: a circuit breaker for the claims of a worker, one for each queue, in the memory of this process.

It counts errors of the backend, never those of handlers. Each worker has its own circuits, because a circuit stored in
the backend that it guards could not be read during an outage. Once the backend responds, the state is recorded there,
for operators and for workers that start later.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.clock import Clock
from holdfast.definition.definition import QUEUE_BREAKER
from holdfast.errors import BackendError, BackendUnavailable
from holdfast.state.breakers import Breakers, Rule
from holdfast.units import counted, format_duration
from holdfast.values import CircuitState

log = logging.getLogger("holdfast.worker")

DEFAULT_RULE: Final = Rule(failures=5, cooldown=60.0)


class _Circuit:
    """One circuit. `openings` counts how often it was opened since it was last closed."""

    def __init__(self) -> None:
        self.state = CircuitState.CLOSED
        self.failures = 0
        self.openings = 0
        self.noted = 0
        """The opening that the store knows."""
        self.until = 0.0
        self.is_outage = False
        """Whether the circuit was opened because the backend was unavailable."""


class QueueCircuits:
    """Safe to use from several threads. `on_open` receives a queue whenever claims from it begin to be refused, and
    `on_ready` is called when a claim may be tried again earlier than planned.
    """

    def __init__(
        self,
        breakers: Breakers,
        clock: Clock,
        rule: Rule = DEFAULT_RULE,
        *,
        on_open: Callable[[str], None] = lambda queue: None,
    ) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self._breakers = breakers
        self._clock = clock
        self._rule = rule
        self._on_open = on_open
        self._lock = threading.Lock()
        self._circuits: dict[str, _Circuit] = {}
        # Most of the time, no circuit needs attention, which is all that most calls have to find out.
        self._is_quiet = True

    def admits(self, queue: str) -> bool:
        """Whether the worker may claim from the queue. After the cooldown, the next claim is a trial."""
        if self._is_quiet:
            return True
        with self._lock:
            circuit = self._of(queue)
            if circuit.state is CircuitState.OPEN and self._clock.monotonic() >= circuit.until:
                circuit.state = CircuitState.HALF_OPEN
            return circuit.state is not CircuitState.OPEN

    def wait_s(self, queues: Iterable[str]) -> float:
        """The seconds until the first cooldown of these queues expires."""
        with self._lock:
            ends = [circuit.until for queue in queues if (circuit := self._of(queue)).state is CircuitState.OPEN]
        return max(0.0, min(ends, default=0.0) - self._clock.monotonic())

    def failed(self, queue: str, problem: BackendError) -> None:
        """Count a failed claim, and open the circuit if that reaches the limit or the claim was a trial."""
        with self._lock:
            self._is_quiet = False
            circuit = self._of(queue)
            circuit.failures += 1
            if circuit.state is CircuitState.CLOSED and circuit.failures < self._rule.failures:
                return
            is_new = circuit.state is CircuitState.CLOSED
            circuit.state = CircuitState.OPEN
            circuit.openings += 1
            circuit.until = self._clock.monotonic() + self._rule.cooldown
            circuit.is_outage = isinstance(problem, BackendUnavailable)
        if is_new:
            sooner = ", or as soon as the backend responds" if circuit.is_outage else ""
            log.warning(
                "circuit open: not claiming from queue '%s' after %s in a row; trying again in %s%s: %s",
                queue,
                counted(circuit.failures, "backend error"),
                format_duration(self._rule.cooldown),
                sooner,
                problem,
            )
            self._on_open(queue)

    def claimed(self, queue: str) -> None:
        """Record that a claim succeeded: the circuit closes."""
        if self._is_quiet:
            return
        with self._lock:
            circuit = self._of(queue)
            was_closed = circuit.state is CircuitState.CLOSED
            self._close(circuit)
        if not was_closed:
            log.warning("circuit closed: claiming from queue '%s' again", queue)

    def answered(self) -> None:
        """Record that the backend has responded: circuits that were opened by an outage try a claim at once."""
        if self._is_quiet:
            return
        with self._lock:
            waiting = [one for one in self._circuits.values() if one.state is CircuitState.OPEN and one.is_outage]
            for circuit in waiting:
                circuit.state = CircuitState.HALF_OPEN
        if waiting:
            self.on_ready()

    def recall(self, queues: Iterable[str]) -> None:
        """Continue the cooldowns that are recorded in the store."""
        views = self._breakers.of([f"{QUEUE_BREAKER}{queue}" for queue in queues])
        for view in views:
            if view.state is CircuitState.HALF_OPEN:
                with self._lock:
                    self._is_quiet = False
                    circuit = self._of(view.name.removeprefix(QUEUE_BREAKER))
                    # The next claim closes it, and its record has to be removed.
                    circuit.state, circuit.failures = CircuitState.HALF_OPEN, view.failures
                    circuit.openings = circuit.noted = 1
            if view.state is CircuitState.OPEN and view.retry_in is not None:
                with self._lock:
                    self._is_quiet = False
                    circuit = self._of(view.name.removeprefix(QUEUE_BREAKER))
                    circuit.state, circuit.failures = CircuitState.OPEN, view.failures
                    circuit.openings = circuit.noted = 1
                    circuit.until = self._clock.monotonic() + view.retry_in
                log.warning(
                    "circuit open: not claiming from queue '%s' for another %s, as an earlier worker recorded",
                    view.name.removeprefix(QUEUE_BREAKER),
                    format_duration(view.retry_in),
                )

    def note(self) -> None:
        """Record changed circuits in the store, and close those that were reset there. If all are closed, this costs
        nothing.

        An outage is not recorded: it has ended by the time the store can be written.
        """
        if self._is_quiet:
            return
        with self._lock:
            circuits = list(self._circuits.items())
        for queue, circuit in circuits:
            self._note(queue, circuit)
        with self._lock:
            self._is_quiet = not any(one.failures or one.openings or one.noted for one in self._circuits.values())

    def _note(self, queue: str, circuit: _Circuit) -> None:
        name = f"{QUEUE_BREAKER}{queue}"
        openings = 0 if circuit.is_outage else circuit.openings
        if openings and openings != circuit.noted:
            self._breakers.trip(name, self._rule, failures=circuit.failures)
            circuit.noted = openings
        elif circuit.noted and not openings:
            self._breakers.reset(name)
            circuit.noted = 0
        elif circuit.noted and self._breakers.get(name).state is CircuitState.CLOSED:
            with self._lock:
                self._close(circuit)
                circuit.noted = 0
            log.warning("circuit closed by a reset: claiming from queue '%s' again", queue)
            self.on_ready()

    def _of(self, queue: str) -> _Circuit:
        return self._circuits.setdefault(queue, _Circuit())

    def _close(self, circuit: _Circuit) -> None:
        circuit.state, circuit.failures, circuit.openings, circuit.is_outage = CircuitState.CLOSED, 0, 0, False
