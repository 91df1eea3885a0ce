"""`docs/wire_vectors.json`: the wire format in examples, for readers in other languages and against accidents in ours.

A change here is a change of the format: messages already queued must still be read. After a deliberate one run
`python tests/unit/test_wire_vectors.py`, which writes the file anew.
"""

import ast
import base64
import hashlib
import hmac
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from holdfast import errors
from holdfast.clock import ManualClock
from holdfast.codec import INT64_MAX, INT64_MIN, encode_payload, seal, unseal
from holdfast.definition import JobDefinition
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import Backoff, BackoffStrategy

FILE: Final = Path(__file__).parents[2] / "docs" / "wire_vectors.json"
SECRETS: Final = {
    "2026-01": "the current key of the test vectors",
    "2025-01": "the key before it, kept for verifying",
    "long": "a key longer than the sixty-four bytes of a SHA-256 block is hashed before it is used, as RFC 2104 says",
}
STRANGER: Final = SigningKey(b"a key that is in nobody's key ring", "stranger")
INSTALLATIONS: Final = ("holdfast", "Shop-2_eu.west")
OURS, ANOTHER = INSTALLATIONS
CREATED: Final = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)

DEFINITIONS: Final = {
    "the least a message says": JobDefinition(handler="mail.send"),
    "everything a message can say": JobDefinition(
        handler="mail.send",
        payload=encode_payload({"to": "ada@example.org", "copies": 2}),
        name="welcome mail",
        queue="mail",
        priority=8,
        max_retries=5,
        timeout=12.5,
        backoff=Backoff(strategy=BackoffStrategy.LINEAR, base=1.5, max=60.0, jitter=0.0),
        expires_at=datetime(2026, 2, 1, tzinfo=timezone(timedelta(hours=2))),
        tags=("eu", "first order"),
        meta=encode_payload({"tenant": 7}),
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        fence=True,
    ),
    "an exponential backoff": JobDefinition(handler="mail.send", backoff=Backoff(base=5.0, multiplier=3.0)),
    "a list of delays": JobDefinition(handler="mail.send", backoff=Backoff(delays=(1.0, 5.0, 30.0))),
    "values JSON has no words for": JobDefinition(
        handler="shop.bill",
        payload=encode_payload(
            {
                "instant": datetime(2026, 1, 1, 12, 30, tzinfo=UTC),
                "instant elsewhere": datetime(2026, 1, 1, 12, 30, tzinfo=timezone(timedelta(hours=-5))),
                "date": date(2026, 1, 1),
                "span": timedelta(days=1, seconds=3, milliseconds=500),
                "decimal": Decimal("19.90"),
                "uuid": UUID("12345678-1234-5678-1234-567812345678"),
                "bytes": b"\x00\x01\xfe\xff",
                "enumeration": BackoffStrategy.FIXED,
                "null": None,
                "numbers as keys": {1: "one", 2.5: "two and a half"},
            }
        ),
    ),
    "text beyond ASCII is not escaped": JobDefinition(
        handler="mail.send",
        payload=encode_payload(["grüße", "日本", "😀", 'quote " backslash \\ slash /', "\n\t\x01\x7f"]),
    ),
    "the outermost numbers": JobDefinition(
        handler="sum", payload=encode_payload([INT64_MAX, INT64_MIN, 0, 0.1, -0.0, 1e300, 5e-324, 1.0, 2**53 + 1])
    ),
}

# Each is made of a good wire, and refused with the class of error beside it.
LEAST: Final = "the least a message says"


def ring(*kids: str, installation: str = OURS) -> Keyring:
    return Keyring([SigningKey(SECRETS[kid].encode(), kid, installation=installation) for kid in kids])


def derived(secret: str, installation: str) -> bytes:
    """The key as docs/wire.md defines it."""
    return hmac.new(secret.encode(), b"holdfast wire v1\0" + installation.encode(), hashlib.sha256).digest()


def wire_of(definition: JobDefinition, kid: str = "2026-01", installation: str = OURS) -> bytes:
    factory = EnvelopeFactory(ring(kid, installation=installation), clock=ManualClock(CREATED))
    return factory.make(definition, id="0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000").wire


def good() -> Iterator[dict[str, Any]]:
    for name, definition in DEFINITIONS.items():
        yield vector(name, wire_of(definition), ["2026-01"])
    yield vector("a key that is hashed first", wire_of(DEFINITIONS[LEAST], "long"), ["long"])
    yield vector("signed with the key before", wire_of(DEFINITIONS[LEAST], "2025-01"), ["2026-01", "2025-01"])
    other = wire_of(DEFINITIONS[LEAST], installation=ANOTHER)
    yield vector("signed for an installation with another name", other, ["2026-01"], ANOTHER)


