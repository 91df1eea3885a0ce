"""`Breakers`: circuit breakers that the processes of an installation share. `Breaker`: guards a call with one of them.

A circuit is two cells. The first, without a ttl, stores whether the circuit is open. The second exists while calls
are refused: it is written when the circuit opens, and expires after the cooldown, by the engine's clock. The process
that then writes it again makes the trial call. If that process dies, the cell expires, and another one makes the trial
call.

The same write closes the slot of jobs that wait for the circuit for as long as the second cell exists. So these jobs
are blocked, and only one of them runs as a trial.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.clock import from_us
from holdfast.definition.definition import MAX_DURATION_S, QUEUE_BREAKER
from holdfast.definition.durations import Duration, in_seconds
from holdfast.errors import BackendError, BackendUnavailable, CircuitOpen, DefinitionError
from holdfast.state.ownership import breaker_slot
from holdfast.units import counted, format_duration
from holdfast.values import Cell, CircuitState, Drop, Put, Resize, Write

if TYPE_CHECKING:
    import logging

    from holdfast.queues.contract import SharedState


CIRCUITS: Final = "breaker"
WAITS: Final = "breaker-wait"
MAX_FAILURES: Final = 1000
_TRIAL: Final = b"trial"

F = TypeVar("F", bound=Callable[..., Any])


def _log() -> "logging.Logger":
    import logging  # imported here: commands that only read circuits do not need it

    return logging.getLogger("holdfast.breaker")


class Rule(Struct, frozen=True, kw_only=True):
    """The number of failures in a row that open a circuit, and the duration for which it then refuses all calls."""

    failures: int
    cooldown: float


def rule_of(failures: int, cooldown: Duration) -> Rule:
    """The rule with these numbers, if they are valid."""
    if isinstance(failures, bool) or not isinstance(failures, int) or not 1 <= failures <= MAX_FAILURES:  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(f"failures must be an integer from 1 to {MAX_FAILURES:,}, not {failures!r}")
    seconds = in_seconds("cooldown", cooldown)
    if not 0 < seconds <= MAX_DURATION_S:
        raise DefinitionError(f"cooldown must be a positive duration, such as '60s', not {cooldown!r}")
    return Rule(failures=failures, cooldown=float(seconds))


class Circuit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A circuit as its cell stores it.

    `generation` counts how often the circuit was opened or closed: a call that began before the last change proves
    nothing about the service now. `opened_us` is set by the first write after the one that opened the circuit.
    """

    failures: int = 0
    is_open: bool = False
    generation: int = 0
    opened_us: int | None = None
    rule: Rule | None = None


class CircuitView(Struct, frozen=True, kw_only=True):
    """A circuit as users see it. `retry_in` is the number of seconds for which it still refuses calls."""

    name: str
    state: CircuitState
    failures: int
    rule: Rule | None = None
    opened_at: datetime | None = None
    retry_in: float | None = None


class Call(NamedTuple):
    """A call that was let through: its circuit when it began, and the version of the circuit's cell, 0 if none."""

    name: str
    circuit: Circuit
    version: int
    is_trial: bool = False


_decoder = msgspec.msgpack.Decoder(Circuit)


