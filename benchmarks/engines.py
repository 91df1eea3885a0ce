"""Throughput of the engines on servers, compared with the bare driver and with peers on the same server. Linux only.

    .venv/bin/pip install --group bench         # the peers; one that is missing is left out
    .venv/bin/python benchmarks/engines.py [postgres|mysql|redis|all ...] [--json] [--rounds 3] [--jobs 20000]
    .venv/bin/python benchmarks/engines.py --profile redis --jobs 200000

The servers are started for this run, on free ports, with the settings that the output lists. All of them use their
default durability, Redis with its append-only file, which it fsyncs every second. Contenders take turns in one run on
one machine, so that their ratio is valid even on a noisy one; absolute numbers of different runs cannot be compared.
Every turn starts with an empty server: the data of the previous turn is dropped, the jobs are enqueued, and the server
gets time for its background work (vacuum, statistics, a checkpoint).

enqueue   `enqueue_many` with a thousand jobs per call, which are signed within the measured time; and the same
          statements, recorded and repeated by the bare driver. Before a drain, peers enqueue in their fastest way:
          PgQueuer also a thousand at a time, repid a hundred calls at a time, Dramatiq and Huey one by one.
drain     No-op jobs with a payload of 100 bytes, signed and verified, records retained: one worker with two children,
          and two workers with one child each; every peer with two worker processes. Measured from the first start of a
          handler to the moment when the last job is settled: ours when none is leased, PgQueuer's when its table is
          empty, repid's when its group has nothing pending, Dramatiq's when its messages are deleted, Huey's, which
          has no acknowledgements, when the last handler was called. Every call of a handler is recorded; none may
          happen twice.
exchange  Settle a batch and claim the next, in one process without a worker: by the engine, and by the bare driver
          with the same statements and prepared parameters, without converting rows to values.
pick-up   The time until the handler of a job starts that is enqueued while the worker is idle, from the start and from
          the return of the call that enqueues it.
"""

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from bench_job import count_starts, probed
from exchanging import by_driver, by_engine
from holdfast.state.facts import Facts
from holdfast.values import DEFAULT_QUEUE, JobState
from holdfast.worker.executors.guardian import descendants, processes
from measuring import LEDGERS, Figure, Site, Span, chunks, definitions, machine, ratio, report, say, take_turns
from peers import ON_POSTGRES, ON_REDIS, Peer
from profiling import processor_s, sampled, told
from replaying import heard, said_again
from servers import MariadbPlace, Missing, Place, PostgresPlace, RedisPlace

ONE_WORKER: Final = "Holdfast, one worker of two children"
TWO_WORKERS: Final = "Holdfast, two workers of one child"
PARTS: Final = ("enqueue", "drain", "exchange", "pick-up")
WARM_UP: Final = 20


@dataclass(frozen=True)
class Plan:
    """The parts to measure, and the directory."""

    directory: Path
    rounds: int
    jobs: int
    batches: Sequence[int]
    probes: int
    parts: Sequence[str]


@dataclass(frozen=True)
class Contest:
    """One engine, its peers, and its measurements."""

    place: Callable[[], Place]
    peers: Sequence[Peer[Any]] = ()
    wanted: str = ""
    pick_up: str = ""


CONTESTS: Final[Mapping[str, Contest]] = {
    "postgres": Contest(PostgresPlace, ON_POSTGRES, "wanted: 1.3 or more, better 2", "wanted: under 3"),
    "mysql": Contest(MariadbPlace),
    "redis": Contest(RedisPlace, ON_REDIS, "wanted: 2.5 or more, better 4", "wanted: under 3"),
}


class EngineSite(Site):
    """The directory of one turn; its jobs are on a server."""

    def __init__(self, directory: Path, jobs: int, place: Place) -> None:
        super().__init__(directory, jobs)
        self._place = place

    @property
    def url(self) -> str:
        return self._place.url

    def workers(self, number: int, children: int) -> list[list[str]]:
        start = [sys.executable, "-m", "holdfast", "worker", "start", "bench_app:hf", "--quiet", "--url", self.url]
        return [[*start, "--count", str(children)]] * number

    def enqueue(self, jobs: int) -> float:
        """Enqueue that many; jobs a second."""
        with self.application() as hf:
            Facts(hf.backend().state).of("anything")  # creates the tables, which is not measured
            made = [definitions(chunk) for chunk in chunks(range(jobs))]
            began = time.perf_counter()
            for many in made:
                hf.enqueue_many(many)
            return jobs / (time.perf_counter() - began)

    def check(self, jobs: int) -> None:
        with self.application() as hf:
            assert hf.backend().counts() == {DEFAULT_QUEUE: {JobState.COMPLETED: jobs}}


