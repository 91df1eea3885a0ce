"""`ServerClock`: a server's clock that tests advance instead of waiting."""

import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.clock import ManualClock

_SOURCE = Path(__file__).with_name("shim.c")
_SIZE = 8


class ServerClock(ManualClock):
    """A clock that a server shares: `shim.c`, preloaded in the server, returns its time."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.path = directory / "clock"
        self.path.write_bytes(bytes(_SIZE))
        with self.path.open("r+b") as file:
            self._told = mmap.mmap(file.fileno(), _SIZE)
        self._tell()

    def environment(self) -> dict[str, str]:
        """The environment variables that make a server use this clock."""
        return {"LD_PRELOAD": str(_shim()), "HOLDFAST_CLOCK": str(self.path)}

    def restart(self) -> None:
        """Set the wall clock back to its first instant, for a new lab. The monotonic clock continues."""
        self._now_us = ManualClock().now_us()
        self._tell()

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._tell()

    def set_back(self, seconds: float) -> None:
        super().set_back(seconds)
        self._tell()

    def _tell(self) -> None:
        self._told[:] = self.now_us().to_bytes(_SIZE, sys.byteorder)


def _shim() -> Path:
    """The compiled shim, stored next to the virtual environment: compiled once for each version of the source."""
    made = Path(sys.prefix) / "share" / f"holdfast-clock-{_SOURCE.stat().st_mtime_ns}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=made.parent) as workshop:
            draft = Path(workshop) / "shim.so"
            subprocess.run([*_compiler(), "-shared", "-fPIC", "-O2", "-o", draft, _SOURCE, "-ldl"], check=True)
            os.replace(draft, made)
    return made


def _compiler() -> list[str]:
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    return [sys.executable, "-m", "ziglang", "cc"]
