"""An example in a directory of its own: its commands, its processes, and the requests they answer."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.faults.processes import DEADLINE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Copy:
    """A copy of an example, with nothing around it that would change what its commands do."""

    def __init__(self, name: str, directory: Path) -> None:
        self.directory = directory / name
        rubbish = shutil.ignore_patterns("__pycache__", ".holdfast", "*.sqlite3*", "*.db", "outbox")
        shutil.copytree(EXAMPLES / name, self.directory, ignore=rubbish)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HOLDFAST_", "XDG_", "PYTHON", "PYTEST_", "DJANGO_"))
        }
        self._environment = {
            **kept,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(directory),
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str) -> str:
        """What a command prints on stdout; it has to succeed."""
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command: str) -> None:
        """Run a command beside the test; what it says is in a file, and it is ended with the test."""
        with (self.directory / f"{len(self._running)}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=self.directory, env=self._environment, stdout=log, stderr=log)
        self._running.append(process)

    def said(self) -> str:
        """What the commands beside the test have said, for messages."""
        return "\n".join(log.read_text(encoding="utf-8") for log in sorted(self.directory.glob("?.log")))

    def end(self) -> list[int]:
        """Ask the commands beside the test to end, as an operator would, and return their exit codes."""
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        codes: list[int] = []
        for process in self._running:
            try:
                codes.append(process.wait(DEADLINE_S))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        self._running.clear()
        return codes

    def jobs(self) -> dict[str, dict[str, Any]]:
        """The jobs that are kept there, by their ids."""
        listed: list[dict[str, Any]] = json.loads(self.run("holdfast", "list", "--json"))
        return {job["id"]: job for job in listed}

    def readme(self) -> list[str]:
        """The commands that its page tells people to run, in order."""
        text = (self.directory / "README.md").read_text(encoding="utf-8")
        return [line for block in _BLOCK.findall(text) for line in block.splitlines()]


class Site:
    """A server that is being started, or runs."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def answers(self, path: str) -> bool:
        """Whether it answers at all yet."""
        with suppress(OSError):
            self.ask("GET", path)
            return True
        return False

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """The status and the document that it answers with."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._base + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except HTTPError as refused:
            with refused:
                text = refused.read()
            return refused.code, json.loads(text) if text.startswith((b"{", b"[")) else text.decode()
