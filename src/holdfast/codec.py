"""Values ⇄ bytes: the message on the wire, strict JSON for untrusted bytes, and when two messages are the same job.

`docs/wire.md` specifies the format for other languages. `queues/signing.py` creates and verifies signatures.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, cast

import msgspec

from holdfast import json_models
from holdfast.errors import EnvelopeRejected, NewerWire, PayloadRejected, UnknownMember
from holdfast.values import Backoff, JobTraits

WIRE_VERSION: Final = 1
MAX_WIRE_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 32
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# The signed bytes end with "}". The signature is inserted as the last member, so that the wire is one JSON object and
# the signed part can be extracted without parsing.
_SIG_HEAD: Final = b',"_sig":"'
_SIG_TAIL: Final = b'"}'
_SIG_HEX: Final = 64
_SIG_SIZE: Final = len(_SIG_HEAD) + _SIG_HEX + len(_SIG_TAIL)


# Members of the meta that tracing adds. Like the trace id, they do not count when jobs are compared.
_TRACE_MEMBERS: Final = frozenset({"traceparent", "tracestate"})

Instant = Annotated[datetime, msgspec.Meta(tz=True)]


if TYPE_CHECKING:
    _WireTraits: TypeAlias = JobTraits
else:
    # Inherited fields retain the names they were declared with, but on the wire names are in camel case.
    _WireTraits = msgspec.defstruct(
        "_WireTraits",
        [(field.name, field.type, field.default) for field in msgspec.structs.fields(JobTraits)],
        rename="camel",
        frozen=True,
        kw_only=True,
    )


class JobMessage(_WireTraits, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The signed part of a job: everything that controls its execution. Members with default values are left out."""

    v: int
    job: str
    payload: msgspec.Raw
    queue: str
    max_retries: int
    identifier: str
    timeout: float
    created_at: Instant
    backoff: Backoff | None = None
    expires_at: Instant | None = None
    unique: str | None = None
    ledger_ttl: float | None = None
    kid: str = ""


