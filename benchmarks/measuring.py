"""Shared by the benchmarks: figures and their table, taking turns, a directory with jobs, and workers."""

import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench_app import noop
from bench_job import LEDGER_VARIABLE, has_begun, make_ledger, payload, starts
from holdfast import Holdfast, __version__
from holdfast.config import Settings
from holdfast.definition import JobDefinition

CHUNK: Final = 1000
POLL_S: Final = 0.005
PATIENCE_S: Final = 1800.0
# In the directory of all sites: leads into memory, so that noting a start writes to no disk.
LEDGERS: Final = "ledgers"

UNSETTLED: Final = """
    SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_ready WHERE state <= 1
    UNION ALL SELECT 1 FROM holdfast_jobs INDEXED BY holdfast_jobs_leased WHERE state = 2 LIMIT 1"""


@dataclass(frozen=True)
class Plan:
    """The parts to measure, and the directory."""

    directory: Path
    rounds: int
    jobs: int
    commands: int
    backlogs: Sequence[int]
    take: int
    memory_jobs: int
    idle_s: float
    probes: int


@dataclass(frozen=True)
class Figure:
    """One line of the table: a value for each round."""

    what: str
    values: Sequence[float]
    unit: str
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def document(self) -> dict[str, object]:
        return {
            "what": self.what,
            "unit": self.unit,
            "median": self.median,
            "lowest": min(self.values),
            "highest": max(self.values),
            "values": list(self.values),
            "note": self.note,
        }

    def line(self) -> str:
        spread = f"{_number(min(self.values))} - {_number(max(self.values))}" if len(self.values) > 1 else ""
        return f"{self.what:<58} {_number(self.median):>9} {self.unit:<8} {spread:<19} {self.note}".rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ratio(what: str, ours: Sequence[float], theirs: Sequence[float], note: str) -> Figure:
    """The ratio of ours to theirs for each round: noise of the machine affects both sides of a round."""
    return Figure(what, [one / other for one, other in zip(ours, theirs, strict=True)], "×", note)


