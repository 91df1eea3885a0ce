"""HMAC-SHA256 over the exact bytes of a message: sign with the first key of the ring, verify with any of them."""

import os
import re
from binascii import hexlify
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.codec import JobMessage as JobMessage, decode_message, decode_untrusted_message, seal, unseal
from holdfast.errors import BadSignature, ConfigError, EnvelopeRejected, NewerWire, UnknownKey, UnknownMember
from holdfast.values import DEFAULT_INSTALLATION, INSTALLATION_PATTERN

# hashlib and hmac load OpenSSL, which takes as long as loading the engine. Commands that only read have no key, so the
# modules are imported in the functions that use one.

MIN_KEY_BYTES: Final = 32
_LABEL: Final = b"holdfast wire v1\0"
_KID: Final = r"[A-Za-z0-9_.-]{1,32}"


class SigningKey:
    """The key that an installation derives from a secret, with its name. A repr, an error or a log line never shows
    the secret or the key.
    """

    __slots__ = ("_inner", "_outer", "fingerprint", "kid")

    def __init__(self, secret: bytes, kid: str | None = None, *, installation: str = DEFAULT_INSTALLATION) -> None:
        if len(secret) < MIN_KEY_BYTES:
            raise ConfigError(
                f"a signing key needs at least {MIN_KEY_BYTES} bytes, but this one has {len(secret)}: "
                "generate one with  python -c 'import secrets; print(secrets.token_hex(32))'"
            )
        if not re.fullmatch(INSTALLATION_PATTERN, installation):
            raise ConfigError(
                f"{installation[:80]!a} is not a valid installation name: use 1 to 64 letters, digits, dashes, "
                "underscores or dots"
            )
        import hashlib
        import hmac

        # So neither another use of the secret nor another installation with the same secret can sign for this one.
        key = hmac.digest(secret, _LABEL + installation.encode(), "sha256")
        # HMAC hashes the key into two states first (RFC 2104). Storing them halves the cost of a signature.
        block = key.ljust(64, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
        self.fingerprint = _hashed(key)
        """Identifies the key, and so the secret and the installation, without revealing the secret."""
        # Named by the secret alone: a message for another installation is refused, and does not wait for a key.
        self.kid = kid if kid is not None else _hashed(secret)[:8]
        if not re.fullmatch(_KID, self.kid):
            # The text before the colon may be the start of a key that contains a colon: it is not repeated here.
            raise ConfigError(
                "the name of a signing key, before the colon, must be 1 to 32 letters, digits, dots, dashes or "
                "underscores; a key without a name must not contain a colon"
            )

    @classmethod
    def generate(cls) -> "SigningKey":
        """A new random key."""
        return cls.parse(cls.generate_text())

    @staticmethod
    def generate_text() -> str:
        """A new random key as it is written to a file."""
        return os.urandom(32).hex()

    @classmethod
    def parse(cls, text: str, *, installation: str = DEFAULT_INSTALLATION) -> "SigningKey":
        """A key as written in a variable or file: `kid:secret`, or the secret alone, named by a hash of it."""
        head, colon, rest = text.strip().partition(":")
        secret, kid = (rest, head) if colon else (head, None)
        return cls(secret.encode(), kid, installation=installation)

    def sign(self, signed: bytes) -> bytes:
        """The HMAC-SHA256 of these bytes, as hex digits."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(signed)
        outer.update(inner.digest())
        return hexlify(outer.digest())

    def __repr__(self) -> str:
        return f"SigningKey(kid={self.kid!r})"


class Keyring:
    """The keys of this process: the first signs, all verify. Rotation adds in front and removes at the end."""

    def __init__(self, keys: Sequence[SigningKey]) -> None:
        if not keys:
            raise ConfigError("a key ring needs at least one signing key")
        names = [key.kid for key in keys]
        if len(set(names)) != len(names):
            raise ConfigError(f"two signing keys have the same name: {', '.join(names)}")
        self.keys = tuple(keys)
        self.kid = keys[0].kid
        """The name of the key that signs."""
        self._known = frozenset(names)

    @classmethod
    def parse(cls, text: str, *, installation: str = DEFAULT_INSTALLATION) -> "Keyring":
        """Keys separated by commas or new lines, the signing one first; lines starting with `#` are comments."""
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        parts = [part.strip() for line in lines for part in line.split(",")]
        return cls([SigningKey.parse(part, installation=installation) for part in parts if part])

    def sign(self, signed: bytes) -> bytes:
        """The wire of a message: its bytes with their signature."""
        return seal(signed, self.keys[0].sign(signed))

    def open(self, wire: bytes) -> JobMessage:
        """The message in a wire, its signature checked before anything is parsed."""
        signed, signature = unseal(wire)
        if signature is None:
            raise self._why_unsigned(signed)
        import hmac

        for key in self.keys:
            if hmac.compare_digest(key.sign(signed), signature):
                return decode_message(signed)
        raise self._why_refused(signed)

    def sign_for(self, purpose: str, content: bytes) -> bytes:
        """Sign the bytes of a JSON object for this purpose. The signature is not valid for a message."""
        return seal(content, self.keys[0].sign(_labelled(purpose, content)))

    def open_for(self, purpose: str, wire: bytes) -> bytes:
        """The bytes that were signed for this purpose, verified."""
        content, signature = unseal(wire)
        if signature is None:
            raise BadSignature(f"the {purpose} carries no signature")
        import hmac

        signed = _labelled(purpose, content)
        if any(hmac.compare_digest(key.sign(signed), signature) for key in self.keys):
            return content
        kid = _kid_of(content)
        if kid not in self._known:
            raise UnknownKey(kid, what=purpose)
        raise BadSignature(
            f"the signature was not made by key '{kid}'; the {purpose} was changed or forged, or signed for another "
            "installation"
        )

    def _why_unsigned(self, signed: bytes) -> Exception:
        try:
            decode_untrusted_message(signed)
        except (NewerWire, UnknownMember):
            pass
        except EnvelopeRejected as problem:
            return problem
        return BadSignature("the message carries no signature")

    def _why_refused(self, signed: bytes) -> Exception:
        """An unknown key may arrive with the next deployment; a wrong signature of a known key is a forgery."""
        try:
            kid = decode_untrusted_message(signed).kid
        except (NewerWire, UnknownMember):
            kid = _kid_of(signed)
        except EnvelopeRejected as problem:
            return problem
        if kid not in self._known:
            return UnknownKey(kid)
        return BadSignature(
            f"the signature was not made by key '{kid}'; the message was changed or forged, or signed for another "
            "installation"
        )


class Unsigned:
    """Used instead of a key ring where signatures are deliberately switched off."""

    kid = ""

    def sign(self, signed: bytes) -> bytes:
        return signed

    def open(self, wire: bytes) -> JobMessage:
        return decode_untrusted_message(unseal(wire)[0])

    def sign_for(self, purpose: str, content: bytes) -> bytes:
        return content

    def open_for(self, purpose: str, wire: bytes) -> bytes:
        return unseal(wire)[0]


Signer = Keyring | Unsigned


class _KidOnly(msgspec.Struct):
    kid: str = ""


def _labelled(purpose: str, content: bytes) -> bytes:
    """The bytes that are signed for a purpose. A message starts with a brace, so it cannot start with a label."""
    return purpose.encode() + b"\0" + content


def _hashed(key: bytes) -> str:
    import hashlib

    return hashlib.blake2b(key, digest_size=16, person=b"holdfast-key").hexdigest()


def _kid_of(signed: bytes) -> str:
    try:
        return msgspec.json.decode(signed, type=_KidOnly).kid
    except msgspec.DecodeError:
        return ""
