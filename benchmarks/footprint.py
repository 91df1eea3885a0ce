"""Resource usage of a worker: memory while it processes many jobs, CPU time while it is idle."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Final

from holdfast import Holdfast
from holdfast.worker.executors.guardian import descendants, processes
from measuring import UNSETTLED, Figure, Plan, Site, definitions, say

SAMPLE_S: Final = 0.1
WARM_UP_JOBS: Final = 50
SETTLE_DOWN_S: Final = 3.0
MB: Final = 1024.0


@dataclass(frozen=True)
class Sample:
    """The memory of one process in MB: resident, and its share of it; `peak` is the most that was ever resident."""

    rss: float
    pss: float
    peak: float


def measure_memory(plan: Plan) -> list[Figure]:
    """Sample parent, children and guardians all through a long drain."""
    site = Site(plan.directory / "memory")
    say(f"enqueueing {plan.memory_jobs:,} jobs")
    site.fill(plan.memory_jobs)
    parent: list[Sample] = []
    families: list[dict[str, list[Sample]]] = []
    with site.running(site.worker("bench_app:hf", "--burst")) as process:
        say("draining them")
        while process.poll() is None:
            family = _family(process.pid)
            own = _sample(process.pid)
            # Before the first job it is still starting, and it may exit before its last sample.
            if own is not None and site.has_begun():
                parent.append(own)
                families.append(family)
            time.sleep(SAMPLE_S)
        site.ended(process)
    assert len(site.starts()) == plan.memory_jobs
    site.remove()
    return [*_of_parent(parent, plan.memory_jobs), *_of_family(parent, families)]


def _of_parent(samples: Sequence[Sample], jobs: int) -> list[Figure]:
    tenth = max(1, len(samples) // 10)
    first, last = fmean(one.rss for one in samples[:tenth]), fmean(one.rss for one in samples[-tenth:])
    return [
        Figure(f"parent over {jobs:,} jobs: peak RSS", [samples[-1].peak], "MB", "wanted: under 80"),
        Figure("parent: RSS, mean of the first tenth of the time", [first], "MB"),
        Figure("parent: RSS, mean of the last tenth of the time", [last], "MB"),
        Figure("parent: last tenth / first tenth", [last / first], "×", "wanted: flat"),
        Figure("parent: highest PSS", [max(one.pss for one in samples)], "MB"),
    ]


def _of_family(parent: Sequence[Sample], families: Sequence[dict[str, list[Sample]]]) -> list[Figure]:
    children = [one for family in families for one in family["children"]]
    guardians = [one for family in families for one in family["guardians"]]
    child = max(one.peak for one in children)
    bare, importing = _python("pass"), _python("import bench_app")
    all_of_it = [
        own.pss + sum(one.pss for group in family.values() for one in group)
        for own, family in zip(parent, families, strict=True)
    ]
    return [
        Figure("a child: peak RSS, the highest of two", [child], "MB"),
        Figure("a child: highest PSS", [max(one.pss for one in children)], "MB"),
        Figure("RSS of  python -c pass", [bare.rss], "MB"),
        Figure("RSS of  python -c 'import bench_app'", [importing.rss], "MB"),
        Figure("a child above  python -c pass", [child - bare.rss], "MB", "wanted: under 50"),
        Figure("a guardian: peak RSS", [max(one.peak for one in guardians)], "MB"),
        Figure("a guardian: highest PSS", [max(one.pss for one in guardians)], "MB"),
        Figure("parent, two children, two guardians: highest PSS", [max(all_of_it)], "MB"),
    ]


def _family(parent: int) -> dict[str, list[Sample]]:
    """The processes of a worker by role."""
    family: dict[str, list[Sample]] = {"children": [], "guardians": []}
    for pid in descendants(parent, processes()):
        kind, sample = kind_of(pid), _sample(pid)
        if kind and sample is not None:
            family[kind].append(sample)
    return family


def kind_of(pid: int) -> str:
    """Which part of a worker a process is."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    # A guardian's own words contain those of the program it guards.
    if any(word.endswith(b"guardian.py") for word in words):
        return "guardians"
    return "children" if b"holdfast.executor" in words else ""