class Bench:
    """One engine's server, and the turns on it."""

    def __init__(self, plan: Plan, place: Place) -> None:
        self.plan = plan
        self.place = place
        self.enqueued: dict[str, list[float]] = {}

    def site(self, jobs: int) -> EngineSite:
        """An empty server, and a new directory."""
        self.place.empty()
        return EngineSite(self.plan.directory / "turn", jobs, self.place)

    def fill(self, site: EngineSite, name: str, peer: Peer[Any] | None = None) -> None:
        jobs = self.plan.jobs
        rate = site.enqueue(jobs) if peer is None else jobs / peer.ask(site, self.place, f"fill({jobs})")["seconds"]
        self.enqueued.setdefault(name, []).append(rate)
        self.place.settle_down()
        os.sync()

    def enqueue(self) -> float:
        site = self.site(self.plan.jobs)
        rate = site.enqueue(self.plan.jobs)
        site.remove()
        return rate

    def enqueue_by_driver(self) -> float:
        site, jobs = self.site(self.plan.jobs), self.plan.jobs
        with site.application() as hf:
            Facts(hf.backend().state).of("anything")
            calls: list[list[Any]] = []
            for chunk in chunks(range(jobs)):
                with heard(self.place) as said:
                    hf.enqueue_many(definitions(chunk))
                calls.append(said)
        self.place.empty()
        with site.application() as hf:
            Facts(hf.backend().state).of("anything")
            rate = jobs / said_again(self.place, calls)
            assert hf.backend().counts() == {DEFAULT_QUEUE: {JobState.PENDING: jobs}}
        site.remove()
        return rate

    def drain_ours(self, name: str, workers: int, children: int) -> float:
        site = self.site(self.plan.jobs)
        self.fill(site, name)
        rate = self._drain(site, site.workers(workers, children), lambda: not self.place.has_leases())
        site.check(self.plan.jobs)
        site.remove()
        return rate

    def drain_peer(self, peer: Peer[Any]) -> float:
        site = self.site(self.plan.jobs)
        self.fill(site, peer.name, peer)
        rate = self._drain(site, peer.workers(2), lambda: peer.is_settled(self.place), **peer.variables(self.place))
        peer.check(self.place, self.plan.jobs)
        site.remove()
        return rate

    def _drain(
        self, site: Site, commands: Sequence[Sequence[str]], is_settled: Callable[[], bool], **variables: str
    ) -> float:
        jobs = self.plan.jobs
        with site.running_all(commands, **variables) as processes:
            # Only then is the server asked, which has enough to do until then.
            site.until(processes[0], lambda: count_starts(site.ledger) == jobs)
            settled_ns = site.until(processes[0], is_settled)
        started = site.starts()
        assert len(started) == jobs
        return Span(jobs, min(started.values()), settled_ns).rate

    def exchange(self, batch: int, *, by_the_driver: bool) -> float:
        site = self.site(self.plan.jobs)
        site.enqueue(self.plan.jobs)
        self.place.settle_down()
        os.sync()
        if by_the_driver:
            rate = by_driver(self.place, self.plan.jobs, batch)
        else:
            with site.application() as hf:
                rate = by_engine(hf, self.plan.jobs, batch)
        site.check(self.plan.jobs)
        site.remove()
        return rate

    def probe_ours(self) -> "Delays":
        jobs = WARM_UP + self.plan.probes
        site = self.site(jobs)
        times: dict[int, tuple[int, int]] = {}
        with site.application() as hf, site.running_all(site.workers(1, 2)) as [process]:
            os.environ.update(site.environment())
            for number, definition in enumerate(definitions(range(jobs))):
                with probed(number, times):
                    hf.enqueue(definition)
            site.until(process, lambda: count_starts(site.ledger) == jobs)
        return Delays.of(site, times)

    def probe_peer(self, peer: Peer[Any]) -> "Delays":
        jobs = WARM_UP + self.plan.probes
        site = self.site(jobs)
        peer.ask(site, self.place, "fill(0)")
        with site.running_all(peer.workers(1), **peer.variables(self.place)) as processes:
            told = peer.ask(site, self.place, f"probe({jobs})")
            site.until(processes[0], lambda: count_starts(site.ledger) == jobs)
        return Delays.of(site, {int(number): (called, returned) for number, (called, returned) in told.items()})


