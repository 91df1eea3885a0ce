"""The address of a MySQL or MariaDB server, read from its URL."""

import ssl
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from holdfast.errors import ConfigError
from holdfast.queues.addresses import seconds_of

DEFAULT_PORT: Final = 3306
CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 10.0
OPTIONS: Final = ("connect_timeout", "timeout", "socket", "skip_locked", "tls", "tls_ca", "tls_cert", "tls_key")


class MysqlAddress(Struct, frozen=True, kw_only=True):
    """The server, the user and the options; its text omits the password."""

    host: str
    port: int
    user: str
    password: str
    database: str
    socket: str | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    timeout_s: float = ANSWER_TIMEOUT_S
    may_skip_locked: bool = True
    tls: str = "off"
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __str__(self) -> str:
        return f"MySQL at {self.socket or f'{self.host}:{self.port}'}"

    def __repr__(self) -> str:
        return f"<{self}/{self.database}>"

    @classmethod
    def of(cls, url: str) -> "MysqlAddress":
        """The address in a URL: mysql://user:password@host:port/database?option=value"""
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORT
        except ValueError:
            # The parser's own message may quote part of a password.
            raise ConfigError(
                "the URL of the MySQL server is invalid: write mysql://user:password@host:3306/database, and escape "
                "special characters in the password"
            ) from None
        database = unquote(parts.path.removeprefix("/"))
        if not database or "/" in database:
            raise ConfigError("a mysql URL must name one database: mysql://user:password@host/database")
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in given:
            if name not in OPTIONS:
                raise ConfigError(f"{name!r} is not an option of mysql URLs; known: prefix, {', '.join(OPTIONS)}")
        tls = given.get("tls", "verify" if "tls_ca" in given else "off")
        return cls(
            host=parts.hostname or "localhost",
            port=port,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            database=database,
            socket=given.get("socket"),
            connect_timeout_s=seconds_of("connect_timeout", given.get("connect_timeout", CONNECT_TIMEOUT_S)),
            timeout_s=seconds_of("timeout", given.get("timeout", ANSWER_TIMEOUT_S)),
            may_skip_locked=_one_of("skip_locked", given.get("skip_locked", "on"), ("on", "off")) == "on",
            tls=_one_of("tls", tls, ("off", "encrypt", "verify")),
            tls_ca=given.get("tls_ca"),
            tls_cert=given.get("tls_cert"),
            tls_key=given.get("tls_key"),
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """How to encrypt: `verify` checks the certificate and its host name, `encrypt` accepts any certificate."""
        if self.tls == "off":
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as problem:
            raise ConfigError(
                f"the certificates for {self} cannot be used ({problem}): tls_ca, tls_cert and tls_key must be "
                "readable files in PEM format"
            ) from problem
        if self.tls == "encrypt":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _one_of(name: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(known)}")
    return value
