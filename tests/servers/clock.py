"""`ServerClock`: the time of a server, moved by a test instead of waited for."""

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
    """A clock that a server shares: what is told here is what `shim.c`, preloaded there, answers."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.path = directory / "clock"
        self.path.write_bytes(bytes(_SIZE))
        with self.path.open("r+b") as file:
            self._told = mmap.mmap(file.fileno(), _SIZE)
        self._tell()

    def environment(self) -> dict[str, str]:
        """What a server is started with to live by this clock."""
        return {"LD_PRELOAD": str(_shim()), "HOLDFAST_CLOCK": str(self.path)}

    def restart(self) -> None:
        """Begin again at the first instant, for another store; for those who know the clock already, time goes on."""
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
    """The compiled shim, beside this interpreter's environment: compiled once for each version of the source."""
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