@dataclass(frozen=True)
class Delays:
    """Milliseconds until jobs were started."""

    from_call: Sequence[float]
    from_return: Sequence[float]

    @classmethod
    def of(cls, site: Site, times: Mapping[int, tuple[int, int]]) -> "Delays":
        started = site.starts()
        site.remove()
        probes = [number for number in times if number >= WARM_UP]
        return cls(
            from_call=[(started[number] - times[number][0]) / 1e6 for number in probes],
            from_return=[(started[number] - times[number][1]) / 1e6 for number in probes],
        )


def measure(plan: Plan, place: Place, contest: Contest) -> list[Figure]:
    """All that is asked of one engine."""
    bench = Bench(plan, place)
    peers = _installed(contest.peers)
    figures: list[Figure] = []
    if "enqueue" in plan.parts:
        figures += _enqueues(bench)
    if "drain" in plan.parts:
        figures += _drains(bench, peers, contest)
    if "exchange" in plan.parts:
        figures += _exchanges(bench)
    if "pick-up" in plan.parts:
        figures += _pick_ups(bench, peers, contest)
    return figures


def _installed(peers: Sequence[Peer[Any]]) -> list[Peer[Any]]:
    missing = sorted({peer.package for peer in peers if peer.version is None})
    for package in missing:
        say(f"{package} is not installed, and left out: {sys.executable} -m pip install {package}")
    return [peer for peer in peers if peer.version is not None]


def _enqueues(bench: Bench) -> list[Figure]:
    ours, bare = "enqueue: Holdfast, enqueue_many", "enqueue: the bare driver"
    rates = take_turns(bench.plan.rounds, {ours: bench.enqueue, bare: bench.enqueue_by_driver})
    return [
        *(Figure(name, values, "jobs/s") for name, values in rates.items()),
        ratio("enqueue: engine / driver", rates[ours], rates[bare], ""),
    ]


def _drains(bench: Bench, peers: Sequence[Peer[Any]], contest: Contest) -> list[Figure]:
    turns: dict[str, Callable[[], float]] = {
        ONE_WORKER: partial(bench.drain_ours, ONE_WORKER, 1, 2),
        TWO_WORKERS: partial(bench.drain_ours, TWO_WORKERS, 2, 1),
        **{peer.name: partial(bench.drain_peer, peer) for peer in peers},
    }
    rates = take_turns(bench.plan.rounds, turns)
    enqueued, notes = bench.enqueued, {peer.name: peer.note for peer in peers}
    figures = [
        Figure("enqueue, before a drain: Holdfast", enqueued[ONE_WORKER], "jobs/s"),
        *(Figure(f"enqueue, before a drain: {name}", enqueued[name], "jobs/s") for name in notes),
        *(Figure(f"drain: {name}", rates[name], "jobs/s", notes.get(name, "")) for name in turns),
    ]
    if peers:
        best = max(notes, key=lambda name: median(rates[name]))
        figures += [
            ratio(f"drain: {_short(ours)} / {best}", rates[ours], rates[best], contest.wanted)
            for ours in (ONE_WORKER, TWO_WORKERS)
        ]
        best = max(notes, key=lambda name: median(enqueued[name]))
        figures.append(ratio(f"enqueue: Holdfast / {best}", enqueued[ONE_WORKER], enqueued[best], ""))
    return figures


def _short(name: str) -> str:
    return name.partition(", ")[2]


def _exchanges(bench: Bench) -> list[Figure]:
    turns = {
        f"exchange: {who}, {batch} at once": partial(bench.exchange, batch, by_the_driver=bare)
        for batch in bench.plan.batches
        for who, bare in (("the engine alone", False), ("the bare driver", True))
    }
    rates = take_turns(bench.plan.rounds, turns)
    return [
        *(Figure(name, values, "jobs/s") for name, values in rates.items()),
        *(
            ratio(
                f"exchange: engine / driver, {batch} at once",
                rates[f"exchange: the engine alone, {batch} at once"],
                rates[f"exchange: the bare driver, {batch} at once"],
                "",
            )
            for batch in bench.plan.batches
        ),
    ]


