"""The Redis engine: failures and settings of the server, and the keys that the engine stores there."""

import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from holdfast.errors import BackendError, BackendUnavailable, ConfigError, IdConflict, NotSupported, SchemaTooNew
from holdfast.queues.contract import new_owner_token
from holdfast.queues.engines.redis import connections as redis_connections, jobs, state
from holdfast.queues.engines.redis.connections import Script
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.values import (
    Abandon,
    Ack,
    DeadReason,
    Drop,
    JobFilter,
    JobLease,
    JobState,
    LeaseState,
    Nack,
    Progress,
    Put,
    Release,
    Settlement,
    Spend,
)

from ..conformance.labs import new_prefix, redis_lab
from ..faults.processes import until
from ..servers.redis import RedisServer, redis_for_laws
from ..servers.running import free_port, started
from .redis_site import PREFIX, check_indexes, job, opened

BASE = f"{{{PREFIX}}}:"
PATIENCE_S = 20.0
SECRET = "hunter2"


@pytest.fixture(scope="module")
def one_server() -> Generator[RedisServer]:
    server = _started(lambda: RedisServer())
    yield server
    server.close()


@pytest.fixture
def server(one_server: RedisServer) -> RedisServer:
    """The server that most tests share, emptied."""
    with one_server.client() as client:
        client.flushall()
    return one_server


@pytest.fixture
def engine(server: RedisServer) -> Generator[RedisEngine]:
    with opened(server.url) as engine:
        yield engine


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Generator[RedisServer]:
    """A server with the settings given as the parameter."""
    server = _started(lambda: RedisServer(settings=getattr(request, "param", {})))
    yield server
    server.close()


def _started(make: Callable[[], RedisServer]) -> RedisServer:
    server = started(make)
    assert isinstance(server, RedisServer)
    return server


def taken(engine: RedisEngine, limit: int = 10, *, queue: str = "default") -> list[JobLease]:
    return engine.claim(queue, limit, owner_token=new_owner_token())


def live(engine: RedisEngine) -> None:
    """Bring jobs into every state."""
    engine.accept([job(id) for id in ("done", "failed", "dead", "held")])
    done, failed, dead, _ = taken(engine)
    engine.report_progress([(failed, Progress(done=1, message="half"))])
    assert engine.renew_many([done]) == [LeaseState.HELD]
    assert engine.settle([Ack(lease=done), Nack(lease=failed, delay=60)]) == [True, True]
    assert engine.abandon(dead, DeadReason.FAILED)
    engine.accept([job("late", delay=60), job("gone", delay=60)])
    engine.cancel("gone")
    engine.pause("slow", "for a while")
    engine.state.write([Put(kind="fact", key="one"), Put(kind="mark", key="one", ttl=60)])
    engine.state.spend([Spend(bucket="mail", tokens=1, per_s=1, burst=1)])
    assert engine.purge([JobState.CANCELLED]) == 1
    engine.reap_expired()
    engine.prune()


# Keys on the server.


def test_no_key_of_a_job_ever_expires_and_all_share_one_hash_tag(server: RedisServer, engine: RedisEngine) -> None:
    live(engine)
    with server.client() as client:
        keys = list(client.scan_iter())
        assert len(keys) > 15
        assert [key for key in keys if not key.startswith(BASE.encode())] == []
        assert [key for key in keys if client.pttl(key) != -1] == []
        check_indexes(client)


def test_a_record_is_a_small_hash_whose_state_is_plain_to_see(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a", size=2000)])
    [lease] = taken(engine)
    with server.client() as client:
        assert client.hget(f"{BASE}job:a", "state")[:1] == b"2"
        assert engine.ack(lease)
        assert client.hget(f"{BASE}job:a", "state")[:1] == b"4"
        # The compact encoding, which is lost with a value of more than 64 bytes.
        assert client.object("encoding", f"{BASE}job:a") in (b"listpack", b"ziplist")


def test_two_installations_share_a_server(server: RedisServer, engine: RedisEngine) -> None:
    with opened(server.url, prefix="other_") as other:
        engine.accept([job("a")])
        other.accept([job("a", queue="mail"), job("b", queue="mail")])
        assert engine.counts() == {"default": {JobState.PENDING: 1}}
        assert other.counts() == {"mail": {JobState.PENDING: 2}}
        assert taken(engine, queue="mail") == []


@pytest.mark.parametrize("prefix", ["", "a-b", "{a}", "a:b", "1a", "x" * 41, "a\n"])
def test_a_prefix_that_could_leave_its_hash_tag_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        opened("redis://localhost", prefix=prefix)


def test_a_newer_layout_is_refused(server: RedisServer) -> None:
    with server.client() as client:
        client.set(f"{BASE}schema", 99)
    with opened(server.url) as engine:
        for verb in (engine.check, engine.create_schema, lambda: engine.accept([job("a")])):
            with pytest.raises(SchemaTooNew, match="99"):
                verb()
    with server.client() as client:
        assert client.keys() == [f"{BASE}schema".encode()]


def test_a_large_batch_is_one_batch(server: RedisServer, engine: RedisEngine) -> None:
    """More than Lua's stack can hold, in each verb that passes a batch to one command."""
    batch = [job() for _ in range(12_000)]
    assert all(answer.created for answer in engine.accept(batch))
    leases = taken(engine, len(batch))
    assert [lease.id for lease in leases] == [one.id for one in batch]
    assert all(engine.settle([Ack(lease=lease) for lease in leases]))
    assert engine.purge([JobState.COMPLETED]) == len(batch)
    with server.client() as client:
        check_indexes(client)


@pytest.mark.parametrize(("number", "size"), [(jobs.MOST_JOBS + 1, 0), (140, 1_000_000)])
def test_a_batch_for_which_the_server_would_stand_still_is_refused(
    server: RedisServer, engine: RedisEngine, number: int, size: int
) -> None:
    engine.check()
    with pytest.raises(NotSupported, match=r"nothing was enqueued: enqueue at most 20,000 jobs or 128 MiB at a time"):
        engine.accept([job("a", size=size)] * number)
    with server.client() as client:
        assert client.keys() == [f"{BASE}schema".encode()]


def test_the_verdict_on_one_job_of_a_claim_does_not_affect_the_next(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job(id) for id in ("held", "released", "taken", "late")])
    held, released, taken_, late = taken(engine)
    assert engine.settle([Release(lease=released, delay=60), Release(lease=taken_)]) == [True, True]
    [lease] = taken(engine)
    assert engine.settle([Ack(lease=one) for one in (held, released, taken_, late)]) == [True, False, False, True]
    assert engine.ack(lease)
    with server.client() as client:
        check_indexes(client)


