"""Signatures: the standard HMAC over the exact bytes, checked before anything is parsed."""

import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from holdfast.codec import MAX_DEPTH, JobMessage, encode_message, seal, unseal
from holdfast.errors import (
    BadSignature,
    ConfigError,
    EnvelopeRejected,
    NewerWire,
    UnknownKey,
    UnknownMember,
    WireError,
)
from holdfast.queues.signing import Keyring, SigningKey, Unsigned

SECRET = b"the first secret, 32 bytes or so"
OLD, NEW = SigningKey(SECRET, "old"), SigningKey(SECRET[::-1], "new")
RING = Keyring([OLD])
MESSAGE = JobMessage(
    v=1,
    job="mail.send",
    payload=msgspec.Raw(b'{"to":"ada@example.org"}'),
    queue="mail",
    max_retries=3,
    identifier="job1",
    timeout=30.0,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    kid="old",
)
SIGNED = encode_message(MESSAGE)
WIRE = RING.sign(SIGNED)
WIDER = SIGNED[:-1] + b',"colour":"red"}'


def derived(secret: bytes, installation: str = "holdfast") -> bytes:
    """The key as docs/wire.md defines it."""
    return hmac.new(secret, b"holdfast wire v1\0" + installation.encode(), hashlib.sha256).digest()


def signed_with(key: SigningKey, **changes: Any) -> bytes:
    return Keyring([key]).sign(encode_message(msgspec.structs.replace(MESSAGE, kid=key.kid, **changes)))


# The signature


@pytest.mark.parametrize("size", [32, 33, 55, 63, 64, 65, 127, 128, 129, 1000])
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 5000])
def test_a_signature_is_the_hmac_of_the_standard_library(size: int, length: int) -> None:
    secret, text = bytes(n % 251 for n in range(size)), bytes(n % 256 for n in range(length))
    assert SigningKey(secret).sign(text).decode() == hmac.new(derived(secret), text, hashlib.sha256).hexdigest()


@given(st.binary(min_size=32, max_size=200), st.binary(), st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True))
def test_it_is_so_for_every_key_text_and_installation(secret: bytes, text: bytes, installation: str) -> None:
    expected = hmac.new(derived(secret, installation), text, hashlib.sha256).hexdigest()
    assert SigningKey(secret, installation=installation).sign(text) == expected.encode()


def test_signing_twice_is_signing_the_same() -> None:
    assert OLD.sign(b"a") == OLD.sign(b"a") != OLD.sign(b"b")


def test_a_short_key_is_refused_with_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match="at least 32 bytes, but this one has 31: generate one with"):
        SigningKey(b"x" * 31)


def test_a_generated_key_is_long_random_and_new() -> None:
    texts = {SigningKey.generate_text() for _ in range(100)}
    assert len(texts) == 100
    assert all(len(bytes.fromhex(text)) == 32 for text in texts)
    assert SigningKey.generate().fingerprint != SigningKey.generate().fingerprint


# The name of a key


def test_a_key_without_a_name_is_named_by_a_hash_of_its_secret() -> None:
    key = SigningKey(SECRET)
    assert key.kid == hashlib.blake2b(SECRET, digest_size=16, person=b"holdfast-key").hexdigest()[:8]
    assert key.kid == SigningKey(SECRET, installation="staging").kid
    assert key.kid != SigningKey(SECRET + b"!").kid


def test_the_fingerprint_depends_on_secret_and_installation_and_does_not_reveal_the_secret() -> None:
    fingerprint = SigningKey(SECRET, "a").fingerprint
    assert fingerprint == SigningKey(SECRET, "b").fingerprint
    assert fingerprint != SigningKey(SECRET, "a", installation="staging").fingerprint
    assert fingerprint != SigningKey(SECRET + b"!", "a").fingerprint
    assert SECRET.hex() not in fingerprint
    assert derived(SECRET).hex() not in fingerprint


# The installation


