"""What can be done to the keys of a Redis server."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.state.workers import ORDERS, WORKERS

from .cases import (
    BAD,
    DEPTH,
    FACTS,
    FUTURE,
    LARGEST,
    MESSAGES,
    NOT_UTF8,
    OTHER_QUEUE,
    PAST,
    QUEUE,
    REPORTS,
    RESULTS,
    TIMES,
    Case,
    Fate,
    Stage,
    beside,
    case,
    do,
    report,
)

FIELDS = ("attempts", "crashes", "number", "accepted_at", "due_at", "priority", "queue", "job", "state")


class RedisStore:
    """The keys of one prefix for all cases, deleted before each."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._base = f"{{{prefix}}}:"

    def key(self, name: str) -> str:
        return self._base + name

    def find_bad(self) -> None:
        """Its keys are called like the job."""

    def still_has_it(self) -> bool:
        """Whether anything is left of the bad job, which some cases have renamed."""
        kinds = (f"{self._base}{kind}:*" for kind in ("job", "wire"))
        healthy = {b"before", b"after", b"late"}
        return any(
            key.rsplit(b":", 1)[1] not in healthy for kind in kinds for key in self._client.scan_iter(match=kind)
        )

    def string(self, name: str, value: Any) -> None:
        """Make a key a string, whatever it was."""
        self._client.set(self.key(name), value)

    def list(self, name: str) -> None:
        """Make a key a list, whatever it was."""
        self._client.delete(self.key(name))
        self._client.rpush(self.key(name), "x")

    def delete(self, name: str) -> None:
        self._client.delete(self.key(name))

    def hash(self, name: str, fields: Mapping[Any, Any]) -> None:
        self._client.hset(self.key(name), mapping=dict(fields))

    def ranked(self, name: str, member: str | bytes, score: float) -> None:
        self._client.zadd(self.key(name), {member: score})

    def member(self, name: str, member: Any) -> None:
        self._client.sadd(self.key(name), member)

    def record(self, **fields: Any) -> None:
        """Change fields of the bad job's record; None deletes one."""
        for name, value in fields.items():
            if value is None:
                self._client.hdel(self.key(f"job:{BAD}"), name)
            else:
                self._client.hset(self.key(f"job:{BAD}"), name, value)

    def edge(self, parent: str = "", child: str = "", score: float = 0, **ends: bool) -> None:
        """Store an edge at both ends, or at those given, with a note; the bad job is at each end that is not named."""
        bad = f"{int(self._client.hget(self.key(f'job:{BAD}'), 'number')):016}{BAD}"
        parent, child = parent or bad, child or bad
        if ends.get("above", True):
            self.ranked(f"parents:{child}", parent, score)
        if ends.get("below", True):
            self.ranked(f"children:{parent}", child, score)
        self.hash("watched", {parent[16:]: parent})
        self.ranked("notes", parent, 1)

    def block(self) -> None:
        """Block the bad job on its parents."""
        self.record(state="31:1")
        self._client.zrem(self.key(READY), BAD)
        self.ranked(f"blocked:{QUEUE}", BAD, 1)

    def ends(self, **damage: Any) -> None:
        """Make one end of the edges of the bad job a string."""
        number = int(self._client.hget(self.key(f"job:{BAD}"), "number"))
        for name, value in damage.items():
            self.string(f"{name}:{number:016}{BAD}", value)

    def state(self) -> bytes:
        field: bytes = self._client.hget(self.key(f"job:{BAD}"), "state")
        return field

    def rename(self, name: bytes) -> None:
        """Call the job otherwise, everywhere."""
        for kind in ("job", "wire"):
            self._client.rename(self.key(f"{kind}:{BAD}"), self.key(f"{kind}:").encode() + name)
        for index in (f"ready:{QUEUE}:5", "jobs"):
            score = self._client.zscore(self.key(index), BAD)
            self._client.zrem(self.key(index), BAD)
            self._client.zadd(self.key(index), {name: score})

    def expire(self) -> None:
        """Let the lease of the bad job expire."""
        head, _, rest = self.state().partition(b":")
        claim = rest.partition(b" ")[2]
        self.record(state=head + b":1 " + claim)
        self._client.zadd(self.key(f"leased:{QUEUE}"), {claim: 1})

    def claim(self, **fields: Any) -> None:
        """Change what is known of the bad job's claim; None deletes it."""
        token = self.state().partition(b" ")[2]
        key = self.key("claim:").encode() + token + f":{QUEUE}".encode()
        for name, value in fields.items():
            if value is None:
                self._client.hdel(key, name)
            else:
                self._client.hset(key, name, value)

    def clear(self) -> None:
        """Leave nothing but the version of the schema."""
        if keys := [key for key in self._client.keys(f"{self._base}*") if not key.endswith(b":schema")]:
            self._client.delete(*keys)

    def close(self) -> None:
        self._client.close()


