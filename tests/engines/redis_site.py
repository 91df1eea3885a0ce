"""Handles and jobs for tests of the Redis engine, and checks of its keys without the engine."""

from collections import Counter
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.codec import encode_payload
from holdfast.definition import JobDefinition
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import JobEnvelope

PREFIX = "holdfast_"
_envelopes = EnvelopeFactory(Keyring([SigningKey(b"the key of the tests, thirty-two b")]))


def opened(url: str, *, clock: Clock = SYSTEM_CLOCK, prefix: str = PREFIX) -> RedisEngine:
    """A handle on the server."""
    return RedisEngine(url, _envelopes, clock=clock, prefix=prefix)


def job(id: str | None = None, *, queue: str = "default", size: int = 0, delay: float | None = None) -> JobEnvelope:
    """A signed job with a payload of this size."""
    definition = JobDefinition(
        handler="mail.send", payload=encode_payload("x" * size), queue=queue, priority=5, delay=delay
    )
    return _envelopes.make(definition, id=id)


def check_indexes(client: Any, prefix: str = PREFIX) -> None:
    """Check that every index agrees with the records, and that there are no other keys."""
    base = f"{{{prefix}}}:"
    keys = {key.decode("latin-1").removeprefix(base) for key in client.scan_iter(match=f"{base}*", count=1000)}
    expected = {"schema", "number", "queues", "lengths", "pauses", "completions", "expiries", "buckets"}
    expected |= {"slots", "sizes", "used", "uniques", "notes"}
    members: Counter[tuple[str, str]] = Counter()
    completed: Counter[tuple[str, float, str]] = Counter()
    held: dict[str, dict[str, float]] = {}
    waiting: set[tuple[str, str]] = set()
    delivered: set[tuple[str, str]] = set()
    blocked: dict[str, list[bytes]] = {}
    names: dict[str, int] = {}
    for name in sorted(key for key in keys if key.startswith("job:")):
        id = name.removeprefix("job:")
        record = client.hgetall(base + name)
        state, deliveries, instant, claim = _state(record)
        queue = record.get(b"queue", b"").decode()
        expected |= {name}
        for index in _indexes(record):
            expected.add(index)
            members[index, id] += 1
        if state != 7:
            expected |= {f"wire:{id}", f"told:{id}"}
            assert f"wire:{id}" in keys, f"the message of {id} is gone"
        if state in (0, 1):
            waiting.add((queue, id))
            if deliveries:
                delivered.add((queue, id))
        if state == 2:
            held.setdefault(f"claim:{claim}:{queue}", {})[id] = instant
        names[f"{int(record[b'number']):016}{id}"] = state
        if state == 3 and b" " in record[b"state"]:
            _, _, slot = record[b"state"].decode().split(" ", 2)
            blocked.setdefault(f"waiting:{slot}:{queue}", []).append(_waiter(id, record))
        if state == 4:
            completed[queue, instant, id] += 1
    for index in {index for index, _ in members}:
        assert client.zcard(base + index) == sum(1 for name, _ in members if name == index), index
    for index, id in members:
        assert client.zscore(base + index, id) is not None, f"{id} is not in {index}"
    assert delivered <= _again(client, base, keys) <= waiting
    _check_claims(client, base, keys, held)
    _check_completed(client, base, keys, completed)
    _check_cells(client, base, keys)
    expected |= _check_slots(client, base, keys, blocked)
    expected |= _check_edges(client, base, keys, names)
    aids = ("claim:", "leased:", "renewed:", "completed:", "again:", "wake:", "cells:", "keys:", "damaged:")
    surplus = {key for key in keys - expected if not key.startswith(aids)}
    assert not surplus, f"left behind: {sorted(surplus)}"


def _check_claims(client: Any, base: str, keys: set[str], held: dict[str, dict[str, float]]) -> None:
    """Check that every claim counts its leases, and is reaped no later than its first lease expires."""
    assert {key for key in keys if key.startswith("claim:")} == held.keys()
    leased = {
        f"claim:{token.decode('latin-1')}:{key.removeprefix('leased:')}": score
        for key in keys
        if key.startswith("leased:")
        for token, score in client.zrange(base + key, 0, -1, withscores=True)
    }
    assert leased.keys() == held.keys()
    renewed = {
        (key.removeprefix("renewed:"), id.decode()): score
        for key in keys
        if key.startswith("renewed:")
        for id, score in client.zrange(base + key, 0, -1, withscores=True)
    }
    for claim, jobs in held.items():
        stored = client.hgetall(base.encode() + claim.encode("latin-1"))
        assert int(stored[b"held"]) == len(jobs), claim
        assert jobs.keys() <= set(stored[b"ids"].decode().split("\n")), claim
        for id, lease_until in jobs.items():
            score = renewed.pop((claim[len("claim:") + 17 :], id), leased[claim])
            assert score == lease_until, f"{id} is held until {lease_until} and indexed at {score}"
    assert not renewed, f"renewed, and not held: {renewed}"