class _Sealed(JobMessage, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A message with its signature."""

    sig: msgspec.Raw = msgspec.field(name="_sig", default=msgspec.Raw(b""))


class _VersionOnly(msgspec.Struct):
    v: int


_encoder = msgspec.json.Encoder(enc_hook=json_models.encode_hook)
_decoder = msgspec.json.Decoder()
_message_decoder = msgspec.json.Decoder(JobMessage)
_sealed_decoder = msgspec.json.Decoder(_Sealed)
_version_decoder = msgspec.json.Decoder(_VersionOnly)
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KNOWN_MEMBERS: Final = frozenset(JobMessage.__struct_encode_fields__)
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_long_integer = re.compile(rb"\d{19}")


def encode_message(message: JobMessage) -> bytes:
    """The exact bytes that are signed."""
    return _encoder.encode(message)


def decode_message(signed: bytes) -> JobMessage:
    """The message in bytes whose signature has been verified."""
    try:
        message = _message_decoder.decode(signed)
    except _UNREADABLE as problem:
        raise _why_unreadable(signed, problem) from problem
    if message.v > WIRE_VERSION:
        raise NewerWire(message.v, WIRE_VERSION)
    if message.v < 1:
        raise EnvelopeRejected(f"wire version {message.v} does not exist")
    return message


def decode_verified(wire: bytes) -> JobMessage:
    """The message in a wire whose signature another process has verified."""
    return _sealed_decoder.decode(wire)


def decode_untrusted_message(signed: bytes) -> JobMessage:
    """The message in unsigned bytes, which are checked as strict JSON first."""
    try:
        strict_json(signed, depth=MAX_DEPTH + 1)  # inside the message, the payload may use the whole depth
    except PayloadRejected as problem:
        raise EnvelopeRejected(_quotable(str(problem))) from problem
    return decode_message(signed)


def _why_unreadable(signed: bytes, problem: Exception) -> Exception:
    try:
        version = _version_decoder.decode(signed).v
    except _UNREADABLE:
        version = 0
    if version > WIRE_VERSION:
        return NewerWire(version, WIRE_VERSION)
    try:
        _, unknown = _parted(signed)
    except (EnvelopeRejected, PayloadRejected, *_UNREADABLE):
        return EnvelopeRejected(f"not a valid message: {_quotable(str(problem))}")
    return UnknownMember(next(iter(unknown)))


def _parted(signed: bytes) -> tuple[JobMessage, dict[str, Any]]:
    """The known members as a message, and the unknown ones by name.

    A member that appears twice is refused, because a newer program might read the other one.
    """
    document = strict_json(signed, depth=MAX_DEPTH + 1)
    members = _members_decoder.decode(signed)
    known = _encoder.encode({name: value for name, value in members.items() if name in _KNOWN_MEMBERS})
    unknown = {name: document[name] for name in members if name not in _KNOWN_MEMBERS}
    message = _message_decoder.decode(known)
    if message.v != WIRE_VERSION or not unknown or "_sig" in unknown:
        raise EnvelopeRejected("the message is invalid: it is neither a current message nor one from a newer version")
    return message, unknown


def _quotable(problem: str) -> str:
    """The message of a parser, which quotes untrusted bytes: truncated, without unprintable characters."""
    return "".join(character if character.isprintable() else "\ufffd" for character in problem[:300])


def seal(signed: bytes, signature_hex: bytes) -> bytes:
    """The wire: the signed object with `_sig` as its last member."""
    return signed[:-1] + _SIG_HEAD + signature_hex + _SIG_TAIL


def unseal(wire: bytes) -> tuple[bytes, bytes | None]:
    """The signed bytes and the hex digits of the signature; None if the wire does not end with a signature."""
    start = len(wire) - _SIG_SIZE
    if start > 0 and wire.endswith(_SIG_TAIL) and wire.startswith(_SIG_HEAD, start):
        return wire[:start] + b"}", wire[start + len(_SIG_HEAD) : -len(_SIG_TAIL)]
    return wire, None


def describe(wire: bytes) -> JobMessage | None:
    """The known members of a stored message, to be shown; None if it cannot be read. The signature is not verified."""
    described = _described(wire)
    return None if described is None else described[0]


def _described(wire: bytes) -> tuple[JobMessage, dict[str, Any]] | None:
    """The known members of a stored message, and those that only a newer version knows."""
    try:
        message, unknown = _read(unseal(wire)[0])
        # The message decoder leaves these two encoded; callers rely on being able to decode them.
        msgspec.json.decode(message.payload)
        msgspec.json.decode(message.meta)
    except (EnvelopeRejected, NewerWire, *_UNREADABLE):
        return None
    return message, unknown


def _read(signed: bytes) -> tuple[JobMessage, dict[str, Any]]:
    try:
        return decode_message(signed), {}
    except UnknownMember:
        return _parted(signed)


def content_digest(wire: bytes) -> bytes:
    """A digest that is equal for messages of the same job: what runs and how, not when or under which key."""
    import hashlib  # imported here: it loads OpenSSL, and commands that only read do not need it

    described = _described(wire)
    if described is None:
        return hashlib.blake2b(wire, digest_size=16).digest()
    message, unknown = described
    content = (
        message.job,
        msgspec.json.decode(message.payload),
        message.queue,
        message.max_retries,
        message.timeout,
        message.backoff,
        without_trace(msgspec.json.decode(message.meta)),
        # By name, and only values other than the default: a version that does not know an option yet reads it as an
        # unknown member, and computes the same digest.
        {**_set_traits(message), **unknown},
    )
    return hashlib.blake2b(msgspec.json.encode(content, order="sorted"), digest_size=16).digest()


def _set_traits(message: JobMessage) -> dict[str, Any]:
    """The traits that were set, by their names on the wire, except those for tracing and notes."""
    return {
        field.encode_name: value
        for field in msgspec.structs.fields(_WireTraits)
        if field.name not in ("trace_id", "meta") and (value := getattr(message, field.name)) != field.default
    }


def without_trace(meta: object) -> object:
    """The meta of a job without the members that tracing adds."""
    if not isinstance(meta, dict):  # a message is untrusted
        return meta
    members = cast("dict[str, Any]", meta)
    return {name: value for name, value in members.items() if name not in _TRACE_MEMBERS}


def encode_value(value: object) -> bytes:
    """The JSON of a value, even if it cannot be decoded back to the same value."""
    return _encoder.encode(value)


def encode_payload(value: object, *, what: str = "the payload") -> msgspec.Raw:
    """The JSON of a payload; `PayloadRejected` if another process could not read exactly this value."""
    if isinstance(value, msgspec.Raw):
        strict_json(bytes(value), what=what)
        return value
    try:
        encoded = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise PayloadRejected(f"{what} cannot be written as JSON: {problem}") from problem
    if len(encoded) > MAX_WIRE_BYTES:
        raise PayloadRejected(_too_large(what, len(encoded)))
    # The encoder accepts NaN (as null), integers of any size and any depth: check closely only where one may occur.
    suspicious = b"null" in encoded or _long_integer.search(encoded)
    if suspicious or encoded.count(b"{") + encoded.count(b"[") > MAX_DEPTH:
        _check_closely(value, encoded, what)
    if not _reads_back(encoded):
        strict_json(encoded, what=what)
    return msgspec.Raw(encoded)


def _check_closely(value: object, encoded: bytes, what: str) -> None:
    try:
        plain = msgspec.to_builtins(value, enc_hook=json_models.encode_hook)
    except TypeError:  # it contains raw JSON: only the bytes can be checked
        strict_json(encoded, what=what)
    else:
        _check_values(plain, what)


def _reads_back(encoded: bytes) -> bool:
    """Whether decoding and encoding again gives the same bytes. Not so if two keys became equal as strings, or if raw
    bytes inside are not JSON.
    """
    try:
        return _encoder.encode(_decoder.decode(encoded)) == encoded
    except _UNREADABLE:
        return False


def strict_json(text: bytes, *, what: str = "the JSON", limit: int = MAX_WIRE_BYTES, depth: int = MAX_DEPTH) -> Any:
    """Decode untrusted JSON; `PayloadRejected` for everything that two parsers could read differently."""
    if len(text) > limit:
        raise PayloadRejected(_too_large(what, len(text)))
    import json  # imported here: messages are decoded by msgspec

    try:
        msgspec.json.decode(text)  # the grammar: no NaN, no BOM, no lone surrogates, nothing after the value
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_finite)
    except PayloadRejected as problem:
        raise PayloadRejected(f"{what}: {problem}") from None
    except (ValueError, RecursionError) as problem:
        raise PayloadRejected(f"{what} is not valid JSON: {problem}") from problem
    _check_values(value, what, depth)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise PayloadRejected(f"the key {twice[:64]!r} appears twice in one object")
    return members


def _integer(digits: str) -> int:
    if len(digits) > 20:
        raise PayloadRejected("an integer does not fit in 64 bits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise PayloadRejected(f"the number {digits} is not finite")
    return number


def _check_values(value: Any, what: str, deepest: int = MAX_DEPTH) -> None:
    """Refuse values that JSON parsers read differently: non-finite floats, integers over 64 bits, deep nesting."""
    level: list[Any] = [value]
    for depth in range(deepest + 1):
        if depth == deepest and any(isinstance(item, dict | list | tuple) for item in level):
            raise PayloadRejected(f"{what} is nested deeper than {MAX_DEPTH} levels")
        for item in level:
            if isinstance(item, float) and not math.isfinite(item):
                raise PayloadRejected(f"{what} contains {item}, which JSON cannot represent")
            if isinstance(item, int) and not INT64_MIN <= item <= INT64_MAX:
                raise PayloadRejected(f"{what} contains an integer that does not fit in 64 bits; send it as a string")
        level = [member for item in level for member in _members(item)]
        if not level:
            return


def _members(item: Any) -> Iterable[Any]:
    match item:
        case dict():
            return cast("Mapping[str, Any]", item).values()
        case list() | tuple():
            return cast("Sequence[Any]", item)
        case _:
            return ()


def _too_large(what: str, size: int) -> str:
    return (
        f"{what} is {size:,} bytes, the limit is {MAX_WIRE_BYTES:,}: "
        "store the data elsewhere and send a reference to it"
    )
