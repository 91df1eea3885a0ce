"""Reads pages of an engine and keeps what a search means; says how far it has looked."""

from collections.abc import Iterator
from typing import Final, Protocol

from msgspec import Struct

from holdfast.search.planning import Plan
from holdfast.values import JobFilter, JobView, Page

AT_ONCE: Final = 500
LOOK_AT: Final = 100_000


class Finder(Protocol):
    """What an engine is asked for here."""

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page: ...


class ScanResult(Struct, frozen=True, kw_only=True):
    """Some jobs a search means, and where to go on, if there may be more.

    `is_cut`: the limit of jobs to look at was reached first, so what is there is not all there could be.
    """

    jobs: tuple[JobView, ...]
    next: str | None = None
    looked_at: int = 0
    is_cut: bool = False


def scan(engine: Finder, plan: Plan, *, limit: int, after: str | None = None, look_at: int = LOOK_AT) -> ScanResult:
    """Up to `limit` jobs, having looked at no more than `look_at` of those the engine finds; 0 = at all of them."""
    found: list[JobView] = []
    looked_at, cursor = 0, after
    for job, behind in _candidates(engine, plan, limit, after):
        if len(found) == limit:
            return ScanResult(jobs=tuple(found), next=cursor, looked_at=looked_at)
        if plan.rest and looked_at == look_at != 0:
            return ScanResult(jobs=tuple(found), next=cursor, looked_at=looked_at, is_cut=True)
        if plan.admits(job):
            found.append(job)
        looked_at, cursor = looked_at + 1, behind
    return ScanResult(jobs=tuple(found), looked_at=looked_at)


def count(engine: Finder, plan: Plan, *, look_at: int = LOOK_AT) -> tuple[int, int | None]:
    """How many jobs the search means, and how many were looked at if `look_at` ended that; none is held in memory."""
    number = 0
    for looked_at, (job, _) in enumerate(_candidates(engine, plan, AT_ONCE, None)):
        if plan.rest and looked_at == look_at != 0:
            return number, looked_at
        number += plan.admits(job)
    return number, None


def walk(engine: Finder, plan: Plan) -> Iterator[JobView]:
    """Every job the search means."""
    return (job for job, _ in _candidates(engine, plan, AT_ONCE, None) if plan.admits(job))


def _candidates(engine: Finder, plan: Plan, limit: int, after: str | None) -> Iterator[tuple[JobView, str]]:
    """The jobs the engine finds by itself, each with the cursor behind it."""
    if plan.where is None:
        return
    size = AT_ONCE if plan.rest else min(limit + 1, AT_ONCE)
    while True:
        page = engine.find(plan.where, limit=size, after=after)
        yield from zip(page.jobs, page.cursors, strict=True)
        after = page.next
        if after is None:
            return
        size = AT_ONCE