BAD_RECORD, BAD_WIRE, BAD_TOLD = f"job:{BAD}", f"wire:{BAD}", f"told:{BAD}"
READY = f"ready:{QUEUE}:5"
TOKEN = "0123456789abcdef"
SLOT = "key:a"
GHOST = "0000000000000009ghost"
"""The name of a job that does not exist, as the end of an edge."""
END = b"\0" * 17
"""The claim and the verdict in front of how an attempt ended."""
COUNTS = {"largest": LARGEST, "negative": -1, "a text": "many", "a fraction": 0.5, "empty": ""}
STATES = ("9", "", "x", "0x", "2", "21:x", "7", "4", "5", f"1{LARGEST}", "1-1")
ENDS = {
    "short": b"x",
    "without times": END + b"failed",
    "with times that are texts": END + b"failed x y",
    "not UTF-8": END + NOT_UTF8,
    "unknown": END + b"exploded 1 2",
}
PACKED = {
    "not MessagePack": b"\xc1",
    "a number": b"\x05",
    "short": b"\x91\x05",
    "empty": b"",
    "nested deep": b"\x91" * DEPTH + b"\x05",
}
packed = msgspec.msgpack.encode


def _record(name: str, stage: Stage, fate: Fate, /, **fields: Any) -> Case:
    return case(name, stage, fate, do("record", **fields))


def _expired(name: str, fate: Fate, /, **fields: Any) -> Case:
    """The lease has expired as well, so the reaper meets the record."""
    return case(f"{name} in an expired lease", Stage.LEASED, fate, do("expire"), do("record", **fields))


def _claim(name: str, **fields: Any) -> Iterable[Case]:
    yield case(f"claim {name}", Stage.LEASED, Fate.STAYS, do("claim", **fields))
    yield case(f"claim {name}, expired", Stage.LEASED, Fate.STAYS, do("claim", **fields), do("expire"))


def _told(name: str, stage: Stage, fate: Fate, fields: Mapping[Any, Any]) -> Case:
    """Something was put beside the record that its attempts have to tell."""
    return case(name, stage, fate, do("hash", BAD_TOLD, fields))


def _progress(name: str, progress: bytes, at: Any = 1) -> Case:
    fields = {"progress_of": 1, "progress": progress, "progress_at": at}
    return _told(f"progress {name}", Stage.FAILED, Fate.ENDS, fields)


def _output(name: str, output: bytes, delivery: Any = 1) -> Case:
    return _told(f"live output {name}", Stage.LEASED, Fate.STAYS, {f"output:{delivery}": output})


def _cell(name: str, kind: str, stored: bytes, key: Any = "w-bad") -> Case:
    """Processes share a value that none of them wrote."""
    return beside(
        f"cell of {kind}: {name}", do("hash", f"cells:{kind}", {key: stored}), do("ranked", f"keys:{kind}", key, 0)
    )


def _worker(name: str, value: bytes = report(), version: Any = 1, expires_at: Any = LARGEST) -> Case:
    """A worker is registered next to a healthy one."""
    return _cell(name, WORKERS, f"{version} {expires_at} ".encode() + value)