def _pick_ups(bench: Bench, peers: Sequence[Peer[Any]], contest: Contest) -> list[Figure]:
    first_of = {peer.package: peer for peer in reversed(peers)}
    turns: dict[str, Callable[[], Delays]] = {"Holdfast": bench.probe_ours}
    turns |= {peer.name: partial(bench.probe_peer, peer) for peer in peers if peer in first_of.values()}
    delays: dict[str, list[Delays]] = {name: [] for name in turns}

    def median_of(name: str, turn: Callable[[], Delays]) -> float:
        delays[name].append(turn())
        return median(delays[name][-1].from_return)

    take_turns(bench.plan.rounds, {name: partial(median_of, name, turn) for name, turn in turns.items()})
    figures: list[Figure] = []
    for name, rounds in delays.items():
        wanted = contest.pick_up if name == "Holdfast" else ""
        figures += [
            Figure(f"pick-up: {name}, median", [median(one.from_return) for one in rounds], "ms", wanted),
            Figure(f"pick-up: {name}, 95th percentile", [_p95(one.from_return) for one in rounds], "ms"),
            Figure(f"pick-up: {name}, from the call, median", [median(one.from_call) for one in rounds], "ms", wanted),
        ]
    return figures


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1]


def profile(plan: Plan, place: Place, seconds: float) -> list[str]:
    """The CPU time of a job by part, in the worker and in the server."""
    bench = Bench(plan, place)
    site = bench.site(plan.jobs)
    say(f"enqueueing {plan.jobs:,} jobs")
    bench.fill(site, "")
    with site.running_all(site.workers(1, 2)) as [process]:
        site.until(process, site.has_begun)
        time.sleep(0.5)
        say(f"sampling for {seconds:g} s")
        serving = [place.server.pid, *descendants(place.server.pid, processes())]
        before = sum(map(processor_s, serving))
        parent, child, jobs = sampled(site, process.pid, seconds, lambda: count_starts(site.ledger))
        served_us = (sum(map(processor_s, serving)) - before) * 1e6 / jobs
        assert count_starts(site.ledger) < plan.jobs, "there were too few jobs to be busy all the time: --jobs"
    return [*told(parent, child, jobs, seconds), "", f"the server: {served_us:.1f} µs"]


def main() -> None:
    options = _options()
    # The benchmarks measure the defaults, whatever is set up here.
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        del os.environ[name]
    os.environ["HOLDFAST_SIGNING_KEY"] = secrets.token_hex(32)
    # Stops the servers on SIGTERM as well.
    signal.signal(signal.SIGTERM, _stop)
    directory = options.directory.resolve()
    facts = [machine(directory)]
    sections: dict[str, list[Figure]] = {}
    with ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory)))
        ram = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        # The servers' directories are also on the given disk.
        tempfile.tempdir = str(disk)
        (disk / LEDGERS).symlink_to(ram)
        plan = Plan(
            directory=disk,
            rounds=options.rounds,
            jobs=options.jobs,
            batches=[int(part) for part in options.batches.split(",")],
            probes=options.probes,
            parts=options.parts.split(","),
        )
        for name, contest in CONTESTS.items():
            asked = [options.profile] if options.profile else options.engines
            if name not in asked and "all" not in asked:
                continue
            try:
                place = contest.place()
            except Missing as problem:
                say(f"{name} is left out: {problem}")
                continue
            stack.callback(place.close)
            facts.append(place.facts())
            say(facts[-1])
            if options.profile:
                print(facts[0], facts[-1], *profile(plan, place, options.seconds), sep="\n")
            else:
                sections[name] = measure(plan, place, contest)
    if sections:
        print(report("\n".join(facts), sections, as_json=options.json))


def _stop(number: int, frame: object) -> None:
    raise SystemExit(f"stopped by signal {number}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", choices=[*CONTESTS, "all"], default="all", metavar="ENGINE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20_000, help="drain, enqueue, exchange: how many")
    parser.add_argument("--batches", default="100,1000", help="exchange: how many jobs at once")
    parser.add_argument("--probes", type=int, default=60, help="pick-up: how many jobs a round")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"what to measure, of {', '.join(PARTS)}")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on a local disk, not a memory file system")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", choices=list(CONTESTS), help="sample a worker with py-spy instead; 200,000 --jobs")
    parser.add_argument("--seconds", type=float, default=5.0, help="profile: how long to sample")
    return parser.parse_args()


if __name__ == "__main__":
    main()