def _sample(pid: int) -> Sample | None:
    """The memory of a process; None if it is just ending."""
    try:
        status = _fields(Path(f"/proc/{pid}/status"))
        shared = _fields(Path(f"/proc/{pid}/smaps_rollup"))
        return Sample(rss=status["VmRSS"], pss=shared["Pss"], peak=status["VmHWM"])
    except (OSError, KeyError):
        return None


def _fields(file: Path) -> dict[str, float]:
    """The lines `Name: 123 kB`, in MB."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) / MB for words in lines if words[-1:] == ["kB"]}


def _python(code: str) -> Sample:
    """The memory of a Python that has run this and waits."""
    program = [sys.executable, "-c", f"{code}\nprint(flush=True)\ninput()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        sample = _sample(process.pid)
        process.stdin.write(b"\n")
        process.stdin.close()
    assert sample is not None
    return sample


def measure_idle(plan: Plan) -> list[Figure]:
    """The CPU time of an idle worker, and how soon it starts a new job."""
    site = Site(plan.directory / "idle", WARM_UP_JOBS + plan.probes)
    with site.application() as hf, site.running(site.worker("bench_app:hf")) as process:
        for definition in definitions(range(WARM_UP_JOBS)):
            hf.enqueue(definition)
        site.until_empty(process, UNSETTLED)
        time.sleep(SETTLE_DOWN_S)
        say(f"watching an idle worker for {plan.idle_s:g} s")
        per_cent = _processor_use(process.pid, plan.idle_s)
        say(f"enqueueing {plan.probes} jobs, one at a time")
        called, returned = _enqueue_now_and_then(hf, plan.probes)
        site.until_empty(process, UNSETTLED)
    started = site.starts()
    site.remove()
    from_return = [(started[number] - at) / 1e6 for number, at in returned.items()]
    from_call = [(started[number] - at) / 1e6 for number, at in called.items()]
    return [
        Figure("processor, of one core: parent, children, guardians", [sum(per_cent.values())], "%", "wanted: under 1"),
        *(Figure(f"  of it {kind}", [value], "%") for kind, value in per_cent.items()),
        Figure("pick-up, from the return of enqueue: median", [median(from_return)], "ms", "wanted: under 5"),
        Figure("pick-up, from the return of enqueue: 95th percentile", [_p95(from_return)], "ms"),
        Figure("pick-up, from the call of enqueue: median", [median(from_call)], "ms", "with the commit"),
        Figure("pick-up, from the call of enqueue: 95th percentile", [_p95(from_call)], "ms"),
    ]


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1]


def _processor_use(parent: int, seconds: float) -> dict[str, float]:
    """Per cent of one core, by kind of process."""
    kinds = {parent: "parent", **{pid: kind_of(pid) or "others" for pid in descendants(parent, processes())}}
    before = {pid: _ticks(pid) for pid in kinds}
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    used: dict[str, float] = {}
    for pid, kind in kinds.items():
        share = (_ticks(pid) - before[pid]) / os.sysconf("SC_CLK_TCK") / took * 100
        used[kind] = used.get(kind, 0.0) + share
    return used


def _ticks(pid: int) -> int:
    """The processor time of a process, its own and the kernel's for it."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    fields = stat[stat.rindex(b")") + 2 :].split()
    return int(fields[11]) + int(fields[12])


def _enqueue_now_and_then(hf: Holdfast, jobs: int) -> tuple[dict[int, int], dict[int, int]]:
    """When each call of `enqueue` began, and when it returned."""
    called: dict[int, int] = {}
    returned: dict[int, int] = {}
    numbers = range(WARM_UP_JOBS, WARM_UP_JOBS + jobs)
    for number, definition in zip(numbers, definitions(numbers), strict=True):
        time.sleep(random.uniform(0.02, 0.2))
        called[number] = time.time_ns()
        hf.enqueue(definition)
        returned[number] = time.time_ns()
    return called, returned
