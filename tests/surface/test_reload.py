"""A worker that follows its source: real processes, real files, real signals."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.cli.worker.running import watched_directories
from holdfast.errors import ConfigError
from holdfast.worker.reload import run_reloading

from ..faults.ledgers import GrowingFile
from ..faults.processes import DEADLINE_S, until
from .terminal import Terminal

FOR_EVER = "1e9"

RELOADER = """\
import sys
from pathlib import Path
from holdfast.worker.reload import run_reloading
grace_s, hurry_s = map(float, sys.argv[1:])
sys.exit(run_reloading([sys.executable, "worker.py"], [Path.cwd()], grace_s=grace_s, hurry_s=hurry_s))
"""

# Leaves with exit code 7 when it has been asked as often as shop.py wants, and writes down all that happens to it.
WORKER = """\
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
def note(what):
    with open("log.txt", "a") as log:
        log.write(f"{what}\\n")
note(f"process {os.getpid()}")
import shop
note(f"version {shop.VERSION}")
for _ in range(shop.PATIENCE):
    note(signal.sigwait({signal.SIGTERM, signal.SIGINT}).name)
sys.exit(7)
"""


class Site:
    """A project with a worker and its reloader."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._log = GrowingFile(directory / "log.txt")
        self._stderr = directory / "stderr.txt"
        self._said = GrowingFile(self._stderr)
        self.write("reloader.py", RELOADER)
        self.write("worker.py", WORKER)
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, name: str, text: str) -> None:
        """A file, changed in one step."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.draft")
        draft.write_text(text)
        draft.replace(path)

    def write_shop(self, version: int, *, patience: int = 1) -> None:
        self.write("shop.py", f"VERSION = {version}\nPATIENCE = {patience}\n")

    def start(self, *, grace_s: str = FOR_EVER, hurry_s: str = FOR_EVER) -> "subprocess.Popen[bytes]":
        """Start the reloader in a process group of its own, like a shell does."""
        # Compiled files tell versions apart by the second, and tests are faster than that.
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "reloader.py", grace_s, hurry_s],
                cwd=self.directory,
                env=environment,
                stderr=stderr,
                process_group=0,
            )
        return self._process

    @property
    def log(self) -> list[str]:
        """What the workers wrote down, without their process numbers."""
        return [line for line in self._log.lines() if not line.startswith("process ")]

    @property
    def pids(self) -> list[int]:
        """The process numbers of all workers so far."""
        return [int(line.split()[1]) for line in self._log.lines() if line.startswith("process ")]

    @property
    def said(self) -> list[str]:
        """What the reloader said; tracebacks of workers stand between its lines."""
        ours = ("reloading: ", "the worker ")
        return [line for line in self._said.lines() if line.startswith(ours)]

    def wait_for(self, line: str) -> None:
        """Wait until a worker has written that line, or the reloader has said it."""
        until(lambda: line in self.log + self.said, line)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for pid in self.pids:
            if runs(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_a_change_drains_the_worker_and_starts_it_again(site: Site) -> None:
    site.write_shop(1)
    site.start()
    site.wait_for("version 1")
    site.write_shop(2)
    site.wait_for("version 2")
    assert site.log == ["version 1", "SIGTERM", "version 2"]
    assert site.said == ["reloading: shop.py changed"]
    assert [runs(pid) for pid in site.pids] == [False, True]


def test_a_deleted_file_below_is_a_change(site: Site) -> None:
    site.write_shop(1)
    site.write("parts/a.py", "")
    site.start()
    site.wait_for("version 1")
    (site.directory / "parts/a.py").unlink()
    site.wait_for("reloading: parts/a.py changed")
    until(lambda: site.log == ["version 1", "SIGTERM", "version 1"], "the second worker")


def test_many_changes_are_summed_up_in_one_line(site: Site) -> None:
    site.write_shop(1, patience=2)
    site.start()
    site.wait_for("version 1")
    site.write("a.py", "")
    site.wait_for("SIGTERM")
    # While it drains nobody looks, so that they come together.
    for number in range(100):
        site.write(f"part{number}.py", "")
    os.kill(site.pids[0], signal.SIGTERM)
    until(lambda: len(site.said) > 1, "the second reload")
    assert re.fullmatch(r"reloading: part\d+\.py, part\d+\.py, part\d+\.py and \d+ more changed", site.said[1])


def test_files_that_are_not_the_applications_change_nothing(site: Site) -> None:
    site.write_shop(1)
    foreign = [".venv/lib/x.py", ".git/x.py", "__pycache__/x.py", "node_modules/x.py", "notes.txt", "jobs.db"]
    for name in foreign:
        site.write(name, "")
    site.start()
    site.wait_for("version 1")
    for name in foreign:
        site.write(name, "changed")
    site.write_shop(2)
    site.wait_for("version 2")
    assert site.said == ["reloading: shop.py changed"]
    assert site.log == ["version 1", "SIGTERM", "version 2"]


def test_a_file_that_changes_all_the_time_hides_no_other(site: Site) -> None:
    site.write_shop(1)
    is_over = threading.Event()

    def write_all_the_time() -> None:
        with (site.directory / "jobs.db").open("wb", buffering=0) as database:
            while not is_over.wait(0.001):
                database.write(b"x")

    writing = threading.Thread(target=write_all_the_time)
    writing.start()
    try:
        site.start()
        site.wait_for("version 1")
        os.kill(site.pids[0], signal.SIGTERM)
        site.wait_for("the worker exited with code 7; it will restart when a Python file changes")
        site.write_shop(2)
        site.wait_for("version 2")
    finally:
        is_over.set()
        writing.join()


def test_a_worker_that_cannot_start_waits_for_the_mending_of_its_source(site: Site) -> None:
    site.write("shop.py", "VERSION =\n")
    site.start()
    site.wait_for("the worker exited with code 1; it will restart when a Python file changes")
    site.write("shop.py", "VERSION = VERSION\n")
    until(lambda: len(site.said) == 3, "the second failure")
    site.write_shop(3)
    site.wait_for("version 3")
    ended, changed = site.said[0], "reloading: shop.py changed"
    assert site.said == [ended, changed, ended, changed]
    assert len(site.pids) == 3


def test_what_changes_while_the_old_worker_drains_starts_one_new_worker(site: Site) -> None:
    site.write_shop(1, patience=2)
    reloader = site.start()
    site.wait_for("version 1")
    site.write("a.py", "")
    site.wait_for("SIGTERM")
    site.write_shop(2)
    os.kill(site.pids[0], signal.SIGTERM)
    site.wait_for("version 2")
    reloader.terminate()
    assert reloader.wait(DEADLINE_S) == 7
    assert site.log == ["version 1", "SIGTERM", "SIGTERM", "version 2", "SIGTERM"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_worker_and_its_exit_code_is_ours(site: Site, number: signal.Signals) -> None:
    site.write_shop(1)
    reloader = site.start()
    site.wait_for("version 1")
    reloader.send_signal(number)
    assert reloader.wait(DEADLINE_S) == 7
    assert site.log == ["version 1", "SIGTERM"]
    assert not runs(site.pids[0])


def test_a_ctrl_c_of_the_terminal_reaches_the_worker_once(site: Site) -> None:
    site.write_shop(1, patience=2)
    reloader = site.start()
    site.wait_for("version 1")
    os.killpg(reloader.pid, signal.SIGINT)
    site.wait_for("SIGTERM")
    os.killpg(reloader.pid, signal.SIGINT)
    assert reloader.wait(DEADLINE_S) == 7
    assert site.log == ["version 1", "SIGTERM", "SIGTERM"]


def test_a_third_signal_kills(site: Site) -> None:
    site.write_shop(1, patience=100)
    reloader = site.start()
    site.wait_for("version 1")
    reloader.terminate()
    site.wait_for("SIGTERM")
    reloader.terminate()
    until(lambda: site.log.count("SIGTERM") == 2, "the second request")
    reloader.terminate()
    assert reloader.wait(DEADLINE_S) == 128 + signal.SIGKILL
    assert not runs(site.pids[0])


def test_a_signal_during_a_reload_starts_no_further_worker(site: Site) -> None:
    site.write_shop(1, patience=2)
    reloader = site.start()
    site.wait_for("version 1")
    site.write_shop(2)
    site.wait_for("SIGTERM")
    reloader.terminate()
    # The first signal only ends the reloader: the drain that is under way goes on.
    os.kill(site.pids[0], signal.SIGINT)
    assert reloader.wait(DEADLINE_S) == 7
    assert site.log == ["version 1", "SIGTERM", "SIGINT"]


def test_a_worker_that_does_not_drain_in_time_is_asked_again_and_then_killed(site: Site) -> None:
    site.write_shop(1, patience=100)
    site.start(grace_s="0.1", hurry_s="0.1")
    site.wait_for("version 1")
    site.write_shop(2)
    site.wait_for("version 2")
    assert site.log == ["version 1", "SIGTERM", "SIGTERM", "version 2"]
    assert site.said == ["reloading: shop.py changed", "the worker did not stop in time; killing it"]
    assert [runs(pid) for pid in site.pids] == [False, True]


def test_stopping_after_the_worker_has_ended_gives_its_exit_code(site: Site) -> None:
    site.write("shop.py", "raise SystemExit(9)\n")
    reloader = site.start()
    site.wait_for("the worker exited with code 9; it will restart when a Python file changes")
    reloader.terminate()
    assert reloader.wait(DEADLINE_S) == 9


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its starter has died")
def test_the_worker_drains_when_the_reloader_is_killed(site: Site) -> None:
    site.write_shop(1)
    reloader = site.start()
    site.wait_for("version 1")
    reloader.kill()
    until(lambda: not runs(site.pids[0]), "the end of the worker")
    assert site.log == ["version 1", "SIGTERM"]


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    started = tmp_path / "started"
    with pytest.raises(ConfigError, match=r"--reload needs .*: pip install watchfiles"):
        run_reloading(["touch", str(started)], [tmp_path])
    assert not started.exists()


def test_a_place_that_cannot_be_watched_is_an_error_and_nothing_is_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with pytest.raises(ConfigError, match=r"--reload cannot watch .*nowhere: "):
        run_reloading(["touch", str(started)], [tmp_path / "nowhere"])
    assert not started.exists()


def test_the_project_is_watched_from_anywhere_in_it(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    below = terminal.project / "src"
    below.mkdir()
    monkeypatch.chdir(below)
    assert watched_directories() == [terminal.project]


def test_outside_of_a_project_the_current_directory_is_watched(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(terminal.home)
    assert watched_directories() == [terminal.home]


def runs(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has taken leave of does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not Path("/proc/self").exists()


APPLICATION = """\
from holdfast import Holdfast
hf = Holdfast()

@hf.job
def version() -> int:
    return {version}
"""


def test_a_worker_started_with_reload_runs_the_new_code_after_a_change(site: Site) -> None:
    """The whole of it, through the command line: the reloader, the worker, its children and their application."""
    site.write("shop.py", APPLICATION.format(version=1))
    site.write("holdfast.toml", "")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    holdfast = [sys.executable, "-m", "holdfast"]

    def run_job() -> str:
        enqueue = [*holdfast, "enqueue", "--wait", "0", "--json", '{"job": "version"}']
        done = subprocess.run(
            enqueue, cwd=site.directory, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    start = [*holdfast, "worker", "start", "shop:hf", "--reload"]
    with subprocess.Popen(
        start, cwd=site.directory, env=environment, stderr=subprocess.PIPE, text=True, process_group=0
    ) as worker:
        try:
            assert '"result": 1' in run_job()
            site.write("shop.py", APPLICATION.format(version=2))
            assert worker.stderr is not None
            assert any("reloading: shop.py changed" in line for line in worker.stderr)
            assert '"result": 2' in run_job()
            worker.terminate()
            said = worker.stderr.read()
            assert worker.wait(DEADLINE_S) == 0
            assert "stopped · 1 done · nothing lost" in said
        finally:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