@pytest.mark.parametrize("name", ["holdfast", "a", "Shop-2_eu.west", "x" * 64])
def test_an_installation_name_may_have_letters_digits_dashes_underscores_and_dots(name: str) -> None:
    ring = Keyring.parse(SECRET.decode().replace(",", "."), installation=name)
    assert ring.open(ring.sign(SIGNED)) == MESSAGE


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "x" * 65, "a\n", "a\0b", "\x1b[31m"])
def test_an_invalid_installation_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid installation name: use 1 to 64 letters") as caught:
        SigningKey(SECRET, installation=name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kid", ["old", None], ids=["named", "unnamed"])
def test_a_message_signed_for_another_installation_is_not_believed(kid: str | None) -> None:
    production = Keyring([SigningKey(SECRET, kid, installation="production")])
    staging = Keyring([SigningKey(SECRET, kid, installation="staging")])
    signed = encode_message(msgspec.structs.replace(MESSAGE, kid=staging.kid))
    assert staging.open(staging.sign(signed)).identifier == "job1"
    with pytest.raises(BadSignature, match="or signed for another installation"):
        production.open(staging.sign(signed))


def test_an_hmac_with_the_bare_secret_is_not_a_signature() -> None:
    bare = hmac.new(SECRET, SIGNED, hashlib.sha256).hexdigest().encode()
    with pytest.raises(BadSignature):
        RING.open(seal(SIGNED, bare))


@pytest.mark.parametrize("kid", ["", "a b", "a,b", "ü", "x" * 33, "a\n", "a:b"])
def test_a_name_that_would_not_travel_is_refused(kid: str) -> None:
    with pytest.raises(ConfigError, match="the name of a signing key"):
        SigningKey(SECRET, kid)


def test_keys_are_written_with_or_without_their_name() -> None:
    text = SECRET.decode()
    assert SigningKey.parse(text).kid == SigningKey(SECRET).kid
    named = SigningKey.parse(f"  2026-01:{text}\n")
    assert (named.kid, named.fingerprint) == ("2026-01", SigningKey(SECRET).fingerprint)


def test_a_ring_is_written_with_commas_lines_and_comments() -> None:
    one, two, three = ("1" * 32, "2" * 32, "3" * 32)
    ring = Keyring.parse(f"# the keys of the shop\nnew:{one}, mid:{two}\n\n  # the old one\nold:{three}\n")
    assert [key.kid for key in ring.keys] == ["new", "mid", "old"]
    assert ring.kid == "new"


@pytest.mark.parametrize("text", ["", "\n", "# only a comment", ",,"])
def test_a_ring_without_keys_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="at least one signing key"):
        Keyring.parse(text)


def test_two_keys_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="same name: old, old"):
        Keyring([OLD, SigningKey(SECRET[::-1], "old")])


# Nobody learns the secret


def test_the_secret_is_in_no_repr_and_no_text() -> None:
    for shown in (repr(OLD), str(OLD), f"{OLD}", repr(RING), repr(vars(RING)), repr([OLD]), repr(WIRE)):
        assert SECRET.decode() not in shown
        assert SECRET.hex() not in shown