def test_a_claim_whose_leases_have_ended_gives_nothing_and_loses_nothing() -> None:
    prefix = new_prefix()
    with redis_lab(prefix=prefix) as lab, redis_for_laws().client() as client:
        lab.put("a", "b")
        token = new_owner_token()
        assert len(lab.engine.claim("default", 1, owner_token=token)) == 1
        lab.advance(lab.engine.policy.lease_s)
        assert lab.engine.claim("default", 1, owner_token=token) == []
        check_indexes(client, prefix)
        assert lab.engine.reap_expired() == 1
        assert lab.engine.counts() == {"default": {JobState.PENDING: 2}}


def test_a_lease_of_another_queue_is_refused_and_changes_no_index(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a")])
    [lease] = taken(engine)
    assert not engine.ack(replace(lease, queue="mail"))
    assert engine.ack(lease)
    with server.client() as client:
        check_indexes(client)


def test_a_job_whose_id_is_not_utf8_can_be_held_and_settled(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("bad"), job("good")])
    with server.client() as client:
        client.rename(f"{BASE}job:bad", f"{BASE}job:".encode() + b"\xff")
        for index in ("jobs", "ready:default:5"):
            client.zadd(f"{BASE}{index}", {b"\xff": client.zscore(f"{BASE}{index}", "bad")})
            client.zrem(f"{BASE}{index}", "bad")
    bad, good = taken(engine)
    assert (bad.id, good.id) == ("\ufffd", "good")
    assert engine.renew_many([bad, good]) == [LeaseState.HELD] * 2
    assert engine.report_progress([(bad, Progress(done=1)), (good, Progress(done=1))]) == [True, True]
    mark = Put(kind="mark", key="one")
    assert engine.settle([Abandon(lease=bad, reason=DeadReason.UNDECODABLE, writes=(mark,)), Ack(lease=good)]) == [
        True,
        True,
    ]
    assert engine.state.read("mark")
    assert engine.counts() == {"default": {JobState.DEAD: 1, JobState.COMPLETED: 1}}


def test_jobs_completed_while_their_index_is_damaged_can_be_purged(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a"), job("b")])
    leases = taken(engine)
    with server.client() as client:
        client.set(f"{BASE}completed:default", "not a sorted set")
        assert engine.settle([Ack(lease=lease) for lease in leases]) == [True, True]
        assert client.get(f"{BASE}damaged:completed:default") == b"not a sorted set"
    assert engine.counts() == {"default": {JobState.COMPLETED: 2}}
    assert engine.purge([JobState.COMPLETED]) == 2


def test_a_damaged_index_is_rebuilt_from_the_records(server: RedisServer, engine: RedisEngine) -> None:
    """Each index is the only way to find some jobs: none of them may be lost with it."""
    engine.accept([job(id) for id in ("done", "dead", "cancelled", "failed", "held")])
    leases = {lease.id: lease for lease in taken(engine)}
    engine.settle([Ack(lease=leases["done"]), Abandon(lease=leases["dead"], reason=DeadReason.FAILED)])
    engine.settle([Nack(lease=leases["failed"], delay=3600), Release(lease=leases["cancelled"])])
    engine.cancel("cancelled")
    assert engine.renew_many([leases["held"]]) == [LeaseState.HELD]
    engine.accept([job("waiting"), job("later", delay=3600)])
    counts = engine.counts()
    with server.client() as client:
        names = sorted(client.keys(f"{BASE}*"))
        indexes = [name for name in names if client.type(name) in (b"zset", b"set") and b"lengths" not in name]
        assert len(indexes) >= 9
        for index in indexes:
            client.delete(index)
            client.set(index, "not an index")
            assert engine.counts() == counts, f"{index!r} was not rebuilt"
            engine.prune()
            engine.reap_expired()
            engine.tidy()
            assert engine.counts() == counts, f"{index!r} was not rebuilt"
            check_indexes(client)
        client.delete(f"{BASE}completions")
        client.set(f"{BASE}completions", "not a hash")
        assert engine.counts() == counts
    assert engine.ack(leases["held"])
    assert [lease.id for lease in taken(engine)] == ["waiting"]


def test_an_index_whose_damage_a_write_detects_is_rebuilt(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("first")])
    with server.client() as client:
        for index in ("ready:default:5", "jobs", "queues"):
            client.delete(f"{BASE}{index}")
            client.set(f"{BASE}{index}", "not an index")
    engine.accept([job("second")])
    engine.tidy()
    assert engine.counts() == {"default": {JobState.PENDING: 2}}
    assert {lease.id for lease in taken(engine)} == {"first", "second"}