def _check_completed(client: Any, base: str, keys: set[str], completed: Counter[tuple[str, float, str]]) -> None:
    """Check that every completed job is indexed once, and counted."""
    found = Counter(
        (key.removeprefix("completed:"), score, id)
        for key in keys
        if key.startswith("completed:")
        for member, score in client.zrange(base + key, 0, -1, withscores=True)
        for id in member.decode().split("\n")
    )
    assert found == completed
    counted = {queue.decode(): int(number) for queue, number in client.hgetall(f"{base}completions").items()}
    assert {queue: number for queue, number in counted.items() if number} == Counter(queue for queue, _, _ in completed)


def _check_slots(client: Any, base: str, keys: set[str], blocked: dict[str, list[bytes]]) -> set[str]:
    """Check that every blocked job is indexed by its slot, and every used slot by its name. Returns their keys."""
    for index, waiters in blocked.items():
        assert client.zrange(base + index, 0, -1) == sorted(waiters), index
    queues: dict[str, set[bytes]] = {}
    for index in blocked:
        slot, _, queue = index.removeprefix("waiting:").rpartition(":")
        queues.setdefault(slot, set()).add(queue.encode())
    for slot, names in queues.items():
        assert client.smembers(f"{base}queues:{slot}") == names, slot
    held = {key.removeprefix("places:") for key in keys if key.startswith("places:")}
    assert _names(client, base + "waited") == sorted(queues)
    assert _names(client, base + "used") == sorted(held | queues.keys())
    own = {*blocked, *(f"queues:{slot}" for slot in queues), *(f"places:{slot}" for slot in held)}
    return own | ({"waited"} if queues else set())


def _check_edges(client: Any, base: str, keys: set[str], names: dict[str, int]) -> set[str]:
    """Check that both ends of every edge have it, unless one was deleted, and that parents are watched. Returns their
    keys. `names` has the states of jobs by their names.
    """
    parents = {key.removeprefix("parents:") for key in keys if key.startswith("parents:")}
    children = {key.removeprefix("children:") for key in keys if key.startswith("children:")}
    noted = set(_names(client, base + "notes"))
    above = {
        (name.decode(), child, score)
        for child in parents
        for name, score in client.zrange(f"{base}parents:{child}", 0, -1, withscores=True)
    }
    below = {
        (parent, name.decode(), score)
        for parent in children
        for name, score in client.zrange(f"{base}children:{parent}", 0, -1, withscores=True)
    }
    assert below <= above, "edges of children that do not have them"
    for parent, child, score in above - below:
        assert names.get(parent, 7) == 7, f"{parent} does not have its edge with {child} ({score})"
    assert {name for name in parents if names.get(name, 7) == 7} == set(), "edges of deleted children"
    assert {name for name in children - noted if names.get(name, 7) == 7} == set(), "edges of deleted parents"
    assert {name.decode() for name in client.hvals(base + "watched")} == children
    return {f"parents:{name}" for name in parents} | {f"children:{name}" for name in children} | {"watched"}


def _names(client: Any, key: str) -> list[str]:
    return [name.decode() for name in client.zrange(key, 0, -1)]


def _waiter(id: str, record: dict[bytes, bytes]) -> bytes:
    """The entry of a blocked job in the index of its slot and queue."""
    return f"{9 - int(record[b'priority'])}{int(record[b'due_at']):016}{id}".encode()


def _check_cells(client: Any, base: str, keys: set[str]) -> None:
    """Check that every cell is indexed by its kind and, if it expires, by when it may be swept."""
    kinds = {key.removeprefix("cells:") for key in keys if key.startswith("cells:")}
    assert {key.removeprefix("keys:") for key in keys if key.startswith("keys:")} == kinds
    expiring: dict[str, float] = {}
    for kind in kinds:
        cells = client.hgetall(f"{base}cells:{kind}")
        assert client.zrange(f"{base}keys:{kind}", 0, -1) == sorted(cells)
        for key, stored in cells.items():
            version, expires, _ = stored.split(b" ", 2)
            if expires:
                expiring[f"{kind} {key.decode()}"] = max(int(expires), int(version) + 1)
    found = client.zrange(f"{base}expiries", 0, -1, withscores=True)
    assert {name.decode(): score for name, score in found} == expiring


def _again(client: Any, base: str, keys: set[str]) -> set[tuple[str, str]]:
    return {
        (key.removeprefix("again:"), id.decode())
        for key in keys
        if key.startswith("again:")
        for id in client.smembers(base + key)
    }


def _state(record: dict[bytes, bytes]) -> tuple[int, int, float, str]:
    """The state, the deliveries, the time and the claim of a job."""
    head, _, tail = record[b"state"].partition(b":")
    instant, _, rest = tail.partition(b" ")
    return int(head[:1]), int(head[1:] or 0), float(instant or 0), rest[:16].decode("latin-1")


def _indexes(record: dict[bytes, bytes]) -> list[str]:
    """The sorted sets that must contain this job."""
    queue, state = record.get(b"queue", b"").decode(), _state(record)[0]
    if state == 7:
        return ["stones"]
    ready = f"ready:{queue}:{record[b'priority'].decode()}"
    by_state = {
        0: [ready],
        1: [ready, f"failed:{queue}"],
        3: [f"blocked:{queue}"],
        5: [f"dead:{queue}"],
        6: [f"cancelled:{queue}"],
    }
    return ["jobs", *by_state.get(state, [])]