def take_turns(rounds: int, contenders: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Measure each contender once per round, starting with another one each time."""
    measured: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(rounds):
        for name in order:
            measured[name].append(contenders[name]())
            say(f"round {turn + 1} of {rounds}: {name}: {_number(measured[name][-1])}")
        order = [*order[1:], order[0]]
    return measured


def say(sentence: str) -> None:
    """Print progress to stderr, separate from the results."""
    print(sentence, file=sys.stderr, flush=True)


def machine(directory: Path) -> str:
    """The machine of these figures, which cannot be compared with figures of other machines."""
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    return (
        f"{os.cpu_count()} cores of {_processor()}, {platform.system()} {platform.release()}, "
        f"{_file_system(directory)}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"Holdfast {__version__}; load before: {load}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(len(place), kind) for _, place, kind in mounts if directory.absolute().is_relative_to(place)]
    return max(above)[1] if above else "unknown file system"


class Site:
    """A directory with a database of jobs, its own project, and the ledger of started jobs."""

    def __init__(self, directory: Path, jobs: int = 1) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.database = directory / "jobs.db"
        self.ledger = directory.parent / LEDGERS / directory.name
        self._jobs = jobs
        (directory / "holdfast.toml").touch()

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database.absolute()}"

    def application(self) -> Holdfast:
        return Holdfast(self.url, settings=Settings(), directory=self.directory)

    def fill(self, jobs: int, *, start: int = 0) -> None:
        """Enqueue that many jobs, and checkpoint the write-ahead log."""
        self._jobs = max(self._jobs, start + jobs)
        with self.application() as hf:
            for chunk in chunks(range(start, start + jobs), 10 * CHUNK):
                hf.enqueue_many(definitions(chunk))
        os.sync()

    def copy(self, name: str) -> "Site":
        """A copy of the jobs in another directory, fsynced before the measurement."""
        assert not Path(f"{self.database}-wal").exists(), "someone still has the database open"
        place = self.directory.with_name(name)
        shutil.copytree(self.directory, place)
        os.sync()
        return Site(place, self._jobs)

    def remove(self) -> None:
        self.ledger.unlink(missing_ok=True)
        shutil.rmtree(self.directory)

    @contextmanager
    def running(self, command: Sequence[str], **variables: str) -> "Generator[subprocess.Popen[bytes]]":
        """A program in this directory, stopped after the block if it has not exited."""
        with self.running_all([command], **variables) as [process]:
            yield process

    @contextmanager
    def running_all(
        self, commands: Sequence[Sequence[str]], **variables: str
    ) -> "Generator[list[subprocess.Popen[bytes]]]":
        """Several programs with one ledger."""
        make_ledger(self.ledger, self._jobs)
        environment = self.environment(**variables)
        with (self.directory / "log").open("wb") as log:
            processes = [
                subprocess.Popen(command, cwd=self.directory, env=environment, stdout=log, stderr=log)
                for command in commands
            ]
        try:
            yield processes
        finally:
            for process in processes:
                if process.poll() is None:
                    process.terminate()
            for process in processes:
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment of the programs."""
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "PYTHONPATH": path, LEDGER_VARIABLE: str(self.ledger), **variables}

    def worker(self, *options: str) -> list[str]:
        """The command line of a worker with two children, as a user would start it, but without output."""
        start = [sys.executable, "-m", "holdfast", "worker", "start"]
        return [*start, *options, "--count", "2", "--quiet", "--url", self.url]

    def ended(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait until a program exits by itself, with code 0."""
        if process.wait(PATIENCE_S) != 0:
            raise SystemExit(f"{process.args!r} failed:\n{self.log()}")

    def until_empty(self, process: "subprocess.Popen[bytes]", query: str, database: Path | None = None) -> int:
        """When another connection first saw that the query finds nothing, in nanoseconds since the epoch."""
        connection = sqlite3.connect(database or self.database, timeout=30, isolation_level=None)
        try:
            return self.until(process, lambda: connection.execute(query).fetchone() is None)
        finally:
            connection.close()

    def until(self, process: "subprocess.Popen[bytes]", is_so: Callable[[], bool]) -> int:
        """When the condition was first seen to be true, in nanoseconds since the epoch."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            has_ended = process.poll() is not None  # checked first: what it did before its exit counts
            if is_so():
                return time.time_ns()
            if has_ended or time.monotonic() > give_up_at:
                raise SystemExit(f"{process.args!r} has not done its work:\n{self.log()}")
            time.sleep(POLL_S)

    def completed(self, since_us: int = 0) -> "Span":
        """The completed jobs since then by their records, from the first start to the last verdict."""
        connection = sqlite3.connect(self.database)
        try:
            jobs, last = connection.execute(
                "SELECT count(*), max(finished_at) FROM holdfast_jobs WHERE state = 4 AND finished_at >= ?", (since_us,)
            ).fetchone()
            (first,) = connection.execute(
                "SELECT min(started_at) FROM holdfast_attempts WHERE started_at >= ?", (since_us,)
            ).fetchone()
        finally:
            connection.close()
        return Span(jobs, first * 1000, last * 1000)

    def starts(self) -> dict[int, int]:
        return starts(self.ledger)

    def has_begun(self) -> bool:
        """Whether the first job has started."""
        return has_begun(self.ledger)

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-2000:]


@dataclass(frozen=True)
class Span:
    """That many jobs between two instants, in nanoseconds since the epoch."""

    jobs: int
    first_ns: int
    last_ns: int

    @property
    def rate(self) -> float:
        return self.jobs / (self.last_ns - self.first_ns) * 1e9


def definitions(numbers: Iterable[int]) -> list[JobDefinition]:
    return [noop.define(**payload(number)) for number in numbers]


def chunks(numbers: range, size: int = CHUNK) -> list[range]:
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def report(facts: str, sections: Mapping[str, Sequence[Figure]], *, as_json: bool) -> str:
    if as_json:
        documents = {name: [figure.document() for figure in figures] for name, figures in sections.items()}
        return json.dumps({"machine": facts, "sections": documents}, indent=2)
    lines = [facts, "medians of the rounds, and from the lowest to the highest"]
    for name, figures in sections.items():
        lines += ["", *(f"{name if at == 0 else '':<9} {figure.line()}" for at, figure in enumerate(figures))]
    return "\n".join(lines)
