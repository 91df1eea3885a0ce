"""A search that is taken apart means the same jobs, and says how far it has looked."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from holdfast.search import matches, parse, plan, scan, walk
from holdfast.search.scanning import count
from holdfast.testing.lab import Lab, memory_lab
from holdfast.values import DeadReason, JobFilter, JobState

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "where", "rest"),
    [
        ("", JobFilter(), ""),
        ("state:dead,failed -state:failed", JobFilter(states=(JobState.DEAD,)), ""),
        ("queue:mail job:send", JobFilter(queue="mail", job="send"), ""),
        ("queue:mail queue:other", JobFilter(queue="mail"), "queue:other"),
        ("queue:mail,slow job:send_* -id:a", JobFilter(), "queue:mail,slow job:send_* -id:a"),
        ("id:a,b id:b", JobFilter(ids=("b",)), ""),
        ("reason:timeout", JobFilter(dead_reason=DeadReason.TIMEOUT), ""),
        ('reason:"timeout"', JobFilter(), 'reason:"timeout"'),
        ("age:>1h", JobFilter(accepted_before=NOW - timedelta(hours=1)), ""),
        ("age:<=1h", JobFilter(accepted_from=NOW - timedelta(hours=1)), ""),
        ("accepted:>=2026-11-15", JobFilter(accepted_from=datetime(2026, 11, 15, tzinfo=UTC)), ""),
        ("finished:<2026-11-15", JobFilter(finished_before=datetime(2026, 11, 15, tzinfo=UTC)), ""),
        (
            "finished:* due:today",
            JobFilter(),
            "finished:* due:2026-11-16T00:00:00.000000Z..2026-11-16T23:59:59.999999Z",
        ),
        ("state:dead error:x oops", JobFilter(states=(JobState.DEAD,)), "error:x oops"),
        ('queue:"" id:"a\nb"', JobFilter(), 'queue:"" id:"a\nb"'),
    ],
)
def test_engines_do_what_they_can(text: str, where: JobFilter, rest: str) -> None:
    made = plan(parse(text, now=NOW, zone=UTC), now=NOW)
    assert made.where == where
    assert " ".join(map(str, made.rest)) == rest


@pytest.mark.parametrize("text", ["state:dead state:failed", "state:dead -state:dead", "id:a id:b"])
def test_what_cannot_be_is_not_looked_for(text: str) -> None:
    made = plan(parse(text, now=NOW), now=NOW)
    assert made.where is None
    with memory_lab() as lab:
        lab.put("a", "b")
        assert scan(lab.engine, made, limit=10).jobs == ()


words = st.sampled_from(
    [
        *("state:dead", "-state:pending", "state:scheduled,pending", "queue:mail", "-queue:mail", "queue:m*"),
        *(
            "job:job",
            "id:a",
            "id:a,c,e",
            "-id:b",
            "reason:failed",
            "reason:no-retry",
            "age:>15s",
            "age:<15s",
            "age:5s..25s",
        ),
        *("accepted:>20s", "accepted:<20s", "finished:>15s", "finished:<15s", "finished:*", "due:>now", "a", "-b"),
        *("attempts:0", "priority:>5"),
    ]
)


def fill(lab: Lab) -> None:
    lab.put("a", "b", queue="mail")
    lab.advance(10)
    lab.put("c", "d", priority=9)
    assert lab.engine.abandon(lab.take("c"), DeadReason.FAILED)
    lab.advance(10)
    assert lab.engine.abandon(lab.take("a", queue="mail"), DeadReason.NO_RETRY)
    lab.put("e", delay=99)
    lab.advance(10)


@given(st.lists(words, max_size=4).map(" ".join), st.integers(1, 3))
def test_a_search_taken_apart_means_the_same_jobs(text: str, limit: int) -> None:
    with memory_lab() as lab:
        fill(lab)
        now = lab.now()
        search = parse(text, now=now)
        meant = sorted(job.id for job in lab.engine.find(JobFilter()).jobs if matches(search.terms, job, now))
        made = plan(search, now=now)
        assert sorted(job.id for job in walk(lab.engine, made)) == meant
        found: list[str] = []
        after = None
        for _ in range(20):
            page = scan(lab.engine, made, limit=limit, after=after, look_at=2)
            found += [job.id for job in page.jobs]
            after = page.next
            if after is None:
                break
        assert sorted(found) == meant
        assert count(lab.engine, made) == (len(meant), None)


def test_a_search_says_when_it_has_looked_long_enough() -> None:
    with memory_lab() as lab:
        lab.put(*"abcdef")
        made = plan(parse("id:a*", now=lab.now()), now=lab.now())
        first = scan(lab.engine, made, limit=10, look_at=4)
        assert (first.jobs, first.looked_at, first.is_cut) == ((), 4, True)
        second = scan(lab.engine, made, limit=10, look_at=4, after=first.next)
        assert ([job.id for job in second.jobs], second.next, second.is_cut) == (["a"], None, False)
        assert not scan(lab.engine, made, limit=10, look_at=0).is_cut


def test_counting_says_when_it_has_looked_long_enough() -> None:
    with memory_lab() as lab:
        lab.put(*"abcdef")
        made = plan(parse("-id:a*", now=lab.now()), now=lab.now())
        assert count(lab.engine, made, look_at=4) == (4, 4)
        assert count(lab.engine, made, look_at=6) == count(lab.engine, made, look_at=0) == (5, None)
        assert count(lab.engine, plan(parse("state:pending", now=lab.now()), now=lab.now()), look_at=2) == (6, None)


def test_what_the_engine_does_alone_is_never_cut() -> None:
    with memory_lab() as lab:
        lab.put(*"abcdef")
        found = scan(lab.engine, plan(parse("state:pending", now=lab.now()), now=lab.now()), limit=5, look_at=2)
        assert (len(found.jobs), found.is_cut, found.next is None) == (5, False, False)
