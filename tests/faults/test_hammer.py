"""Eight processes call every verb of one engine concurrently: no error occurs, no job is lost or held twice.

With HOLDFAST_LONG=1 in the environment they run for a minute instead of a few seconds.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from holdfast.queues.contract import Engine, LeasePolicy
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Keyring
from holdfast.values import DeadReason, JobFilter, JobState, JobView

from ..servers.places import Place, every_engine
from .hammer import CRASH_LIMIT, KEY, Accepted, Claimed, Event, Reaped, Renewed, Settled
from .processes import DEADLINE_S, Programs, until

IS_LONG = os.environ.get("HOLDFAST_LONG") == "1"
SECONDS = 60 if IS_LONG else 5
HAMMERS = 8
SAMPLE = 200
FINAL = {"ack": JobState.COMPLETED, "abandon": JobState.DEAD, "cancel": JobState.CANCELLED}

pytestmark = pytest.mark.timeout(1200 if IS_LONG else 600)


@pytest.fixture
def programs(place: Place) -> Iterator[Programs]:
    programs = Programs(place.directory)
    yield programs
    programs.end_all()


class Hold:
    """One delivery of a job, as its holder recorded it."""

    def __init__(self, claimed: Claimed) -> None:
        self.delivery = claimed.delivery
        self.from_us = claimed.from_us
        self.until_us = self.latest_us = claimed.until_us
        self.verdicts: list[Settled] = []

    @property
    def settled(self) -> Settled | None:
        """The verdict that was applied, if any."""
        counted = [one for one in self.verdicts if one.held]
        assert len(counted) <= 1, "two verdicts of one delivery were believed"
        return counted[0] if counted else None


class Histories:
    """The events of each job from all ledgers."""

    def __init__(self, ledgers: list[Path]) -> None:
        self.accepted: list[str] = []
        self.holds: dict[str, list[Hold]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        decoder = msgspec.json.Decoder(Event)
        events = [decoder.decode(line) for ledger in ledgers for line in ledger.read_bytes().splitlines()]
        for event in events:
            match event:
                case Accepted(ids):
                    self.accepted += ids
                case Claimed(id):
                    self.holds[id].append(Hold(event))
                case Reaped(number):
                    self.counts["reaped"] += number
                case _:
                    continue
        for holds in self.holds.values():
            holds.sort(key=lambda hold: hold.delivery)
        for event in events:
            if isinstance(event, Renewed):
                hold = self.holds[event.id][event.delivery - 1]
                hold.until_us = max(hold.until_us, event.until_us)
                hold.latest_us = max(hold.latest_us, event.latest_us)
                self.counts["renewed"] += 1
            elif isinstance(event, Settled):
                self.holds[event.id][event.delivery - 1].verdicts.append(event)
                self.counts[event.verdict if event.held else "refused"] += 1

    def check(self, view: JobView) -> None:
        """Check that no two processes held the job at the same time, and that its record agrees with the ledgers."""
        holds = self.holds[view.id]
        assert [hold.delivery for hold in holds] == [*range(1, view.deliveries + 1)], "each delivery went to one"
        for hold in holds:
            for verdict in hold.verdicts:
                if verdict.held:
                    assert verdict.sent_us < hold.latest_us, "a verdict was believed though the lease had ended"
                else:
                    assert verdict.answered_us >= hold.until_us, "a verdict was refused while the lease held"
        for hold, following in pairwise(holds):
            self._check_succession(hold, following)
        settled = [hold.settled.verdict for hold in holds if hold.settled is not None]
        assert view.attempts == settled.count("nack") + settled.count("abandon")
        last = settled[-1] if settled and holds[-1].settled is not None else ""
        if last in FINAL:
            assert view.state is FINAL[last]
        elif view.state is JobState.DEAD:
            assert (view.dead_reason, view.crashes) == (DeadReason.CRASH_LOOP, CRASH_LIMIT)
        else:
            waiting = {JobState.PENDING, JobState.SCHEDULED}
            assert view.state in ({JobState.FAILED} if last == "nack" else waiting)

    def _check_succession(self, hold: Hold, following: Hold) -> None:
        settled = hold.settled
        if settled is None:
            assert following.from_us >= hold.until_us, "the job was given away while its lease held"
        else:
            assert settled.verdict not in FINAL, "a job that was over was delivered again"
            assert settled.sent_us <= following.from_us, "a verdict was believed though another had the job"


@every_engine
def test_eight_processes_hammer_one_engine_and_no_job_is_lost_or_held_twice(place: Place, programs: Programs) -> None:
    _hammer(place, programs, place.url)


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
def test_eight_processes_hammer_a_server_that_cannot_skip_what_is_locked(place: Place, programs: Programs) -> None:
    _hammer(place, programs, f"{place.url}&skip_locked=off")


def _hammer(place: Place, programs: Programs, url: str) -> None:
    ledgers = [place.directory / f"ledger-{number}" for number in range(HAMMERS)]
    hammers = [
        programs.module("tests.faults.hammer", url, str(number), str(SECONDS), str(ledger))
        for number, ledger in enumerate(ledgers)
    ]
    for hammer in hammers:
        hammer.wait_for("ready")
    for hammer in hammers:
        hammer.tell()
    for hammer in hammers:
        assert (hammer.ended(within_s=SECONDS + DEADLINE_S), hammer.complained) == (0, "")

    histories = Histories(ledgers)
    policy = LeasePolicy(crash_limit=CRASH_LIMIT)
    engine, _ = EngineFactory(Keyring.parse(KEY), policy=policy).open(url)
    with engine:
        until(lambda: _nobody_holds_any(engine), "the last leases to end")
        views = _all_jobs(engine)
        assert len(histories.accepted) == len(set(histories.accepted)) == len(views)
        assert set(histories.accepted) == {view.id for view in views}
        for view in views:
            histories.check(view)
        for view in views[:SAMPLE]:
            history = engine.get(view.id)
            assert history is not None
            assert [one.delivery for one in history.attempts] == [*range(1, view.deliveries + 1)]
    place.check()
    print(f"{len(views)} jobs: {dict(histories.counts)}")
    assert set(histories.counts) == {*FINAL, "nack", "release", "refused", "renewed", "reaped"}


def _nobody_holds_any(engine: Engine) -> bool:
    engine.reap_expired()
    return not any(JobState.PROCESSING in states for states in engine.counts().values())


def _all_jobs(engine: Engine) -> list[JobView]:
    views: list[JobView] = []
    after: str | None = None
    while True:
        page = engine.find(JobFilter(), limit=1000, after=after)
        views += page.jobs
        after = page.next
        if after is None:
            return views