@pytest.mark.parametrize("key", ["cells:workers", "keys:workers", "number", "expiries", "buckets"])
def test_shared_state_survives_a_key_of_another_program(server: RedisServer, engine: RedisEngine, key: str) -> None:
    engine.state.write([Put(kind="workers", key="w", value=b"1", ttl=60)])
    engine.accept([job("a")])
    with server.client() as client:
        client.delete(f"{BASE}{key}")
        client.rpush(f"{BASE}{key}", "junk")
    engine.state.sweep()
    engine.state.read("workers")
    engine.state.spend([Spend(bucket="b", tokens=1, per_s=1, burst=1)])
    engine.accept([job("b")])
    assert engine.state.write([Put(kind="workers", key="w", value=b"2")])
    assert [cell.value for cell in engine.state.read("workers")] == [b"2"]
    assert [lease.id for lease in taken(engine)] == ["a", "b"]
    with server.client() as client:
        assert client.lrange(f"{BASE}damaged:{key}", 0, -1) == [b"junk"]


@pytest.mark.parametrize("junk", ["junk", "9" * 25, "-1", "1.5"])
def test_an_invalid_counter_restarts_above_the_highest_job_number(
    server: RedisServer, engine: RedisEngine, junk: str
) -> None:
    engine.accept([job("a"), job("b")])
    with server.client() as client:
        client.set(f"{BASE}number", junk)
        engine.tidy()
        engine.accept([job("c")])
        assert client.get(f"{BASE}number") == b"3"


def test_a_counter_that_would_overflow_restarts_when_a_job_is_accepted(
    server: RedisServer, engine: RedisEngine
) -> None:
    engine.accept([job("a")])
    with server.client() as client:
        client.set(f"{BASE}number", 2**63 - 1)
        assert engine.accept([job("b")])[0].created
        assert client.get(f"{BASE}number") == b"2"


