"""Reads pages from an engine and returns the jobs that match a search."""

from collections.abc import Iterator
from typing import Final, Protocol

from msgspec import Struct

from holdfast.search.planning import Plan
from holdfast.values import JobFilter, JobView, Page

AT_ONCE: Final = 500
LOOK_AT: Final = 100_000


class Finder(Protocol):
    """The part of an engine that a scan needs."""

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page: ...


class ScanResult(Struct, frozen=True, kw_only=True):
    """Some jobs that match, and the cursor to continue from, if there may be more.

    `is_cut`: the scan stopped at the limit of jobs to check, so more may match.
    """

    jobs: tuple[JobView, ...]
    next: str | None = None
    looked_at: int = 0
    is_cut: bool = False


def scan(engine: Finder, plan: Plan, *, limit: int, after: str | None = None, look_at: int = LOOK_AT) -> ScanResult:
    """Find up to `limit` jobs among the first `look_at` that the engine returns; 0 = no limit."""
    found: list[JobView] = []
    looked_at, cursor = 0, after
    for job, after_it in _candidates(engine, plan, limit, after):
        if len(found) == limit:
            return ScanResult(jobs=tuple(found), next=cursor, looked_at=looked_at)
        if plan.rest and looked_at == look_at != 0:
            return ScanResult(jobs=tuple(found), next=cursor, looked_at=looked_at, is_cut=True)
        if plan.admits(job):
            found.append(job)
        looked_at, cursor = looked_at + 1, after_it
    return ScanResult(jobs=tuple(found), looked_at=looked_at)


def count(engine: Finder, plan: Plan, *, look_at: int = LOOK_AT) -> tuple[int, int | None]:
    """Count the matching jobs one by one. The second number is how many were checked, if `look_at` was reached."""
    number = 0
    for looked_at, (job, _) in enumerate(_candidates(engine, plan, AT_ONCE, None)):
        if plan.rest and looked_at == look_at != 0:
            return number, looked_at
        number += plan.admits(job)
    return number, None


def walk(engine: Finder, plan: Plan) -> Iterator[JobView]:
    """Every job that matches."""
    return (job for job, _ in _candidates(engine, plan, AT_ONCE, None) if plan.admits(job))


def _candidates(engine: Finder, plan: Plan, limit: int, after: str | None) -> Iterator[tuple[JobView, str]]:
    """The jobs that the engine finds, each with the cursor after it."""
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