def _records() -> Iterable[Case]:
    for counter in ("attempts", "crashes"):
        for name, value in COUNTS.items():
            count = {counter: value}
            yield _record(f"{counter} {name}", Stage.FAILED, Fate.STAYS, **count)
            yield _expired(f"{counter} {name}", Fate.STAYS, **count)
            yield _record(f"{counter} {name} of a dead letter", Stage.DEAD, Fate.STAYS, **count)
    for field in FIELDS:
        yield _record(f"{field} missing", Stage.WAITING, Fate.STAYS, **{field: None})
        yield _record(f"{field} missing of a job that failed", Stage.FAILED, Fate.STAYS, **{field: None})
        yield _expired(f"{field} missing", Fate.STAYS, **{field: None})
        yield _record(f"{field} missing of a dead letter", Stage.DEAD, Fate.STAYS, **{field: None})
        yield _record(f"{field} is not UTF-8", Stage.WAITING, Fate.STAYS, **{field: NOT_UTF8})
    for state in STATES:
        yield _record(f"state {state!r}", Stage.FAILED, Fate.STAYS, state=state)
        yield _record(f"state {state!r} of a dead letter", Stage.DEAD, Fate.STAYS, state=state)
    for field in ("dead_reason", "last_error"):
        yield _record(f"{field} is not UTF-8", Stage.DEAD, Fate.STAYS, **{field: NOT_UTF8})
    yield _record("dead_reason unknown", Stage.DEAD, Fate.STAYS, dead_reason="gone-fishing")
    yield case("id is not UTF-8", Stage.WAITING, Fate.ENDS, do("rename", NOT_UTF8), with_worker=True)


def _times() -> Iterable[Case]:
    for name, value in {**TIMES, "a text": "soon"}.items():
        yield _record(f"accepted_at {name}", Stage.WAITING, Fate.ENDS, accepted_at=value)
        yield _record(f"due_at {name}", Stage.WAITING, Fate.ENDS, due_at=value)
        yield from _claim(f"at {name}", at=value)
        yield from _claim(f"length {name}", length=value)
        yield beside(f"pause since {name}", do("hash", "pauses", {OTHER_QUEUE: f"{value} why"}))
        yield _worker(f"version {name}", version=value)
        yield _worker(f"expires_at {name}", expires_at=value)
        yield _progress(f"at {name}", packed([1.0, None, ""]), at=value)
        yield _record(
            f"attempt started {name}", Stage.DEAD, Fate.STAYS, **{"end:1": END + f"failed {value} 1".encode()}
        )
        yield _record(f"attempt ended {name}", Stage.DEAD, Fate.STAYS, **{"end:1": END + f"failed 1 {value}".encode()})
    for name, value in {**PAST, **FUTURE, "infinite": float("inf")}.items():
        fate = Fate.ENDS if name in PAST else Fate.STAYS
        yield case(f"ready score {name}", Stage.WAITING, fate, do("ranked", READY, BAD, value))
    for name, value in {**TIMES, "infinite": float("inf")}.items():
        yield case(f"dead score {name}", Stage.DEAD, Fate.STAYS, do("ranked", f"dead:{QUEUE}", BAD, value))
        yield case(f"number {name}", Stage.DEAD, Fate.STAYS, do("ranked", "jobs", BAD, value))