class Breakers:
    """The circuits of an installation."""

    def __init__(self, state: "SharedState") -> None:
        self._state = state

    def begin(self, name: str, rule: Rule) -> Call:
        """Let a call through, or raise `CircuitOpen`. A closed circuit costs one read."""
        while True:
            cell, circuit = self._read(name)
            if cell is None or not circuit.is_open:
                return Call(name, circuit, 0 if cell is None else cell.version)
            waits = self._state.read(WAITS, [name])
            if waits:
                raise CircuitOpen(name, _left(waits[0], rule))
            circuit = replace(circuit, opened_us=_opened_us(cell, circuit))
            versions = self._state.write(
                [_stored(name, circuit, cell.version), *_closed_for(name, rule.cooldown, _TRIAL, if_version=0)]
            )
            if versions is not None:
                _log().info("circuit '%s': trying one call", name)
                return Call(name, circuit, versions[0], is_trial=True)

    def succeeded(self, call: Call) -> None:
        """Record that the call succeeded: a trial closes the circuit, another call resets the count of failures."""
        if call.is_trial:
            if self._close(call.name, call.circuit, call.version):
                _log().warning("circuit '%s' closed: the trial call succeeded", call.name)
            return
        circuit, version = call.circuit, call.version
        while circuit.failures and not circuit.is_open and circuit.generation == call.circuit.generation:
            if self._state.write([_stored(call.name, replace(circuit, failures=0), version)]) is not None:
                return
            cell, circuit = self._read(call.name)
            version = 0 if cell is None else cell.version

    def failed(self, call: Call, rule: Rule) -> None:
        """Count the failure of a call. If it reaches the limit, or the call was the trial, the circuit opens.

        A trial that took so long that another one began is not counted, and neither is a call that began before the
        circuit was last opened or closed.
        """
        if call.is_trial:
            circuit = replace(call.circuit, failures=call.circuit.failures + 1, rule=rule)
            writes = [_stored(call.name, circuit, call.version), *_closed_for(call.name, rule.cooldown)]
            if self._state.write(writes) is not None:
                _log().warning(
                    "circuit '%s': the trial call failed; calls are refused for another %s",
                    call.name,
                    format_duration(rule.cooldown),
                )
            return
        while True:
            cell, circuit = self._read(call.name)
            if circuit.is_open or circuit.generation != call.circuit.generation:
                return
            counted_circuit = replace(circuit, failures=circuit.failures + 1, rule=rule)
            opens = counted_circuit.failures >= rule.failures
            version = 0 if cell is None else cell.version
            if opens and self._open(call.name, counted_circuit, version, rule):
                _log().warning(
                    "circuit '%s' opened after %s in a row; calls are refused for %s",
                    call.name,
                    counted(counted_circuit.failures, "failure"),
                    format_duration(rule.cooldown),
                )
                return
            if not opens and self._state.write([_stored(call.name, counted_circuit, version)]) is not None:
                return

    def given_up(self, call: Call) -> None:
        """Record that the call was interrupted and proves nothing about the service. Another trial may begin."""
        if call.is_trial:
            writes: list[Write] = [
                _stored(call.name, call.circuit, call.version),
                Drop(kind=WAITS, key=call.name),
                *_resized(call.name, size=1),
            ]
            self._state.write(writes)

    def trip(self, name: str, rule: Rule, *, failures: int | None = None) -> None:
        """Open a circuit, or restart the cooldown of an open one."""
        while True:
            cell, circuit = self._read(name)
            if cell is not None and circuit.is_open:
                circuit = replace(circuit, opened_us=_opened_us(cell, circuit))
            circuit = replace(circuit, rule=rule, failures=circuit.failures if failures is None else failures)
            if self._open(name, circuit, 0 if cell is None else cell.version, rule):
                return

    def reset(self, name: str) -> bool:
        """Close a circuit and reset its count of failures. False if it has neither failed nor been tripped."""
        while True:
            cell, circuit = self._read(name)
            if cell is None:
                return False
            if self._close(name, circuit, cell.version):
                return True

    def get(self, name: str) -> CircuitView:
        """A circuit. One that has never failed is closed."""
        found = self.of([name])
        return found[0] if found else CircuitView(name=name, state=CircuitState.CLOSED, failures=0)

    def of(self, names: Sequence[str]) -> list[CircuitView]:
        """Those of these circuits that have failed or were tripped."""
        return self._views(self._state.read(CIRCUITS, names))

    def all(self) -> list[CircuitView]:
        """All circuits that have failed or were tripped, by name."""
        return self._views(self._state.read_all(CIRCUITS))

    def _views(self, cells: Iterable[Cell]) -> list[CircuitView]:
        known = [(cell, _circuit(cell)) for cell in cells]
        open_names = [cell.key for cell, circuit in known if circuit.is_open]
        waits = {one.key: one for one in self._state.read(WAITS, open_names)} if open_names else {}
        return [_view(cell, circuit, waits) for cell, circuit in known]

    def _read(self, name: str) -> tuple[Cell | None, Circuit]:
        cells = self._state.read(CIRCUITS, [name])
        return (cells[0], _circuit(cells[0])) if cells else (None, Circuit())

    def _open(self, name: str, circuit: Circuit, version: int, rule: Rule) -> bool:
        if not circuit.is_open:
            circuit = replace(circuit, is_open=True, generation=circuit.generation + 1, opened_us=None)
        return self._state.write([_stored(name, circuit, version), *_closed_for(name, rule.cooldown)]) is not None

    def _close(self, name: str, circuit: Circuit, version: int) -> bool:
        closed = Circuit(generation=circuit.generation + 1, rule=circuit.rule)
        writes: list[Write] = [_stored(name, closed, version), Drop(kind=WAITS, key=name), *_resized(name, size=None)]
        return self._state.write(writes) is not None