def test_a_key_has_nothing_to_look_into() -> None:
    with pytest.raises(TypeError):
        vars(OLD)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SigningKey.parse("tooshortsecret"),
        lambda: SigningKey.parse("kid:tooshortsecret"),
        lambda: Keyring.parse("tooshortsecret,anothertooshortsecret"),
        lambda: Keyring.parse(",".join([SECRET.decode().replace(",", "."), SECRET.decode().replace(",", ".")])),
        lambda: SigningKey.parse("my secret phrase: of which every word, the first ones too, is secret"),
    ],
)
def test_an_error_about_a_key_does_not_quote_it(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert "secret" not in str(caught.value).replace("import secrets", "").replace("secrets.token_hex", "")


def test_an_error_about_a_message_quotes_neither_the_secret_nor_the_right_signature() -> None:
    with pytest.raises(BadSignature) as caught:
        RING.open(WIRE.replace(b"ada", b"eve"))
    assert SECRET.decode() not in str(caught.value)
    assert OLD.sign(SIGNED.replace(b"ada", b"eve")).decode() not in str(caught.value)


# Opening a message


def test_what_was_signed_is_opened() -> None:
    assert RING.open(WIRE) == MESSAGE


@given(st.integers(0, len(WIRE) - 1), st.integers(1, 255))
def test_no_byte_of_a_message_can_be_changed(place: int, flip: int) -> None:
    changed = bytearray(WIRE)
    changed[place] ^= flip
    with pytest.raises(WireError):
        RING.open(bytes(changed))


@given(st.integers(0, len(WIRE) - 1), st.integers(0, 20), st.binary(max_size=20))
def test_no_part_of_a_message_can_be_cut_out_or_put_in(place: int, cut: int, put: bytes) -> None:
    changed = WIRE[:place] + put + WIRE[place + cut :]
    if changed != WIRE:
        with pytest.raises(WireError):
            RING.open(changed)


@given(st.binary() | st.binary().map(lambda body: seal(b"{" + body + b"}", b"0" * 64)))
@example(b"")
@example(b"[" * 100_000)
@example(seal(b"[" * 100_000 + b"}", b"0" * 64))
@example(seal(b'{"kid":"\xff"}', b"0" * 64))
@example(seal(b'{"v":2,"kid":5}', b"0" * 64))
@example(seal(b'{"v":2,"kid":"a","kid":"b"}', b"0" * 64))
@example(seal(b"{}", b"\xff" * 64))
@example(seal(SIGNED, b"G" * 64))
@example(WIRE + b"\0")
@example(WIRE * 2)
def test_arbitrary_bytes_end_in_a_wire_error_and_in_nothing_else(wire: bytes) -> None:
    with pytest.raises(WireError):
        RING.open(wire)


def test_a_signature_in_capitals_is_another_signature() -> None:
    signature = OLD.sign(SIGNED)
    assert signature != signature.upper()
    with pytest.raises(BadSignature):
        RING.open(seal(SIGNED, signature.upper()))


def test_equal_json_in_other_bytes_has_a_bad_signature() -> None:
    respelled = json.dumps(json.loads(SIGNED), separators=(", ", ": ")).encode()
    with pytest.raises(BadSignature):
        RING.open(seal(respelled, OLD.sign(SIGNED)))


@pytest.mark.parametrize(
    "changes",
    [
        {"job": "mail.sent"},
        {"payload": msgspec.Raw(b'{"to":"eve@example.org"}')},
        {"queue": "urgent"},
        {"priority": 9},
        {"max_retries": 1000},
        {"identifier": "job2"},
        {"timeout": 0.0},
        {"expires_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"created_at": datetime(2025, 1, 1, tzinfo=UTC)},
        {"meta": msgspec.Raw(b'{"admin":true}')},
        {"tags": ("vip",)},
        {"v": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_everything_that_steers_a_job_is_signed(changes: dict[str, Any]) -> None:
    forged = seal(encode_message(msgspec.structs.replace(MESSAGE, **changes)), unseal(WIRE)[1] or b"")
    with pytest.raises(BadSignature, match="not made by key 'old'; the message was changed or forged"):
        RING.open(forged)


# Verifying comes before parsing


class Spy:
    """Stands where the decoder was, and notes what reaches it."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def __call__(self, signed: bytes) -> JobMessage:
        self.seen.append(signed)
        return MESSAGE


def test_nothing_is_decoded_as_a_message_before_its_signature_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy()
    monkeypatch.setattr("holdfast.queues.signing.decode_message", spy)
    for wire in (WIRE.replace(b"ada", b"eve"), SIGNED, signed_with(NEW), b"junk", seal(b'{"v":1,"v":1}', b"0" * 64)):
        with pytest.raises(WireError):
            RING.open(wire)
    assert spy.seen == []
    assert RING.open(WIRE) == MESSAGE
    assert spy.seen == [SIGNED]


@pytest.mark.parametrize(
    "hostile",
    [
        SIGNED[:-1] + b',"job":"other"}',
        SIGNED.replace(b'"ada@example.org"', b"NaN"),
        SIGNED.replace(b'"ada@example.org"', b"[" * 100_000),
        SIGNED.replace(b'"ada@example.org"', b"9" * 5000),
        SIGNED.replace(b'"ada@example.org"', b'"' + b"x" * 2_000_000 + b'"'),
    ],
    ids=["a key twice", "NaN", "depth", "a long number", "size"],
)
@pytest.mark.parametrize("signature", [b"0" * 64, None], ids=["wrong", "missing"])
def test_hostile_json_never_reaches_the_typed_decoder(
    hostile: bytes, signature: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy()
    monkeypatch.setattr("holdfast.codec.decode_message", spy)
    with pytest.raises(EnvelopeRejected):
        RING.open(hostile if signature is None else seal(hostile, signature))
    assert spy.seen == []


def test_a_valid_signature_on_invalid_bytes_is_an_undecodable_message() -> None:
    with pytest.raises(EnvelopeRejected, match="not a valid message"):
        RING.open(RING.sign(b'{"hello":"world"}'))


# Telling refusals apart


def test_a_message_without_a_signature_is_refused_as_unsigned() -> None:
    with pytest.raises(BadSignature, match="carries no signature"):
        RING.open(SIGNED)


def test_an_unknown_key_is_distinguished_from_a_forgery() -> None:
    with pytest.raises(UnknownKey, match="signed with key 'new', which is not in this worker's key ring") as caught:
        RING.open(signed_with(NEW))
    assert caught.value.kid == "new"


def test_claiming_to_be_signed_by_a_known_key_is_a_forgery() -> None:
    with pytest.raises(BadSignature):
        RING.open(Keyring([NEW]).sign(SIGNED))


def test_without_a_name_of_a_key_it_is_an_unknown_one() -> None:
    with pytest.raises(UnknownKey):
        RING.open(Keyring([NEW]).sign(encode_message(msgspec.structs.replace(MESSAGE, kid=""))))


def test_a_newer_message_is_newer_only_if_its_signature_holds() -> None:
    newer = SIGNED.replace(b'"v":1', b'"v":2').replace(b"}}", b'},"futureField":1}')
    with pytest.raises(NewerWire):
        RING.open(RING.sign(newer))
    with pytest.raises(BadSignature):
        RING.open(Keyring([NEW]).sign(newer))
    with pytest.raises(UnknownKey):
        RING.open(Keyring([NEW]).sign(newer.replace(b'"kid":"old"', b'"kid":"new"')))
    with pytest.raises(BadSignature, match="no signature"):
        RING.open(newer)


def test_a_signed_message_with_an_unknown_member_is_distinguished_from_an_invalid_one() -> None:
    with pytest.raises(UnknownMember, match="has the member 'colour', which this program does not know; upgrade"):
        RING.open(RING.sign(WIDER))


def test_an_unknown_member_does_not_excuse_a_bad_signature() -> None:
    with pytest.raises(BadSignature):
        RING.open(Keyring([NEW]).sign(WIDER))
    with pytest.raises(BadSignature):
        RING.open(seal(WIDER, OLD.sign(SIGNED)))
    with pytest.raises(BadSignature, match="no signature"):
        RING.open(WIDER)
    with pytest.raises(UnknownKey):
        RING.open(Keyring([NEW]).sign(WIDER.replace(b'"kid":"old"', b'"kid":"new"')))


@pytest.mark.parametrize(
    "broken",
    [
        WIDER.replace(b'"queue":"mail"', b'"queue":7'),
        WIDER.replace(b'"queue":"mail",', b""),
        WIDER[:-1] + b',"colour":"blue"}',
        WIDER[:-1] + b',"queue":"fail"}',
        WIDER.replace(b'"colour":"red"', b'"_sig":"' + b"0" * 64 + b'","colour":"red"'),
        b'{"_sig":"' + b"0" * 64 + b'",' + WIDER[1:],
        WIDER.replace(b'"v":1', b'"v":0'),
        WIDER.replace(b'"red"', b"NaN"),
    ],
    ids=["a wrong type", "a member missing", "twice", "a known one twice", "_sig", "_sig in front", "version 0", "NaN"],
)
@pytest.mark.parametrize("ring", [RING, Unsigned()], ids=["signed", "switched off"])
def test_an_unknown_member_excuses_nothing_else_that_is_wrong(broken: bytes, ring: Keyring | Unsigned) -> None:
    with pytest.raises(EnvelopeRejected):
        ring.open(ring.sign(broken))


@pytest.mark.parametrize("kid", ["x" * 100_000, "a\n12:00:00 CRITICAL all is lost", "\x1b]0;title\x07"])
def test_a_name_out_of_a_forged_message_is_quoted_and_cut(kid: str) -> None:
    forged = seal(encode_message(msgspec.structs.replace(MESSAGE, kid=kid)), b"0" * 64)
    with pytest.raises(WireError) as caught:
        RING.open(forged)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "hostile",
    [
        b'{"v":1,"' + b"x" * 500_000 + b'":1}',
        b'{"' + b"x" * 400_000 + b'":1,"' + b"x" * 400_000 + b'":2}',
        b'{"v":1,"\\u001b]0;title\\u0007\\n12:00 CRITICAL":1}',
    ],
    ids=["a long field", "a long key twice", "a field a terminal would obey"],
)
def test_the_text_of_a_forged_message_is_quoted_and_truncated(hostile: bytes) -> None:
    with pytest.raises(WireError) as caught:
        RING.open(seal(hostile, b"0" * 64))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_the_deepest_payload_under_a_key_to_come_waits_for_the_key() -> None:
    deepest = msgspec.Raw(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(UnknownKey):
        RING.open(signed_with(NEW, payload=deepest))


# Rotation


def test_the_first_key_signs_and_every_key_verifies() -> None:
    both = Keyring([NEW, OLD])
    assert both.kid == "new"
    assert both.open(WIRE) == MESSAGE
    assert unseal(both.sign(SIGNED))[1] == NEW.sign(SIGNED)


def test_rotation_loses_nothing_at_any_step() -> None:
    before, during, after = Keyring([OLD]), Keyring([NEW, OLD]), Keyring([NEW])
    old_message, new_message = signed_with(OLD), signed_with(NEW)
    assert before.open(old_message).kid == during.open(old_message).kid == "old"
    assert during.open(new_message).kid == after.open(new_message).kid == "new"
    with pytest.raises(UnknownKey):  # a worker that has not been told yet postpones; nothing is buried
        before.open(new_message)
    with pytest.raises(UnknownKey):
        after.open(old_message)


def test_a_key_also_verifies_under_another_name() -> None:
    assert Keyring([SigningKey(SECRET, "renamed")]).open(WIRE) == MESSAGE


# Without signatures


def test_unsigned_messages_are_opened_strictly() -> None:
    unsigned = Unsigned()
    assert unsigned.sign(SIGNED) == SIGNED
    assert unsigned.open(SIGNED) == MESSAGE
    assert unsigned.open(WIRE) == MESSAGE
    with pytest.raises(UnknownMember):
        unsigned.open(WIDER)
    with pytest.raises(EnvelopeRejected):
        unsigned.open(SIGNED[:-1] + b',"job":"other"}')


@pytest.mark.parametrize("name", ["x" * 500_000, "\x1b]0;title\x07\n12:00 CRITICAL"])
def test_the_name_of_an_unknown_member_is_quoted_and_cut(name: str) -> None:
    with pytest.raises(UnknownMember) as caught:
        Unsigned().open(SIGNED[:-1] + b"," + json.dumps(name).encode() + b":1}")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@given(st.binary())
@example(SIGNED.replace(b"mail.send", b"mail\xff"))
@example(b'{"a":1e999}')
def test_switched_off_signatures_let_only_wire_errors_out(wire: bytes) -> None:
    with pytest.raises(WireError):
        Unsigned().open(wire)
