"""The application whose jobs the children of these tests' workers run: each writes into a ledger what it does.

`FLOOR` in the environment names the directory of the ledger and of the gates where jobs wait for a test.
"""

import asyncio
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.errors import JobError
from holdfast.handlers import Cancel, FunctionHandler, HandlerRegistry, JobContext, Snooze

from ..faults.ledgers import GrowingFile, append_line
from ..faults.processes import lives

LOOK_EVERY_S = 0.005
_here = Path(os.environ.get("FLOOR", "/nowhere"))
_hoard: list[bytes] = []


def note(what: str, context: JobContext, *words: object) -> None:
    """One line of the ledger."""
    append_line(_here / "ledger", what, context.id, os.getpid(), *words)


def is_open(gate: str) -> bool:
    return (_here / f"gate-{gate}").exists()


def wait_at(gate: str) -> None:
    while not is_open(gate):
        time.sleep(LOOK_EVERY_S)


def quick(context: JobContext) -> None:
    note("end", context)


def brief(context: JobContext) -> int:
    note("start", context)
    time.sleep(0.001)
    note("end", context)
    return os.getpid()


def fenced(context: JobContext) -> int:
    note("end", context, context.fence)
    return context.fence


def witness(context: JobContext) -> None:
    """Note how many of the processes that started a job before are still alive."""
    before = {int(line.split()[2]) for line in GrowingFile(_here / "ledger").lines() if line.startswith("start ")}
    note("end", context, sum(map(lives, before)))


def gated(context: JobContext, gate: str = "") -> int:
    """Wait at this gate; default: its own."""
    note("start", context, threading.current_thread() is threading.main_thread())
    wait_at(gate or context.id)
    note("end", context)
    return os.getpid()


async def gated_async(context: JobContext, gate: str = "") -> None:
    note("start", context, id(asyncio.get_running_loop()), threading.get_ident())
    while not is_open(gate or context.id):  # noqa: ASYNC110 - the gate is in another process
        await asyncio.sleep(LOOK_EVERY_S)
    note("end", context)


def heedful(context: JobContext) -> None:
    """Look now and then whether to stop; all that code on a thread can do."""
    note("start", context)
    while not context.is_cancelled():
        time.sleep(LOOK_EVERY_S)
    note("heard", context)


def fails(context: JobContext) -> None:
    note("start", context)
    raise ValueError("no luck")


def fails_for_good(context: JobContext) -> None:
    note("start", context)
    raise LookupError("never any luck")


def deaf(context: JobContext, gate: str = "") -> None:
    """Swallow every interrupt."""
    note("start", context)
    while True:
        try:
            wait_at(gate or context.id)
            break
        except BaseException:
            note("swallowed", context)
    note("end", context)


def stuck(context: JobContext) -> None:
    """Stay in C code that neither checks for signals nor lets another thread run."""
    note("start", context)
    deque(itertools.repeat(0), maxlen=0)


def keeps_interpreter(context: JobContext, seconds: float) -> None:
    """Let no other Python code of this process run for so many seconds."""
    note("start", context)
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    note("end", context)


def sleeps(context: JobContext, seconds: float) -> None:
    note("start", context)
    time.sleep(seconds)
    note("end", context)


def dies(context: JobContext, signal_number: int = 0) -> None:
    """End this process, by the signal if there is one, or else with exit code 7."""
    note("start", context)
    print("its last words")
    end(signal_number)


def hogs(context: JobContext, group: str) -> None:
    """Take more memory than this control group may have."""
    note("start", context)
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    _hoard.append(b"x" * (256 * 1024 * 1024))
    note("end", context)


def forks(context: JobContext) -> None:
    """Make a copy of this process, and forget to end it."""
    note("start", context)
    copy = os.fork()
    if copy == 0:
        raise LookupError("a copy, on its way out of the handler")
    os.waitpid(copy, 0)
    note("end", context)


def babbles(context: JobContext) -> None:
    """Write into every socket there is."""
    note("start", context)
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                os.write(int(number), b"\x05\0\0\0hello")
    signal.pause()


def dies_at_gate(context: JobContext, gate: str = "") -> None:
    note("start", context)
    wait_at(gate or context.id)
    end()


def end(signal_number: int = 0) -> None:
    if not signal_number:
        os._exit(7)
    os.kill(os.getpid(), signal_number)
    signal.pause()


def kills_worker(context: JobContext, gate: str) -> None:
    """Kill the whole worker without a warning: it is the parent of our guardian."""
    note("start", context)
    wait_at(gate)
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    signal.pause()


def parent(context: JobContext, gate: str = "") -> None:
    """Start a child in its own session, and then wait, or die, at the gate."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"], start_new_session=True)
    note("grandchild", context, child.pid)
    try:
        wait_at(gate or context.id)
    except BaseException:
        wait_at(gate or context.id)
    end()


def snoozes(context: JobContext) -> Snooze:
    note("start", context)
    return Snooze(1000)


def gives_up(context: JobContext) -> Cancel:
    note("start", context)
    return Cancel("not wanted any more")


def reports(context: JobContext, gate: str = "") -> None:
    context.progress(3, 10, "rows")
    context.log.info("three of ten")
    print("printed")
    note("start", context)
    wait_at(gate or context.id)


def prints(context: JobContext, lines: int) -> None:
    """Print so many lines, and wait."""
    for number in range(lines):
        print("line", number)
    note("start", context)
    wait_at(context.id)


def meets(context: JobContext, number: int) -> None:
    """Wait until so many are here at once."""
    (_here / f"met-{context.id}").touch()
    while len(list(_here.glob("met-*"))) < number:
        time.sleep(LOOK_EVERY_S)
    note("end", context)


def grows(context: JobContext, size: int) -> None:
    """Occupy so many bytes more, for good."""
    note("start", context)
    _hoard.append(os.urandom(1024) * (size // 1024))
    note("end", context)


def gathers(context: JobContext, gate: str = "") -> dict[str, Any]:
    """Return the results of the parents, or the names of the errors that took their place."""
    note("start", context)
    if gate:
        wait_at(gate)
    return _gathered(context)


async def gathers_async(context: JobContext) -> dict[str, Any]:
    note("start", context)
    return _gathered(context)


def _gathered(context: JobContext) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for id in context.results:
        try:
            found[id] = context.results[id]
        except JobError as problem:
            found[id] = type(problem).__name__
    note("end", context)
    return found


def register(registry: HandlerRegistry) -> None:
    """Make every job here known, in the worker as well as in its children."""
    jobs: tuple[Any, ...] = (
        quick,
        brief,
        gated,
        gated_async,
        heedful,
        fails,
        deaf,
        stuck,
        keeps_interpreter,
        sleeps,
        dies,
        hogs,
        forks,
        babbles,
        dies_at_gate,
        fenced,
        witness,
        kills_worker,
        parent,
        snoozes,
        gives_up,
        prints,
        reports,
        meets,
        grows,
        gathers,
        gathers_async,
    )
    for job in jobs:
        registry.register(job.__name__, job)
    for_good = FunctionHandler(fails_for_good, key="fails_for_good", no_retry=(LookupError,))
    registry.register("fails_for_good", for_good)


if (_here / "broken").exists():
    raise RuntimeError("the application is broken")
hf = Holdfast()
register(hf.registry)