def _circuit(cell: Cell) -> Circuit:
    """The circuit in a cell. One that cannot be read counts as closed."""
    try:
        return _decoder.decode(cell.value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Circuit()


def _stored(name: str, circuit: Circuit, if_version: int) -> Put:
    return Put(kind=CIRCUITS, key=name, value=msgspec.msgpack.encode(circuit), if_version=if_version)


def _closed_for(name: str, seconds: float, value: bytes = b"", if_version: int | None = None) -> list[Write]:
    """The writes after which calls are refused for this long, and no job that waits for the circuit starts."""
    wait = Put(kind=WAITS, key=name, value=value, ttl=seconds, if_version=if_version)
    return [wait, *_resized(name, size=1, closed_for=seconds)]


def _resized(name: str, *, size: int | None, closed_for: float = 0.0) -> list[Resize]:
    """The change to the slot of the jobs that wait for a circuit. No job waits for the circuit of a queue."""
    if name.startswith(QUEUE_BREAKER):
        return []
    return [Resize(slot=breaker_slot(name), size=size, closed_for=closed_for)]


def _opened_us(cell: Cell, circuit: Circuit) -> int:
    """When an open circuit was opened: the version of a cell is the engine's time of the write."""
    return cell.version if circuit.opened_us is None else circuit.opened_us


def _left(wait: Cell, rule: Rule) -> float:
    return rule.cooldown if wait.expires_in is None else wait.expires_in


def _view(cell: Cell, circuit: Circuit, waits: Mapping[str, Cell]) -> CircuitView:
    wait = waits.get(cell.key)
    state = CircuitState.CLOSED
    if circuit.is_open:
        is_refusing = wait is not None and wait.value != _TRIAL
        state = CircuitState.OPEN if is_refusing else CircuitState.HALF_OPEN
    return CircuitView(
        name=cell.key,
        state=state,
        failures=circuit.failures,
        rule=circuit.rule,
        opened_at=from_us(_opened_us(cell, circuit)) if circuit.is_open else None,
        retry_in=None if wait is None else wait.expires_in,
    )


# The calls that the code in this context is making, by the names of their circuits, the innermost last. They are not in
# the `Breaker`, which threads and tasks may share.
_calls: ContextVar[tuple[tuple[str, Call | None], ...]] = ContextVar("holdfast_breaker_calls", default=())


class Breaker:
    """A circuit breaker around a call to an outside service: `with hf.breaker("stripe"): ...`, or as a decorator.

    In async code, use `async with`. If the store of the circuit is unavailable, the call is made without the breaker.
    """

    def __init__(
        self, open_breakers: Callable[[], Breakers], name: str, rule: Rule, on: tuple[type[BaseException], ...]
    ) -> None:
        self.name = name
        self.rule = rule
        self._open_breakers = open_breakers
        self._on = on

    def state(self) -> CircuitState:
        """Whether calls are made at the moment."""
        return self._open_breakers().get(self.name).state

    def trip(self) -> None:
        """Open the circuit now, for its cooldown."""
        self._open_breakers().trip(self.name, self.rule)

    def reset(self) -> None:
        """Close the circuit now, and reset its count of failures."""
        self._open_breakers().reset(self.name)

    def __enter__(self) -> Self:
        self._entered(self._begin())
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, problem: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        call = self._left()
        if call is not None:
            self._record(call, problem)

    async def __aenter__(self) -> Self:
        import asyncio  # not at the top: programs without an event loop need not load it

        self._entered(await asyncio.to_thread(self._begin))
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, problem: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        import asyncio

        call = self._left()
        if call is not None:
            await asyncio.to_thread(self._record, call, problem)

    def __call__(self, function: F) -> F:
        """Return the function with every call guarded by the breaker."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise DefinitionError(
                f"{function.__name__} is a generator, which a breaker cannot decorate; use the breaker inside it"
            )
        if inspect.iscoroutinefunction(function):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                async with self:
                    return await cast("Callable[..., Awaitable[Any]]", function)(*args, **kwargs)

            return cast("F", functools.wraps(function)(awaited))

        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast("F", functools.wraps(function)(called))

    def _begin(self) -> Call | None:
        """The call, or None if there is no circuit to consult."""
        try:
            return self._open_breakers().begin(self.name, self.rule)
        except BackendUnavailable as problem:
            _log().warning("circuit '%s' cannot be read; calling without the breaker: %s", self.name, problem)
            return None

    def _entered(self, call: Call | None) -> None:
        _calls.set((*_calls.get(), (self.name, call)))

    def _left(self) -> Call | None:
        """The innermost call of this breaker in this context."""
        calls = _calls.get()
        for at in reversed(range(len(calls))):
            name, call = calls[at]
            if name == self.name:
                _calls.set(calls[:at] + calls[at + 1 :])
                return call
        return None

    def _record(self, call: Call, problem: BaseException | None) -> None:
        """Record the outcome of the call. If that fails, the outcome of the call still counts for the caller."""
        try:
            breakers = self._open_breakers()
            if isinstance(problem, self._on) and not isinstance(problem, CircuitOpen):
                breakers.failed(call, self.rule)
            elif problem is None or (isinstance(problem, Exception) and not isinstance(problem, CircuitOpen)):
                breakers.succeeded(call)
            else:
                breakers.given_up(call)
        except BackendError as error:
            _log().warning("circuit '%s': the outcome of a call could not be recorded: %s", self.name, error)
