"""What tests of the Redis engine share: handles, jobs, and a look at the keys behind the engine's back."""

from collections import Counter
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.codec import encode_payload
from holdfast.definition import JobDefinition
from holdfast.queues.backends.redis import RedisBackend
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import JobEnvelope

PREFIX = "holdfast_"
_envelopes = EnvelopeFactory(Keyring([SigningKey(b"the key of the tests, thirty-two b")]))


def opened(url: str, *, clock: Clock = SYSTEM_CLOCK, prefix: str = PREFIX) -> RedisBackend:
    """A handle on the server."""
    return RedisBackend(url, _envelopes, clock=clock, prefix=prefix)


def job(id: str | None = None, *, queue: str = "default", size: int = 0, delay: float | None = None) -> JobEnvelope:
    """A signed job whose payload is that large."""
    definition = JobDefinition(
        handler="mail.send", payload=encode_payload("x" * size), queue=queue, priority=5, delay=delay
    )
    return _envelopes.make(definition, id=id)


def check_indexes(client: Any, prefix: str = PREFIX) -> None:
    """Every index says what the records say, and nothing else is there."""
    base = f"{{{prefix}}}:"
    keys = {key.decode("latin-1").removeprefix(base) for key in client.scan_iter(match=f"{base}*", count=1000)}
    expected = {"schema", "number", "queues", "lengths", "pauses", "workers"}
    members: Counter[tuple[str, str]] = Counter()
    claims: set[tuple[str, str]] = set()
    waiting: set[tuple[str, str]] = set()
    delivered: set[tuple[str, str]] = set()
    for name in sorted(key for key in keys if key.startswith("job:")):
        id = name.removeprefix("job:")
        record = client.hgetall(base + name)
        expected |= {name}
        for index in _indexes(record):
            expected.add(index)
            members[index, id] += 1
        if record[b"state"] != b"7":
            expected |= {f"wire:{id}", f"told:{id}"}
            assert f"wire:{id}" in keys, f"the message of {id} is gone"
        if record[b"state"] in (b"0", b"1"):
            waiting.add((record[b"queue"].decode(), id))
            if record.get(b"deliveries", b"0") != b"0":
                delivered.add((record[b"queue"].decode(), id))
        if record[b"state"] == b"2":
            claims.add((record[b"lease"][:16].decode("latin-1"), id))
    for index in {index for index, _ in members}:
        assert client.zcard(base + index) == sum(1 for name, _ in members if name == index), index
    for index, id in members:
        assert client.zscore(base + index, id) is not None, f"{id} is not in {index}"
    assert _sets(client, base, keys, "claim:") == claims
    assert delivered <= _sets(client, base, keys, "again:") <= waiting
    aids = ("claim:", "again:", "wake:", "facts:", "worker:")
    surplus = {key for key in keys - expected if not key.startswith(aids)}
    assert not surplus, f"left behind: {sorted(surplus)}"


def _sets(client: Any, base: str, keys: set[str], kind: str) -> set[tuple[str, str]]:
    return {
        (key.removeprefix(kind), id.decode())
        for key in keys
        if key.startswith(kind)
        for id in client.smembers(base.encode() + key.encode("latin-1"))
    }


def _indexes(record: dict[bytes, bytes]) -> list[str]:
    queue, state = record.get(b"queue", b"").decode(), int(record[b"state"])
    if state == 7:
        return ["stones"]
    ready = f"ready:{queue}:{record[b'priority'].decode()}"
    by_state = {
        0: [ready],
        1: [ready, f"failed:{queue}"],
        2: [f"leased:{queue}"],
        4: [f"completed:{queue}"],
        5: [f"dead:{queue}"],
        6: [f"cancelled:{queue}"],
    }
    return ["jobs", *by_state[state]]
