"""Servers from Debian's packages, unpacked next to the virtual environment; this does not need root."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from .running import Missing

_UNPACKED = Path(sys.prefix) / "share" / "holdfast-servers"
_TOOLS = ("apt-get", "apt-cache", "dpkg-deb", "dpkg-query")
_DOWNLOAD_WITHIN_S = 120.0


class Package(NamedTuple):
    """A server in Debian's packages."""

    name: str
    """The directory name under which it is unpacked."""
    packages: Sequence[str]
    """The packages; the first one has the server's version."""
    files: Sequence[str]
    """The program that must exist, below `usr`."""

    def home(self) -> Path:
        """The directory with its `bin`, `sbin` and `share`; the packages are unpacked if they are missing."""
        for home in sorted(_UNPACKED.glob(f"{self.name}-*/usr"), reverse=True):
            if self.is_home(home):
                return home
        return self._unpack()

    def is_home(self, home: Path) -> bool:
        return all((home / file).exists() for file in self.files)

    def _unpack(self) -> Path:
        """Unpack the packages next to the virtual environment. If several processes do so at once, one of them wins."""
        if not all(shutil.which(tool) for tool in _TOOLS):
            raise Missing(f"the system has no {self.name}, nor Debian's tools to fetch it: install {self.packages[0]}")
        _UNPACKED.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=_UNPACKED) as workshop:
            packages = self._downloaded(Path(workshop))
            [server] = (package for package in packages if package.name.startswith(f"{self.packages[0]}_"))
            version = _output(["dpkg-deb", "--field", str(server), "Version"]).rpartition(":")[2].strip()
            draft, made = Path(workshop) / "tree", _UNPACKED / f"{self.name}-{version}"
            for package in packages:
                _output(["dpkg-deb", "--extract", str(package), str(draft)])
            try:
                os.rename(draft, made)
            except OSError:
                if not self.is_home(made / "usr"):
                    raise
        return made / "usr"

    def _downloaded(self, workshop: Path) -> list[Path]:
        """The packages and their missing libraries, by the package lists of the system or by new ones."""
        try:
            self._download(workshop, [])
        except subprocess.CalledProcessError:
            private = _private_lists(workshop)
            try:
                _output(["apt-get", *private, "update"])
                self._download(workshop, private)
            except subprocess.CalledProcessError as problem:
                said = (problem.stderr or problem.stdout).strip()
                raise Missing(
                    f"the system has no {self.name}, and Debian's packages cannot be had: {said}"
                ) from problem
        return sorted(workshop.glob("*.deb"))

    def _download(self, workshop: Path, options: Sequence[str]) -> None:
        needed = _output(["apt-cache", *options, "depends", "--important", *self.packages])
        names = {line.split()[1] for line in needed.splitlines() if line.strip().startswith("Depends:")}
        missing = sorted(name for name in names if name.startswith("lib") and not _is_installed(name))
        _output(["apt-get", *options, "download", *self.packages, *missing], workshop)


def libraries(home: Path) -> dict[str, str]:
    """The environment variables for a server that was unpacked there; none for the system's server."""
    if not home.is_relative_to(_UNPACKED):
        return {}
    folders = sorted({str(library.parent) for library in home.glob("lib/**/*.so.*")})
    return {"LD_LIBRARY_PATH": ":".join(folders)}


def with_libraries(home: Path, command: Sequence[str]) -> list[str]:
    """The command with its own environment: only the server uses these libraries, not the process that starts it."""
    return ["env", *(f"{name}={value}" for name, value in libraries(home).items()), *command]


def _is_installed(package: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.startswith("installed")


def _private_lists(workshop: Path) -> list[str]:
    """Options that make apt store its lists here, so that it does not need root."""
    state, cache = workshop / "state", workshop / "cache"
    for folder in (state / "lists/partial", cache / "archives/partial"):
        folder.mkdir(parents=True)
    settings = {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": cache,
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _output(command: Sequence[str], folder: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=_DOWNLOAD_WITHIN_S,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout
