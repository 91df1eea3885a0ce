"""`worker start --reload`: a worker that is drained and started again whenever a Python file changes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.errors import ConfigError
from holdfast.worker.signals import handling_signals

# Longer than a worker's own grace: usually it has left by then.
GRACE_S: Final = 35.0
HURRY_S: Final = 10.0
LOOK_EVERY_S: Final = 0.02
TURN_MS: Final = 100
SHOWN_FILES: Final = 3

# Linux sends a process SIGTERM when its starter dies, however that happens, if the process has asked for it. The worker
# asks before it becomes the worker: nothing of Python's is safe to run between fork and exec where there are threads.
_TIED: Final = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


_PRINT: Final = partial(print, file=sys.stderr, flush=True)


def run_reloading(
    argv: Sequence[str],
    paths: Sequence[Path],
    *,
    grace_s: float = GRACE_S,
    hurry_s: float = HURRY_S,
    say: Callable[[str], None] = _PRINT,
) -> int:
    """Run a worker, and restart it after each change of a Python file below the paths. Returns its last exit code.

    A worker that is to be replaced drains. After `grace_s` it is asked again, `hurry_s` later killed.
    SIGTERM and SIGINT drain it and end this function; each further one goes a step further at once. On Linux the
    worker also drains when this process is killed. To be called on the main thread.
    """
    worker = _Worker(argv, grace_s, hurry_s, say)
    is_due = True
    with handling_signals(worker.leave):
        try:
            for changed in _changes(paths, until=worker.is_leaving):
                if changed:
                    say(f"reloading: {_shown(changed)} changed")
                    worker.end()
                    is_due = True
                elif is_due:
                    # Only in a quiet turn: what changed while the old worker drained must not start two new ones.
                    worker.start()
                    is_due = False
                else:
                    worker.look()
        finally:
            worker.end()
    return worker.exit_code


class _Worker:
    """The worker's process, of which there is at most one at a time."""

    def __init__(self, argv: Sequence[str], grace_s: float, hurry_s: float, say: Callable[[str], None]) -> None:
        self._argv = argv
        self._grace_s = grace_s
        self._hurry_s = hurry_s
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = 0
        self.is_leaving = threading.Event()
        self.exit_code = 0

    def leave(self, _: signal.Signals) -> None:
        """Somebody wants the worker to end for good; a second time, to end soon; a third time, to end now."""
        self._asked += 1
        self.is_leaving.set()

    def start(self) -> None:
        tie = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())] if sys.platform == "linux" else []
        # A process group of its own: Ctrl-C reaches it once, through us, and not twice, which would hurry it.
        self._process = subprocess.Popen([*tie, *self._argv], stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603

    def look(self) -> None:
        """Notice that the worker has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            self.end()
            self._say(f"the worker exited with code {self.exit_code}; it starts again when a Python file changes")

    def end(self) -> None:
        """Drain the worker, if it runs, and wait until it has ended; one that does not end is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        if not self._ends(process, self._grace_s, step=1) and not self._ends(process, self._hurry_s, step=2):
            self._say("the worker did not stop in time; killing it")
            process.kill()
        code = process.wait()
        self.exit_code = code if code >= 0 else 128 - code

    def _ends(self, process: subprocess.Popen[bytes], within_s: float, *, step: int) -> bool:
        """Ask it to end; whether it does, in time and before somebody has asked for the next step."""
        process.terminate()
        give_up_at = time.monotonic() + within_s
        while process.poll() is None:
            if self._asked > step or time.monotonic() >= give_up_at:
                return False
            time.sleep(LOOK_EVERY_S)
        return True


def _changes(paths: Sequence[Path], *, until: threading.Event) -> Generator[set[str]]:
    """Several times a second, the Python files that have changed; mostly none."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError as problem:
        raise ConfigError("--reload needs the package watchfiles: pip install watchfiles") from problem

    is_wanted = PythonFilter()
    try:
        # Filtered here and not by `watch`: that keeps silent for as long as only other files change, and a database
        # below the paths may do so all the time.
        for changes in watch(
            *paths,
            watch_filter=None,
            debounce=TURN_MS,
            stop_event=until,
            rust_timeout=TURN_MS,
            yield_on_timeout=True,
        ):
            yield {path for change, path in changes if is_wanted(change, path)}
    except (OSError, RuntimeError) as problem:
        places = ", ".join(map(str, paths))
        raise ConfigError(f"--reload cannot watch {places}: {problem}") from problem


def _shown(changed: set[str]) -> str:
    names = sorted(os.path.relpath(path) for path in changed)
    more = len(names) - SHOWN_FILES
    return ", ".join(names[:SHOWN_FILES]) + (f" and {more} more" if more > 0 else "")
