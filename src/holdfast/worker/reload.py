"""`worker start --reload`: drains the worker and starts it again whenever a Python file changes."""

import math
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

HURRY_S: Final = 10.0
POLL_INTERVAL_S: Final = 0.02
WATCH_INTERVAL_MS: Final = 100
SHOWN_FILES: Final = 3

# Linux sends a process SIGTERM when its parent dies, if the process has asked for that. It asks here, before it becomes
# the worker, because running Python code between fork and exec is not safe in a process with threads.
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
    grace_s: float = math.inf,
    hurry_s: float = HURRY_S,
    say: Callable[[str], None] = _PRINT,
) -> int:
    """Run a worker, and restart it after each change of a Python file below the paths. Return its last exit code.

    A worker that is to be replaced drains. After `grace_s` it receives a second SIGTERM, and `hurry_s` later it is
    killed. SIGTERM and SIGINT drain the worker and end this function; each further signal takes the next step at once.
    On Linux the worker also drains when this process is killed. Call it on the main thread.
    """
    worker = _Worker(argv, grace_s, hurry_s, say)
    is_due = True
    with handling_signals(worker.on_signal):
        try:
            for changed in _changes(paths, until=worker.is_stopping):
                if changed:
                    say(f"reloading: {_shown(changed)} changed")
                    worker.stop()
                    is_due = True
                elif is_due:
                    # Only when nothing has changed: files that changed while the old worker drained must not cause
                    # two restarts.
                    worker.start()
                    is_due = False
                else:
                    worker.check()
        finally:
            worker.stop()
    return worker.exit_code


class _Worker:
    """The process of the worker; there is at most one at a time."""

    def __init__(self, argv: Sequence[str], grace_s: float, hurry_s: float, say: Callable[[str], None]) -> None:
        self._argv = argv
        self._grace_s = grace_s
        self._hurry_s = hurry_s
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._signals = 0
        self.is_stopping = threading.Event()
        self.exit_code = 0

    def on_signal(self, _: signal.Signals) -> None:
        """Stop for good: the first signal drains the worker, the second hurries it, the third kills it."""
        self._signals += 1
        self.is_stopping.set()

    def start(self) -> None:
        tie = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())] if sys.platform == "linux" else []
        # In its own process group, so that Ctrl-C reaches the worker once, through us. Twice would hurry it.
        self._process = subprocess.Popen([*tie, *self._argv], stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603

    def check(self) -> None:
        """Report a worker that has exited by itself."""
        if self._process is not None and self._process.poll() is not None:
            self.stop()
            self._say(f"the worker exited with code {self.exit_code}; it will restart when a Python file changes")

    def stop(self) -> None:
        """Drain the worker, if it is running, and wait until it has exited; kill it if it does not."""
        process, self._process = self._process, None
        if process is None:
            return
        if not self._exits(process, self._grace_s, step=1) and not self._exits(process, self._hurry_s, step=2):
            self._say("the worker did not stop in time; killing it")
            process.kill()
        code = process.wait()
        self.exit_code = code if code >= 0 else 128 - code

    def _exits(self, process: subprocess.Popen[bytes], within_s: float, *, step: int) -> bool:
        """Send SIGTERM; whether the worker exits in time, and before a signal asks for the next step."""
        process.terminate()
        give_up_at = time.monotonic() + within_s
        while process.poll() is None:
            if self._signals > step or time.monotonic() >= give_up_at:
                return False
            time.sleep(POLL_INTERVAL_S)
        return True


def _changes(paths: Sequence[Path], *, until: threading.Event) -> Generator[set[str]]:
    """Several times a second, the set of Python files that have changed; usually empty."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError as problem:
        raise ConfigError("--reload needs the package watchfiles: pip install watchfiles") from problem

    is_wanted = PythonFilter()
    try:
        # Filtered here and not by `watch`, which would return nothing while only other files change, such as a
        # database below the paths.
        for changes in watch(
            *paths,
            watch_filter=None,
            debounce=WATCH_INTERVAL_MS,
            stop_event=until,
            rust_timeout=WATCH_INTERVAL_MS,
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