def bad() -> Iterator[dict[str, Any]]:
    kids = ["2026-01"]
    key = ring("2026-01").keys[0]
    wire = wire_of(DEFINITIONS["everything a message can say"])
    signed, signature = unseal(wire)
    assert signature is not None
    respelled = json.dumps(json.loads(signed)).encode()
    wider = signed[:-1] + b',"colour":"red"}'
    bare = hmac.new(SECRETS["2026-01"].encode(), signed, hashlib.sha256).hexdigest().encode()
    refused: list[tuple[str, str, bytes]] = [
        ("BadSignature", "a byte of the payload was changed", wire.replace(b"ada@", b"adb@")),
        ("BadSignature", "the queue was changed", wire.replace(b'"queue":"mail"', b'"queue":"fail"')),
        ("BadSignature", "the first digit of the signature was changed", seal(signed, b"f" + signature[1:])),
        ("BadSignature", "the signature is in capitals", seal(signed, signature.upper())),
        ("BadSignature", "the same JSON in other bytes", seal(respelled, signature)),
        ("BadSignature", "signed with another key under this one's name", seal(signed, STRANGER.sign(signed))),
        ("BadSignature", "there is no signature", signed),
        (
            "BadSignature",
            "signed with the same key for another installation",
            wire_of(DEFINITIONS[LEAST], installation=ANOTHER),
        ),
        ("BadSignature", "signed with the secret instead of the key derived from it", seal(signed, bare)),
        ("BadSignature", "an unknown member was added", seal(wider, signature)),
        ("BadSignature", "an unknown member, and no signature", wider),
        ("UnknownKey", "signed with a key that is not in the ring", wire_of(DEFINITIONS[LEAST], "2025-01")),
        ("EnvelopeRejected", "the signature is not the last member", b'{"_sig":"' + signature + b'",' + signed[1:]),
        ("EnvelopeRejected", "the signature is too short", seal(signed, signature[:-2])),
        ("EnvelopeRejected", "a member was added behind the signature", wire[:-1] + b',"priority":9}'),
        ("EnvelopeRejected", "a key twice", seal(signed[:-1] + b',"queue":"fail"}', signature)),
        ("EnvelopeRejected", "a key twice inside the payload", wire.replace(b'"copies":2', b'"copies":2,"copies":3')),
        ("EnvelopeRejected", "NaN", wire.replace(b'"copies":2', b'"copies":NaN')),
        ("EnvelopeRejected", "a number that becomes infinite", wire.replace(b'"copies":2', b'"copies":1e999')),
        ("EnvelopeRejected", "an integer past 64 bits", wire.replace(b'"copies":2', b'"copies":9223372036854775808')),
        ("EnvelopeRejected", "a lone surrogate", wire.replace(b"ada@", b"\\ud800@")),
        ("EnvelopeRejected", "bytes that are not UTF-8", wire.replace(b"ada@", b"ad\xff@")),
        (
            "EnvelopeRejected",
            "a payload a hundred deep",
            wire.replace(b'"copies":2', b'"copies":' + b"[" * 100 + b"]" * 100),
        ),
        ("EnvelopeRejected", "a byte order mark", b"\xef\xbb\xbf" + wire),
        ("EnvelopeRejected", "a new line behind it", wire + b"\n"),
        ("EnvelopeRejected", "half of it is missing", wire[: len(wire) // 2]),
        ("EnvelopeRejected", "nothing", b""),
        ("EnvelopeRejected", "not JSON", b"not json"),
        ("UnknownMember", "rightly signed, with an unknown member", sealed(key, wider)),
        (
            "EnvelopeRejected",
            "rightly signed, with an unknown member that appears twice",
            sealed(key, wider[:-1] + b',"colour":"blue"}'),
        ),
        (
            "EnvelopeRejected",
            "rightly signed, with an unknown member, and one of the wrong type",
            sealed(key, wider.replace(b'"priority":8', b'"priority":"8"')),
        ),
        (
            "EnvelopeRejected",
            "rightly signed, but there is a second signature among the members",
            sealed(key, wider.replace(b'"colour":"red"', b'"_sig":"' + signature + b'"')),
        ),
        (
            "EnvelopeRejected",
            "rightly signed, but an unknown member inside backoff",
            sealed(key, signed.replace(b'"jitter":0.0', b'"jitter":0.0,"colour":"red"')),
        ),
        ("EnvelopeRejected", "rightly signed, but no message", sealed(key, b'{"hello":"world"}')),
        (
            "NewerWire",
            "rightly signed, of a newer version",
            sealed(key, signed.replace(b'{"v":1', b'{"v":2,"colour":"red"')),
        ),
        ("BadSignature", "wrongly signed, of a newer version", seal(signed.replace(b'{"v":1', b'{"v":2'), signature)),
    ]
    for error, name, bytes_ in refused:
        yield {**vector(name, bytes_, kids), "error": error}


def sealed(key: SigningKey, signed: bytes) -> bytes:
    return seal(signed, key.sign(signed))


def vector(name: str, wire: bytes, kids: list[str], installation: str = OURS) -> dict[str, Any]:
    signed, signature = unseal(wire)
    document: dict[str, Any] = {
        "name": name,
        "installation": installation,
        "ring": kids,
        "wire_base64": base64.b64encode(wire).decode(),
    }
    try:
        document["wire"] = wire.decode()
        document["signed"] = signed.decode()
    except UnicodeDecodeError:
        pass  # only the base64 can say it
    document["signature"] = None if signature is None else signature.decode()
    return document


def document() -> str:
    whole = {
        "about": [
            "Test vectors of the Holdfast wire format, version 1; docs/wire.md explains it.",
            "wire_base64 holds the exact bytes; wire, signed and signature are the same as text, where they are text.",
            "A reader of that installation, with the keys named in ring, in that order, accepts every vector under "
            "good, and refuses every vector under bad with the error named there.",
            "key = HMAC-SHA256(secret, 'holdfast wire v1' + a zero byte + installation), under derived in hex digits.",
            "signature = hex(HMAC-SHA256(key, signed)); signed is the wire without its last member, _sig.",
        ],
        "keys": [
            {"kid": kid, "secret": secret, "derived": {name: derived(secret, name).hex() for name in INSTALLATIONS}}
            for kid, secret in SECRETS.items()
        ],
        "good": list(good()),
        "bad": list(bad()),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


VECTORS: Final[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
GOOD: Final[list[dict[str, Any]]] = VECTORS.get("good", [])
BAD: Final[list[dict[str, Any]]] = VECTORS.get("bad", [])


def name_of(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def test_the_file_says_what_this_program_writes() -> None:
    assert FILE.read_text(encoding="utf-8") == document(), "run python tests/unit/test_wire_vectors.py if this is meant"


@pytest.mark.parametrize("vector", GOOD, ids=name_of)
def test_a_good_vector_is_opened(vector: dict[str, Any]) -> None:
    message = ring(*vector["ring"], installation=vector["installation"]).open(base64.b64decode(vector["wire_base64"]))
    assert message.identifier == "0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000"
    assert message.created_at == CREATED


@pytest.mark.parametrize("vector", GOOD, ids=name_of)
def test_a_reader_that_knows_only_the_page_verifies_it(vector: dict[str, Any]) -> None:
    wire = base64.b64decode(vector["wire_base64"])
    head, signature = wire[: -len(b',"_sig":""}') - 64], wire[-66:-2].decode()
    signed = head + b"}"
    kid = json.loads(wire)["kid"]
    named = next(key for key in VECTORS["keys"] if key["kid"] == kid)
    key = derived(named["secret"], vector["installation"])
    assert key.hex() == named["derived"][vector["installation"]]
    assert hmac.new(key, signed, hashlib.sha256).hexdigest() == signature == vector["signature"]
    assert (wire.decode(), signed.decode()) == (vector["wire"], vector["signed"])
    assert json.loads(wire) == {**json.loads(signed), "_sig": signature}


@pytest.mark.parametrize("vector", BAD, ids=name_of)
def test_a_bad_vector_is_refused_with_its_error(vector: dict[str, Any]) -> None:
    with pytest.raises(errors.WireError) as caught:
        ring(*vector["ring"], installation=vector["installation"]).open(base64.b64decode(vector["wire_base64"]))
    assert type(caught.value).__name__ == vector["error"]


def test_every_way_to_refuse_a_message_has_a_vector() -> None:
    assert {vector["error"] for vector in BAD} == {kind.__name__ for kind in errors.WireError.__subclasses__()} - {
        "WrongQueue"
    }
    assert len(BAD) == len({vector["wire_base64"] for vector in BAD})


WATCHED = """
import base64, json, sys
from holdfast.queues.signing import Keyring, SigningKey, Unsigned
from holdfast.errors import WireError

vectors = json.load(open(sys.argv[1], encoding="utf-8"))
secrets = {key["kid"]: key["secret"].encode() for key in vectors["keys"]}

def open_all():
    for vector in vectors["good"] + vectors["bad"]:
        wire = base64.b64decode(vector["wire_base64"])
        keys = [SigningKey(secrets[kid], kid, installation=vector["installation"]) for kid in vector["ring"]]
        for signer in (Keyring(keys), Unsigned()):
            try:
                signer.open(wire)
            except WireError:
                pass

events = []
open_all()  # what Python loads once, such as the names of error messages, is not the message's doing
sys.addaudithook(lambda event, arguments: events.append(event))
open_all()
print(json.dumps(sorted(set(events))))
"""
HARMLESS = {"object.__getattr__", "sys._getframe"}


def test_opening_a_message_imports_runs_and_opens_nothing() -> None:
    command = [sys.executable, "-c", WATCHED, str(FILE)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(json.loads(answer.stdout)) <= HARMLESS


def test_no_module_of_ours_can_load_objects_from_bytes() -> None:
    forbidden = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle", "jsonpickle"}
    for path in Path(errors.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), f"{path}:{node.lineno}"
            assert not forbidden & {name.split(".")[0] for name in names}, path


if __name__ == "__main__":
    FILE.write_text(document(), encoding="utf-8")