def test_indexes_are_rebuilt_though_the_notes_about_them_are_damaged(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a")])
    with server.client() as client:
        damage(client, "rebuild")
        engine.tidy()
        damage(client, "rebuild")
        damage(client, "ready:default:5")
        assert [lease.id for lease in taken(engine)] == ["a"]
        check_indexes(client)


def test_a_count_that_is_not_a_number_is_counted_again(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a"), job("b")])
    first, second = taken(engine)
    assert engine.ack(first)
    with server.client() as client:
        client.hset(f"{BASE}completions", "default", "many")
    assert engine.ack(second)
    engine.tidy()
    assert engine.counts() == {"default": {JobState.COMPLETED: 2}}


def test_a_prune_never_deletes_a_job_that_is_not_finished(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("waiting")])
    with server.client() as client:
        client.zadd(f"{BASE}completed:default", {"waiting": 1})
        engine.prune()
        assert client.zcard(f"{BASE}completed:default") == 0
    assert [lease.id for lease in taken(engine)] == ["waiting"]


def test_answers_come_in_the_order_of_the_settlements(server: RedisServer, engine: RedisEngine) -> None:
    """Successes of one claim are sent together, even if other claims are between them."""
    engine.accept([job(str(number)) for number in range(8)])
    first, second = taken(engine, 4), taken(engine, 4)
    assert engine.nack(first[2])
    assert engine.release(second[1])
    order = [first[0], second[0], first[1], second[1], first[2], second[2]]
    settlements: list[Settlement] = [
        *(Ack(lease=lease) for lease in order),
        Nack(lease=first[3]),
        Ack(lease=first[3]),
        Ack(lease=second[3]),
    ]
    assert engine.settle(settlements) == [True, True, True, False, False, True, True, False, True]
    with server.client() as client:
        check_indexes(client)


def test_a_job_is_stored_though_its_record_is_deleted_while_it_is_compared(
    server: RedisServer, engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.accept([job("a")])
    assert engine.ack(taken(engine)[0])
    run, sent = engine.connections.run, list[Script]()

    def delete_meanwhile(script: Script, *arguments: bytes | str | int, **options: Any) -> Any:
        answer = run(script, *arguments, **options)
        sent.append(script)
        if sent == [jobs.ACCEPT]:
            assert engine.purge([JobState.COMPLETED]) == 1
            with server.client() as client:  # an hour later
                client.delete(f"{BASE}job:a")
                client.zrem(f"{BASE}stones", "a")
        return answer

    monkeypatch.setattr(engine.connections, "run", delete_meanwhile)
    engine.accept([job("a")])
    assert sent.count(jobs.ACCEPT) == 2
    assert engine.counts() == {"default": {JobState.PENDING: 1}}


# Extras of settlements, and shared state.


@pytest.fixture
def calls(engine: RedisEngine, monkeypatch: pytest.MonkeyPatch) -> list[Script]:
    """The scripts that the engine runs from here on."""
    executed: list[Script] = []
    run = engine.connections.run

    def noted(script: Script, *arguments: bytes | str | int, **options: Any) -> Any:
        executed.append(script)
        return run(script, *arguments, **options)

    monkeypatch.setattr(engine.connections, "run", noted)
    return executed


def test_settlements_that_carry_nothing_cost_nothing_extra(engine: RedisEngine, calls: list[Script]) -> None:
    engine.accept([job(id) for id in "abcd"])
    a, b, c, d = taken(engine)
    calls.clear()
    mark = Put(kind="mark", key="done")
    engine.settle([Ack(lease=a)])
    engine.exchange([Ack(lease=b)], "default", 1, owner_token=new_owner_token())
    engine.settle([Ack(lease=c, writes=(mark,), enqueues=(job("e"),))])
    engine.exchange([Ack(lease=d, writes=(mark,))], "default", 1, owner_token=new_owner_token())
    assert calls == [jobs.SETTLE, jobs.EXCHANGE, jobs.CARRY_AND_SETTLE, jobs.CARRY_AND_EXCHANGE]


def test_every_verb_of_shared_state_is_one_call(engine: RedisEngine, calls: list[Script]) -> None:
    engine.state.write([Put(kind="mark", key=key) for key in "abc"])
    assert len(engine.state.read("mark")) == len(engine.state.read("mark", ["a", "b", "c"])) == 3
    engine.state.spend([Spend(bucket=name, tokens=1, per_s=1, burst=1) for name in "abc"])
    assert engine.state.sweep() == 0
    assert calls == [state.WRITE, state.READ, state.READ, state.SPEND, state.SWEEP]


def test_a_page_continues_after_expired_cells(server: RedisServer, engine: RedisEngine) -> None:
    engine.state.write([Put(kind="mark", key=f"a{number:02}", ttl=0.001) for number in range(30)])
    engine.state.write([Put(kind="mark", key=key) for key in ("b", "c", "d")])
    until(lambda: len(engine.state.read("mark")) == 3, "the others to expire")
    assert [cell.key for cell in engine.state.read("mark", limit=2)] == ["b", "c"]
    assert [cell.key for cell in engine.state.read("mark", after="b", limit=2)] == ["c", "d"]
    assert engine.state.sweep() == 30
    with server.client() as client:
        check_indexes(client)


def test_settlements_that_enqueue_two_contents_under_one_id_are_refused_together(engine: RedisEngine) -> None:
    engine.accept([job("a"), job("b")])
    a, b = taken(engine)
    mark = (Put(kind="mark", key="done"),)
    first = Ack(lease=a, writes=mark, enqueues=(job("next", size=1),))
    second = Ack(lease=b, writes=mark, enqueues=(job("next", size=2),))
    with pytest.raises(IdConflict, match="next"):
        engine.settle([first, second])
    assert engine.counts() == {"default": {JobState.PROCESSING: 2}}
    assert engine.state.read("mark") == []
    stale = replace(first, lease=replace(a, owner_token=new_owner_token()))
    assert engine.settle([stale, second]) == [False, True]
    assert [lease.wire for lease in taken(engine)] == [second.enqueues[0].wire]


def test_settlements_may_enqueue_the_same_job_in_other_words(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a"), job("b"), job("c")])
    a, b, c = taken(engine)
    once, again, still = (job("next") for _ in range(3))
    assert len({once.wire, again.wire, still.wire}) == 3
    assert engine.settle([Ack(lease=a, enqueues=(once,)), Ack(lease=b, enqueues=(again, once))]) == [True, True]
    [lease] = taken(engine)
    assert engine.ack(lease)
    assert engine.settle([Ack(lease=c, enqueues=(still,))]) == [True]
    assert engine.counts() == {"default": {JobState.COMPLETED: 4}}, "a known job was enqueued again"
    with server.client() as client:
        check_indexes(client)


def test_only_the_first_of_two_settlements_of_a_job_applies_what_it_carries(engine: RedisEngine) -> None:
    engine.accept([job("a"), job("b")])
    a, b = taken(engine)

    def write(value: bytes) -> tuple[Put]:
        return (Put(kind="mark", key="one", value=value),)

    settlements: list[Settlement] = [
        Ack(lease=b, writes=write(b"first")),
        Nack(lease=a, delay=60, writes=write(b"second")),
        Ack(lease=a, writes=write(b"third"), enqueues=(job("c"),)),
        Nack(lease=a, delay=60, writes=write(b"fourth")),
    ]
    assert engine.settle(settlements) == [True, True, False, True]
    assert [cell.value for cell in engine.state.read("mark")] == [b"second"]
    assert engine.get("c") is None


def test_a_batch_of_settlements_may_carry_as_much_as_it_settles(server: RedisServer, engine: RedisEngine) -> None:
    """More than Lua's stack can hold."""
    engine.accept([job() for _ in range(10_000)])
    leases = taken(engine, 10_000)
    settlements = [
        Ack(lease=one, writes=(Put(kind="mark", key=one.id),), enqueues=(job(f"after-{one.id}"),)) for one in leases
    ]
    assert all(engine.settle(settlements))
    assert engine.counts() == {"default": {JobState.COMPLETED: 10_000, JobState.PENDING: 10_000}}
    assert len(list(engine.state.read_all("mark"))) == 10_000
    assert all(engine.settle(settlements))
    with server.client() as client:
        check_indexes(client)


def test_jobs_that_completed_together_are_forgotten_a_few_at_a_time(
    server: RedisServer, engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.queues.engines.redis.records.SIFT_BYTES", 3000)
    engine.accept([job() for _ in range(130)])
    engine.settle([Ack(lease=lease) for lease in taken(engine, 130)])
    assert engine.purge([JobState.COMPLETED]) == 130
    with server.client() as client:
        check_indexes(client)


def test_a_search_looks_further_than_one_call_does(engine: RedisEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.queues.engines.redis.records.LOOK_AT", 7)
    engine.accept([job(f"job{number:02}", queue="rare" if number % 20 == 3 else "default") for number in range(60)])
    first = engine.find(JobFilter(queue="rare"), limit=2)
    assert [view.id for view in first.jobs] == ["job43", "job23"]
    second = engine.find(JobFilter(queue="rare"), limit=2, after=first.next)
    assert [view.id for view in second.jobs] == ["job03"]
    assert second.next is None


def test_of_many_jobs_finished_in_one_moment_each_is_shown_once(engine: RedisEngine) -> None:
    ids = {f"job{number:03}" for number in range(500)}
    engine.accept([job(id) for id in sorted(ids)])
    engine.settle([Ack(lease=lease) for lease in taken(engine, 500)])
    found: list[str] = []
    after: str | None = None
    while True:
        page = engine.find(JobFilter(states=(JobState.COMPLETED,)), limit=70, after=after)
        found += [view.id for view in page.jobs]
        after = page.next
        if after is None:
            break
    assert len(found) == len(ids)
    assert set(found) == ids


# A script that meets a damaged key: it is not rolled back, and runs again after the repair.


def damage(client: Any, name: str) -> None:
    """Replace a key by one of another type."""
    client.delete(f"{BASE}{name}")
    client.set(f"{BASE}{name}", "junk")


def free_id(engine: RedisEngine, client: Any, id: str) -> None:
    """Leave a tombstone of this id that has expired."""
    engine.accept([job(id)])
    assert engine.ack(taken(engine)[0])
    assert engine.purge([JobState.COMPLETED]) == 1
    client.hset(f"{BASE}job:{id}", "known_until", 1)


@pytest.fixture
def unrepaired(engine: RedisEngine, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Inside the block, the process dies before it repairs a damaged key."""

    def die(kinds: Sequence[str] = ()) -> None:
        raise BackendUnavailable("killed")

    monkeypatch.setattr(engine.connections, "repair", die)
    return monkeypatch


SHARED_KEYS = ["cells:mark", "keys:mark", "expiries", "number", "stones", "jobs", "queues"]
QUEUE_KEYS = [f"{index}:default" for index in ("dead", "again", "failed", "leased", "renewed", "completed")]


@pytest.mark.parametrize("key", [*SHARED_KEYS, *QUEUE_KEYS, "ready:default:5"])
def test_a_settlement_and_what_it_carries_are_applied_together_despite_a_damaged_key(
    server: RedisServer, engine: RedisEngine, unrepaired: pytest.MonkeyPatch, key: str
) -> None:
    with server.client() as client:
        free_id(engine, client, "next")
        engine.accept([job(id) for id in "abcd"])
        a, b, c, d = taken(engine)
        marks = (Put(kind="mark", key="one"), Put(kind="mark", key="two", ttl=60))
        settlements: list[Settlement] = [
            Ack(lease=a, writes=marks, enqueues=(job("other", queue="mail"), job("next"))),
            Abandon(lease=b, reason=DeadReason.FAILED),
            Nack(lease=c, delay=60),
            Ack(lease=d),
        ]
        damage(client, key)
        with suppress(BackendUnavailable):
            engine.settle(settlements)
        is_settled = engine.renew_many([a]) == [LeaseState.LOST]
        unrepaired.undo()
        assert [cell.key for cell in engine.state.read("mark")] == (["one", "two"] if is_settled else [])
        assert (engine.get("next") is not None, engine.get("other") is not None) == (is_settled, is_settled)
        assert engine.settle(settlements) == [True] * 4
        assert [cell.key for cell in engine.state.read("mark")] == ["one", "two"]
        engine.tidy()
        assert engine.counts() == {
            "default": {JobState.COMPLETED: 2, JobState.DEAD: 1, JobState.FAILED: 1, JobState.PENDING: 1},
            "mail": {JobState.PENDING: 1},
        }
        check_indexes(client)


@pytest.mark.parametrize("held", ["many", None])
def test_a_settlement_carries_what_it_should_though_its_claim_is_damaged(
    server: RedisServer, engine: RedisEngine, held: str | None
) -> None:
    engine.accept([job("a")])
    [lease] = taken(engine)
    with server.client() as client:
        claim = f"{BASE}claim:".encode() + bytes.fromhex(lease.owner_token) + b":default"
        if held:
            client.hset(claim, "held", held)
        else:
            client.delete(claim)
            client.set(claim, "junk")
    assert engine.settle([Ack(lease=lease, writes=(Put(kind="mark", key="one"),), enqueues=(job("next"),))]) == [True]
    assert [cell.key for cell in engine.state.read("mark")] == ["one"]
    assert engine.get("next")


@pytest.mark.parametrize("key", SHARED_KEYS)
def test_jobs_and_their_conditional_writes_are_accepted_despite_a_damaged_key(
    server: RedisServer, engine: RedisEngine, key: str
) -> None:
    write = Put(kind="mark", key="one", ttl=60, if_version=0)
    with server.client() as client:
        free_id(engine, client, "freed")
        damage(client, key)
        assert all(one.created for one in engine.accept([job("a"), job("freed")], writes=[write]))
        engine.tidy()
        assert engine.counts() == {"default": {JobState.PENDING: 2}}
        check_indexes(client)


@pytest.mark.parametrize("key", ["cells:mark", "keys:mark", "expiries"])
def test_a_conditional_write_is_applied_despite_a_damaged_key(
    server: RedisServer, engine: RedisEngine, key: str
) -> None:
    with server.client() as client:
        damage(client, key)
    assert engine.state.write([Put(kind="mark", key="one", ttl=60, if_version=0)])
    assert [cell.key for cell in engine.state.read("mark")] == ["one"]


def test_a_suspect_is_claimed_alone_while_the_index_of_delivered_jobs_is_rebuilt(
    server: RedisServer, engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.accept([job("suspect")])
    assert engine.settle([Release(lease=taken(engine)[0], crashed=True)]) == [True]
    engine.accept([job("b"), job("c")])
    with server.client() as client:
        damage(client, "again:default")
        monkeypatch.setattr(engine.connections, "_rebuild", lambda: None)
        engine.tidy()
        [suspect] = taken(engine)
        assert (suspect.id, suspect.delivery, suspect.crashes) == ("suspect", 2, 1)
        assert [(lease.id, lease.delivery) for lease in taken(engine)] == [("b", 1), ("c", 1)]
        monkeypatch.undo()
        engine.tidy()
        check_indexes(client)


def test_a_job_without_a_record_is_dead_lettered_despite_a_damaged_index(
    server: RedisServer, engine: RedisEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.accept([job("bad"), job("good")])
    with server.client() as client:
        client.delete(f"{BASE}job:bad")
        damage(client, "ready:default:0")
        assert [lease.id for lease in taken(engine, 1)] == ["good"]
        engine.tidy()
        assert engine.counts() == {"default": {JobState.PROCESSING: 1, JobState.DEAD: 1}}
        check_indexes(client)
    assert "job bad was dead-lettered: its record is damaged" in caplog.text


def test_a_job_whose_record_is_lost_while_it_runs_is_dead_lettered_and_logged(
    server: RedisServer, engine: RedisEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.accept([job("bad")])
    [lease] = taken(engine)
    with server.client() as client:
        damage(client, "job:bad")
        client.zadd(f"{BASE}leased:default", {bytes.fromhex(lease.owner_token): 1})
    assert engine.reap_expired() == 0
    assert "job bad was dead-lettered: its record is damaged" in caplog.text
    assert engine.counts() == {"default": {JobState.DEAD: 1}}


@pytest.mark.parametrize("state", [JobState.DEAD, JobState.COMPLETED])
def test_a_purge_passes_over_entries_without_a_record(
    server: RedisServer, engine: RedisEngine, state: JobState
) -> None:
    engine.accept([job("a")])
    [lease] = taken(engine)
    settlement = Ack(lease=lease) if state is JobState.COMPLETED else Abandon(lease=lease, reason=DeadReason.FAILED)
    assert engine.settle([settlement]) == [True]
    with server.client() as client:
        client.zadd(f"{BASE}{state.value}:default", {f"ghost{number}": 1 for number in range(2500)})
        assert engine.purge([state]) == 1
        assert client.exists(f"{BASE}{state.value}:default") == 0


# Servers that are refused, or used with a warning.


@pytest.mark.parametrize("own_server", [{"maxmemory-policy": "allkeys-lru"}], indirect=True)
def test_a_server_that_could_evict_jobs_is_refused(own_server: RedisServer) -> None:
    with opened(own_server.url) as engine, pytest.raises(BackendError, match=r"allkeys-lru.*noeviction"):
        engine.accept([job("a")])
    with own_server.client() as client:
        assert client.dbsize() == 0


@pytest.mark.parametrize("own_server", [{"maxmemory-policy": "volatile-lru"}], indirect=True)
def test_a_server_that_evicts_only_what_expires_is_not(own_server: RedisServer) -> None:
    with opened(own_server.url) as engine:
        engine.accept([job("a")])


@pytest.mark.parametrize("own_server", [{"appendonly": "no"}], indirect=True)
def test_a_server_without_a_file_is_used_with_a_warning(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(own_server.url) as engine, caplog.at_level(logging.WARNING, "holdfast.redis"):
        engine.accept([job("a")])
    assert "appendonly no" in caplog.text


def test_a_server_with_a_file_is_used_without_a_warning(engine: RedisEngine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.redis"):
        engine.accept([job("a")])
    assert caplog.text == ""


def test_a_full_server_takes_no_jobs_and_lets_the_old_ones_finish(own_server: RedisServer) -> None:
    with opened(own_server.url) as engine, own_server.client() as client:
        engine.accept([job(f"job{number}") for number in range(6)])
        first, second, third = taken(engine, 3)
        client.config_set("maxmemory", "1")
        with pytest.raises(BackendUnavailable, match="memory"):
            engine.accept([job("new")])
        with opened(own_server.url) as late:
            assert late.renew_many([first]) == [LeaseState.HELD]
        assert engine.ack(first)
        answers, leases = engine.exchange([Ack(lease=second)], "default", 1, owner_token=new_owner_token())
        assert (answers, len(leases)) == ([True], 1)
        assert engine.nack(third, delay=60)
        assert len(taken(engine)) == 2
        engine.reap_expired()
        assert engine.purge([JobState.COMPLETED]) == 2
        client.config_set("maxmemory", "0")
        assert engine.accept([job("new")])[0].created
        check_indexes(client)


def test_a_full_server_takes_no_new_cells_and_lets_the_old_ones_change(own_server: RedisServer) -> None:
    with opened(own_server.url) as engine, own_server.client() as client:
        engine.accept([job("a")])
        [lease] = taken(engine)
        old, new = Put(kind="worker", key="old"), Put(kind="worker", key="new")
        engine.state.write([old])
        client.config_set("maxmemory", "1")
        with pytest.raises(BackendUnavailable, match="memory"):
            engine.state.write([old, new])
        with pytest.raises(BackendUnavailable, match="memory"):
            engine.accept([job("b")], writes=[old])
        assert engine.state.write([old])
        assert engine.state.spend([Spend(bucket="mail", tokens=1, per_s=1, burst=1)])[0].tokens == 1
        assert engine.settle([Ack(lease=lease, writes=(new,), enqueues=(job("b"),))]) == [True]
        assert engine.state.write([Drop(kind="worker", key="old"), Drop(kind="order", key="old")])
        assert [cell.key for cell in engine.state.read("worker")] == ["new"]
        client.config_set("maxmemory", "0")
        check_indexes(client)


# Servers that stop, restart or are replaced.


def test_scripts_that_the_server_forgot_are_sent_again(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a"), job("b")])
    with server.client() as client:
        client.script_flush()
        [lease, _] = taken(engine)
        client.script_flush()
        assert engine.exchange([Ack(lease=lease)], "default", 1, owner_token=new_owner_token()) == (
            [True],
            [],
        )


@pytest.mark.parametrize("own_server", [{"appendfsync": "always"}], indirect=True)
def test_a_killed_server_comes_back_with_everything_that_was_answered(own_server: RedisServer) -> None:
    with opened(own_server.url) as engine:
        engine.accept([job("a"), job("b"), job("c")])
        first, second = taken(engine, 2)
        assert engine.ack(first)
        own_server.kill()
        with pytest.raises(BackendUnavailable):
            engine.ack(second)
        own_server.start()
        assert engine.ack(second)
        assert [lease.id for lease in taken(engine)] == ["c"]
        with own_server.client() as client:
            check_indexes(client)


def test_closed_connections_are_reopened_transparently(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a")])
    with server.client() as client:
        for other in client.client_list(_type="normal"):
            if int(other["id"]) != client.client_id():
                client.client_kill_filter(_id=other["id"])
    assert [lease.id for lease in taken(engine)] == ["a"]


def test_a_script_that_must_not_repeat_is_not_retried_after_a_lost_answer(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    spend = Spend(bucket="b", tokens=-1, per_s=0.001, burst=5)
    engine.state.spend([Spend(bucket="b", tokens=5, per_s=0.001, burst=5)])
    answer = redis_connections.__dict__["_answer"]
    sent: list[object] = []

    def lost(client: object, words: Sequence[object], source: bytes | None) -> object:
        sent.append(answer(client, words, source))
        raise redis.ConnectionError("the answer was lost")

    monkeypatch.setattr(redis_connections, "_answer", lost)
    for call in (
        lambda: engine.state.spend([spend]),
        lambda: engine.state.write([Put(kind="lock", key="a", if_version=0)]),
        lambda: engine.accept([job("a")], writes=[Put(kind="lock", key="b", if_version=0)]),
    ):
        sent.clear()
        with pytest.raises(BackendUnavailable):
            call()
        assert len(sent) == 1
    monkeypatch.undo()
    assert [cell.key for cell in engine.state.read("lock")] == ["a", "b"]
    assert engine.state.spend([Spend(bucket="b", tokens=5, per_s=0.001, burst=5)])[0].tokens == 1


def test_a_closed_port_is_unavailable() -> None:
    url = f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0"
    with opened(url) as engine:
        for verb in (engine.check, lambda: taken(engine), lambda: engine.wait_for_work(["default"], 1)):
            with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1") as refusal:
                verb()
            assert SECRET not in str(refusal.value)


def test_a_server_that_does_not_answer_is_unavailable(own_server: RedisServer) -> None:
    with opened(f"{own_server.url}?socket_timeout=1") as engine, own_server.client() as client:
        engine.check()
        client.client_pause(600_000)
        with pytest.raises(BackendUnavailable):
            taken(engine)


def test_a_replica_is_unavailable_and_never_an_empty_queue(own_server: RedisServer) -> None:
    with opened(own_server.url) as engine, own_server.client() as client:
        engine.check()
        client.replicaof("127.0.0.1", free_port())
        for verb in (lambda: taken(engine), lambda: engine.accept([job("a")]), engine.reap_expired):
            with pytest.raises(BackendUnavailable, match="replica"):
                verb()
        client.replicaof("NO", "ONE")
        assert engine.accept([job("a")])[0].created


@pytest.mark.parametrize("own_server", [{"requirepass": SECRET}], indirect=True)
def test_a_wrong_password_is_reported_and_never_shown(own_server: RedisServer) -> None:
    wrong = f"redis://:{SECRET}-not@127.0.0.1:{own_server.port}/0"
    with opened(wrong) as engine, pytest.raises(BackendError) as refusal:
        engine.check()
    assert not isinstance(refusal.value, BackendUnavailable)
    assert SECRET not in str(refusal.value)
    with opened(f"redis://:{SECRET}@127.0.0.1:{own_server.port}/0") as engine:
        assert engine.accept([job("a")])[0].created


@pytest.mark.parametrize("url", [f"redis://user:{SECRET}/0@host:port", "http://host", f"redis://:{SECRET}@host:x/0"])
def test_a_url_that_cannot_be_read_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        opened(url)
    assert SECRET not in str(refusal.value)


# Waiting: hints are never jobs.


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting thread wakes up only by a hint: it does not poll."""
    monkeypatch.setattr(jobs, "LOOK_EVERY_S", 10 * PATIENCE_S)


def waiting(engine: RedisEngine, queues: list[str], wake: int | None = None) -> threading.Thread:
    """A thread that waits for work."""
    thread = threading.Thread(
        target=engine.wait_for_work, args=(queues, 10 * PATIENCE_S), kwargs={"wake": wake}, daemon=True
    )
    thread.start()
    return thread


def blocked(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("clients")["blocked_clients"])


@pytest.mark.usefixtures("patient")
def test_a_hint_wakes_who_waits_and_the_job_is_still_to_be_had(server: RedisServer, engine: RedisEngine) -> None:
    thread = waiting(engine, ["mail", "default"])
    until(lambda: blocked(server) == 1, "somebody waits")
    with opened(server.url) as other:
        other.accept([job("a")])
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert [lease.id for lease in taken(other)] == ["a"]


@pytest.mark.usefixtures("patient")
def test_one_batch_wakes_one_worker_after_the_other(server: RedisServer, engine: RedisEngine) -> None:
    got: list[str] = []

    def work() -> None:
        engine.wait_for_work(["default"], 10 * PATIENCE_S)
        got.extend(lease.id for lease in taken(engine, 1))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: blocked(server) == 3, "all wait")
    with opened(server.url) as other:
        other.accept([job("a"), job("b"), job("c")])
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert sorted(got) == ["a", "b", "c"]


@pytest.mark.usefixtures("patient")
def test_what_a_settlement_enqueues_wakes_who_waits_for_it(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a")])
    [lease] = taken(engine)
    thread = waiting(engine, ["mail"])
    until(lambda: blocked(server) == 1, "somebody waits")
    with opened(server.url) as other:
        assert other.settle([Ack(lease=lease, enqueues=(job("b", queue="mail"),))]) == [True]
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert [lease.id for lease in taken(other, queue="mail")] == ["b"]


@pytest.mark.usefixtures("patient")
def test_who_is_called_away_waits_no_more_on_the_server(server: RedisServer, engine: RedisEngine) -> None:
    read, write = os.pipe()
    thread = waiting(engine, ["default"], read)
    until(lambda: blocked(server) == 1, "somebody waits")
    os.write(write, b"!")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert blocked(server) == 0
    os.close(read)
    os.close(write)


@pytest.mark.usefixtures("patient")
def test_a_resumed_queue_wakes_who_waits_for_it(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a")])
    engine.pause("default")
    thread = waiting(engine, ["default"])
    until(lambda: blocked(server) == 1, "somebody waits")
    assert engine.resume("default")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_claim_that_leaves_nothing_takes_the_hint_with_it(server: RedisServer, engine: RedisEngine) -> None:
    engine.accept([job("a"), job("b")])
    with server.client() as client:
        taken(engine, 1)
        assert client.llen(f"{BASE}wake:default") == 1
        engine.accept([job("c")])
        assert client.llen(f"{BASE}wake:default") == 1
        taken(engine)
        assert client.exists(f"{BASE}wake:default") == 0


# Processes.


def test_a_forked_child_has_its_own_connections(engine: RedisEngine) -> None:
    mine = engine.connections.call("CLIENT", "ID")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            engine.accept([job("by-the-child")])
            os.write(write, b"%d" % engine.connections.call("CLIENT", "ID"))
        finally:
            os._exit(0)
    os.close(write)
    said = os.read(read, 100)
    os.waitpid(child, 0)
    os.close(read)
    assert said
    assert int(said) != mine
    assert engine.connections.call("CLIENT", "ID") == mine
    assert [lease.id for lease in taken(engine)] == ["by-the-child"]


def test_a_forked_child_may_begin_with_a_look_at_the_server(engine: RedisEngine) -> None:
    mine = engine.connections.call("CLIENT", "ID")
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            engine.check()
            os._exit(engine.connections.call("CLIENT", "ID") == mine)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_closed_opens_again_when_it_is_used(engine: RedisEngine) -> None:
    engine.accept([job("a")])
    engine.close()
    assert [lease.id for lease in taken(engine)] == ["a"]
