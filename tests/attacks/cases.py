"""`Case`: one record damaged in one way, and what may become of its job. The values that no engine writes itself."""

from collections.abc import Callable
from enum import StrEnum
from operator import methodcaller
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast.queues.signing import Keyring

KEY = "attacks:the-signing-key-of-the-corpus-of-attacks"
BEFORE, BAD, AFTER = "before", "bad", "after"
QUEUE = "default"
OTHER_QUEUE = "elsewhere"
FACTS = ("signing-key", "allowed-command")

LARGEST = 2**63 - 1
SMALLEST = -(2**63)
YEAR_10000 = 253_402_300_800_000_000
PAST = {"0": 0, "smallest": SMALLEST}
FUTURE = {"year 10000": YEAR_10000, "largest": LARGEST}
TIMES = {"smallest": SMALLEST, **FUTURE}

NOT_UTF8 = b"\xff\xfe"
DEPTH = 50_000
DEEP = b"[" * DEPTH + b"]" * DEPTH


class Stage(StrEnum):
    """How far the job has come before its record is damaged."""

    WAITING = "waiting"
    FAILED = "failed"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"


class Fate(StrEnum):
    """What may become of the job, once a worker has drained its queue."""

    ENDS = "ends"
    """It completes, or is a dead letter."""
    DIES = "dies"
    """It is a dead letter that was never started."""
    STAYS = "stays"
    """It is left alone or is a dead letter: the store still has it."""


do = methodcaller
"""One step of the damage: a method of the raw store, and what it is called with."""


class Case(NamedTuple):
    """The damage is done past the engine, step by step, to the raw store."""

    name: str
    stage: Stage
    fate: Fate
    damage: tuple[Callable[[Any], object], ...]
    handler: str = "note"
    with_worker: bool = False
    """Whether a worker with processes of its own is to meet it as well."""


def case(name: str, stage: Stage, fate: Fate, *damage: Callable[[Any], object], with_worker: bool = False) -> Case:
    return Case(name, stage, fate, damage, with_worker=with_worker)


def beside(name: str, *damage: Callable[[Any], object]) -> Case:
    """The damage is done beside the job, which has to run like its neighbours."""
    return Case(name, Stage.WAITING, Fate.ENDS, damage)


def messages(signer: Keyring) -> dict[str, bytes]:
    """Messages that no producer writes."""
    fields = {
        "v": 1,
        "job": "note",
        "payload": None,
        "queue": QUEUE,
        "maxRetries": 0,
        "identifier": BAD,
        "timeout": 1.0,
        "createdAt": "2026-01-01T00:00:00Z",
        "kid": signer.kid,
    }
    valid = msgspec.json.encode(fields)
    return {
        "empty": b"",
        "truncated": signer.sign(valid)[:40],
        "random bytes": bytes(range(256)) * 4,
        "1 MiB of [": b"[" * 2**20,
        "nested deep": DEEP,
        "signed, not JSON": signer.sign(b"{\xff\xfe}"),
        "signed, nested deep": signer.sign(valid[:-1] + b',"meta":' + DEEP + b"}"),
        "signed, without a handler": signer.sign(b'{"v":1,"kid":"%s"}' % signer.kid.encode()),
        "signed, of the year 0": signer.sign(valid.replace(b"2026-01-01", b"0000-00-00")),
    }


MESSAGES = messages(Keyring.parse(KEY))
RESULTS = {"nested deep": DEEP, "not JSON": NOT_UTF8, "empty": b""}

REPORT: dict[str, Any] = {
    "id": "w-bad",
    "host": "web-1",
    "pid": 1,
    "version": "0.1.0",
    "started_at": "2026-01-01T00:00:00Z",
    "queues": [QUEUE],
    "handlers": ["note"],
    "processes": 1,
    "slots": 1,
    "beat_every_s": 1.0,
}


def report(**changes: Any) -> bytes:
    """What a worker says of itself, with some of it changed."""
    return msgspec.json.encode({**REPORT, **changes})


REPORTS = {
    "not JSON": b"not JSON",
    "nested deep": DEEP,
    "a list": b"[]",
    "a start without a zone": report(started_at="2026-01-01T00:00:00"),
    "a start before the calendar": report(started_at="0000-00-00T00:00:00Z"),
    "a negative pid": report(pid=-1),
    "an endless interval": report(beat_every_s=1e300),
    "a negative interval": report(beat_every_s=-1e300),
}


WHOLE = [case(f"no damage, {stage}", stage, Fate.STAYS) for stage in Stage]
"""No damage at all, to show what a case has to look like."""


def parametrized(
    engine: str, cases: list[Case], impossible: dict[str, str], refused_by_schema: frozenset[str]
) -> list[Any]:
    """The cases of an engine as parameters of a test, and why some cannot be had on it."""
    cases = [*WHOLE, *(case for case in cases if case.name not in refused_by_schema)]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), f"two cases of {engine} have the same name"
    refused = [
        pytest.param(engine, None, id=f"{engine}: {name}", marks=pytest.mark.skip(reason=reason))
        for name, reason in impossible.items()
    ]
    return [pytest.param(engine, case, id=f"{engine}: {case.name}") for case in cases] + refused