def _keys() -> Iterable[Case]:
    """The keys of a job: missing, of another type, or full of something else."""
    for stage in (Stage.WAITING, Stage.FAILED, Stage.LEASED, Stage.DEAD):
        fate = Fate.DIES if stage in (Stage.WAITING, Stage.FAILED) else Fate.STAYS
        met = stage is Stage.WAITING
        yield case(f"message missing, {stage}", stage, fate, do("delete", BAD_WIRE), with_worker=met)
        yield case(f"message is a list, {stage}", stage, fate, do("list", BAD_WIRE))
        yield case(f"record is a string, {stage}", stage, Fate.STAYS, do("string", BAD_RECORD, "x"), with_worker=met)
        yield case(f"record missing, {stage}", stage, Fate.STAYS, do("delete", BAD_RECORD))
        yield case(f"history is a string, {stage}", stage, Fate.STAYS, do("string", BAD_TOLD, "x"))
    for name, wire in MESSAGES.items():
        yield case(f"message {name}", Stage.WAITING, Fate.DIES, do("string", BAD_WIRE, wire))
    for name, result in RESULTS.items():
        yield _told(f"result {name}", Stage.DONE, Fate.STAYS, {1: packed([None, None, None, None, result, None])})
    for name, value in PACKED.items():
        yield _told(f"history {name}", Stage.DEAD, Fate.STAYS, {1: value})
        yield _progress(f"is {name}", value)
        yield _output(f"is {name}", value)
    for name, number in {"not a number": float("nan"), "infinite": float("inf"), "negative": -1.0}.items():
        yield _progress(f"done {name}", packed([number, number, ""]))
    yield _progress("done is a text", packed(["half", "all", ""]))
    for name, start in {"negative": -1, "largest": LARGEST, "a text": "far"}.items():
        yield _output(f"start {name}", packed([start, "x"]))
    yield _output("of a text", packed([0, "x"]), delivery="x")
    for name, end in ENDS.items():
        yield _record(f"attempt {name}", Stage.DEAD, Fate.STAYS, **{"end:1": end})
    there = END + b"failed 1 2"
    yield _record("attempt of a text", Stage.DEAD, Fate.STAYS, **{"end:x": there})
    yield _record("attempt of the next delivery", Stage.WAITING, Fate.ENDS, **{"end:1": there})
    yield _expired("attempt of a delivery under way", Fate.ENDS, **{"end:1": there})


def _used() -> tuple[Any, ...]:
    """A job waits for the slot, as far as the indexes know."""
    return do("ranked", "used", SLOT, 0), do("ranked", "waited", SLOT, 0), do("member", f"queues:{SLOT}", QUEUE)


def _beside() -> Iterable[Case]:
    """What is not a record of a job, but is read with them."""
    for name, said in REPORTS.items():
        yield _worker(name, said)
    for name, stored in {"empty": b"", "a text": b"x", "short": b"1", "a version only": b"1 "}.items():
        yield _cell(name, WORKERS, stored)
    yield _cell("unknown", ORDERS, b"1  dance")
    yield beside("cell that is not there", do("ranked", f"keys:{WORKERS}", "w-bad", 0))
    yield beside("expiry of no cell", do("ranked", "expiries", "nonsense", 1))
    for name, full_at in {"largest": LARGEST, "infinite": float("inf")}.items():
        yield beside(f"bucket full_at {name}", do("ranked", "buckets", "rate", full_at))
    yield beside("pause queue is not UTF-8", do("hash", "pauses", {NOT_UTF8: b"1 " + NOT_UTF8}))
    yield beside("pause without a time", do("hash", "pauses", {OTHER_QUEUE: ""}))
    for kind in FACTS:
        yield _cell("key is not UTF-8", kind, b"1  ", key=NOT_UTF8)
    for index in ("waited", "used", "slots", "uniques", f"blocked:{QUEUE}", f"places:{SLOT}", f"queues:{SLOT}"):
        yield beside(f"{index} is a string", do("ranked", "used", SLOT, 0), do("string", index, "x"))
    for name, value in {"largest": LARGEST, "infinite": float("inf")}.items():
        yield beside(f"fence {name}", do("ranked", "slots", SLOT, value))
        yield beside(f"place until {name}", *_used(), do("hash", f"places:{SLOT}", {BAD: f"0 1 {value} {QUEUE}"}))
    for name, stored in {"a text": b"x", "not UTF-8": NOT_UTF8, "empty": b""}.items():
        yield beside(f"place {name}", *_used(), do("hash", f"places:{SLOT}", {"ghost": stored}))
        yield beside(f"unique key {name}", do("hash", "uniques", {NOT_UTF8: stored}))
        yield beside(f"waiting job {name}", *_used(), do("ranked", f"waiting:{SLOT}:{QUEUE}", stored, 0))
    yield beside("slot is not UTF-8", do("ranked", "used", NOT_UTF8, 0), do("ranked", "waited", NOT_UTF8, 0))
    for state in ("3", f"31:{LARGEST} 1", f"31:{LARGEST} {LARGEST}{LARGEST} {SLOT}", "31:1 1 \udcff"):
        stored = state.encode(errors="surrogateescape")
        yield _record(f"state {state!r} of a job that failed before", Stage.FAILED, Fate.STAYS, state=stored)
    yield beside("name of a queue is not UTF-8", do("member", "queues", NOT_UTF8))
    yield beside(
        "completions is a text", do("member", "queues", OTHER_QUEUE), do("hash", "completions", {OTHER_QUEUE: "x"})
    )
    for index in (f"ready:{QUEUE}:3", f"failed:{QUEUE}", f"again:{QUEUE}", f"renewed:{QUEUE}", f"wake:{QUEUE}"):
        yield beside(f"{index} is a string", do("string", index, "x"))
    for kind in ("ready:{}:5", "failed:{}", "leased:{}", "renewed:{}", "dead:{}", "completed:{}", "cancelled:{}"):
        index = kind.format(OTHER_QUEUE)
        yield beside(f"{index} is a string", do("member", "queues", OTHER_QUEUE), do("string", index, "x"))
    for name, score in {"expired": 1, "far ahead": LARGEST}.items():
        yield beside(f"claim of nothing, {name}", do("ranked", f"leased:{QUEUE}", TOKEN, score))
        yield beside(f"renewal of nothing, {name}", do("ranked", f"renewed:{QUEUE}", "ghost", score))
    for index in ("jobs", READY, f"dead:{QUEUE}"):
        yield beside(f"nothing but an entry of {index}", do("ranked", index, "ghost", 1))


def _edges() -> Iterable[Case]:
    """Edges and notes that no process wrote."""
    scores = {"open": 0, "unknown": 9, "negative": -1, "largest": LARGEST, "infinite": float("inf"), "fraction": 0.5}
    for index in ("watched", "notes"):
        yield beside(f"{index} is a string", do("string", index, "x"))
        yield beside(f"{index} is a string, next to edges", do("edge", GHOST, GHOST), do("string", index, "x"))
    for name, member in {"empty": "", "short": "x", "without a number": f"{'x' * 16}{BAD}", "a ghost": GHOST}.items():
        yield beside(f"note {name}", do("ranked", "notes", member, 1))
        yield beside(f"edge between jobs, {name}", do("edge", member, member))
        yield beside(f"edge of a job that waits, parent {name}", do("edge", parent=member))
        yield beside(f"edge of a job that waits, child {name}", do("edge", child=member))
    yield beside("watched job is not UTF-8", do("hash", "watched", {BAD: NOT_UTF8, NOT_UTF8: NOT_UTF8}))
    for name, score in scores.items():
        yield beside(f"edge score {name}", do("edge", parent=GHOST, score=score))
        yield beside(f"edge score {name} of a job with itself", do("edge", score=score))
        yield case(f"edge score {name} of a dead letter with itself", Stage.DEAD, Fate.STAYS, do("edge", score=score))
        yield case(f"edge score {name} of a running job with itself", Stage.LEASED, Fate.STAYS, do("edge", score=score))
    for end in ("above", "below"):
        yield beside(f"edge of a job that waits, only {end}", do("edge", GHOST, **{end: False}))
        yield case(f"edge of a dead letter, only {end}", Stage.DEAD, Fate.STAYS, do("edge", **{end: False}))
    for end in ("parents", "children"):
        damage = do("edge", score=20), do("ends", **{end: "x"})
        for stage in (Stage.WAITING, Stage.LEASED, Stage.DONE, Stage.DEAD):
            yield case(f"{end} of a job are a string, {stage}", stage, Fate.STAYS, *damage)
        yield case(f"{end} of a blocked job are a string", Stage.FAILED, Fate.STAYS, do("block"), *damage)
    for name, edge in {"itself": do("edge"), "a ghost": do("edge", GHOST, score=2)}.items():
        yield case(f"job that waits for {name}", Stage.FAILED, Fate.STAYS, do("block"), edge)
    missing = do("edge", GHOST, score=1), do("string", BAD_RECORD, "x")
    yield case("record of a blocked job is a string", Stage.FAILED, Fate.STAYS, do("block"), *missing)
    yield _record("state is blocked without edges", Stage.FAILED, Fate.STAYS, state="31:1")


CASES = [*_records(), *_times(), *_keys(), *_beside(), *_edges()]
IMPOSSIBLE = {"number largest of the last job": "numbers come from a counter, which no record moves"}
