"""Encrypted connections to real servers, with certificates of an authority that only these tests trust."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import psycopg
import pytest

from holdfast.definition import JobDefinition
from holdfast.errors import BackendError, BackendUnavailable, ConfigError
from holdfast.queues.contract import Engine, new_owner_token
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import JobState

from ..servers.certificates import Certificates
from ..servers.mysql import MariadbServer
from ..servers.places import Servers
from ..servers.postgres import PostgresServer
from ..servers.redis import RedisServer
from ..servers.running import started, unless_missing

KEYS = Keyring([SigningKey(b"a key of thirty-two bytes, or more")])
SECRET = "hunter2"
# The certificate names the first, and leads nowhere else by the second.
NAMED, UNNAMED = "localhost", "127.0.0.1"
_numbers = itertools.count(1)


class Guarded(ABC):
    """A server that lets `ada` in only with her password, and only encrypted."""

    trusting: str
    """The option that names whom we trust."""
    encrypting: ClassVar[dict[str, str]]
    """Options that encrypt without checking the certificate."""
    unnamed: ClassVar[dict[str, str]]
    """Options that trust the authority for any host name."""
    clients: tuple[str, str]
    """Options with the client's certificate and its key."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates

    @abstractmethod
    def url(self, host: str = NAMED, /, **options: str) -> str: ...

    @abstractmethod
    def plain_url(self) -> str:
        """Options without encryption."""

    @abstractmethod
    def want_certificates(self) -> None:
        """From here on, clients must present a certificate."""

    def trusted(self, host: str = NAMED, **options: str) -> str:
        return self.url(host, **{self.trusting: str(self.certificates.authority), **options})

    def with_certificate(self) -> str:
        certificate, key = self.clients
        files = {certificate: self.certificates.clients_certificate, key: self.certificates.clients_key}
        return self.trusted(**{option: str(file) for option, file in files.items()})


class GuardedPostgres(Guarded):
    trusting = "sslrootcert"
    encrypting: ClassVar = {"sslmode": "require"}
    unnamed: ClassVar = {"sslmode": "verify-ca"}
    clients = ("sslcert", "sslkey")

    def __init__(self, certificates: Certificates, server: PostgresServer) -> None:
        super().__init__(certificates)
        self._server = server
        self._order(f"CREATE ROLE ada SUPERUSER LOGIN PASSWORD '{SECRET}'")
        self._allow("hostssl all ada all scram-sha-256", "hostnossl all ada all reject")

    def url(self, host: str = NAMED, /, **options: str) -> str:
        asked = {"sslmode": "verify-full", **options}
        return f"postgresql://ada:{SECRET}@{host}:{self._server.port}/postgres?{urlencode(asked)}"

    def plain_url(self) -> str:
        return self.url(sslmode="disable")

    def want_certificates(self) -> None:
        self._allow("hostssl all ada all scram-sha-256 clientcert=verify-ca", "hostnossl all ada all reject")

    def _allow(self, *lines: str) -> None:
        file = self._server.directory / "data" / "pg_hba.conf"
        file.write_text("\n".join([*lines, "host all postgres 127.0.0.1/32 trust", ""]))
        self._order("SELECT pg_reload_conf()")

    def _order(self, statement: str) -> None:
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute(statement.encode())


class GuardedMysql(Guarded):
    trusting = "tls_ca"
    encrypting: ClassVar = {"tls": "encrypt"}
    unnamed: ClassVar = {"tls": "encrypt"}  # it has nothing in between
    clients = ("tls_cert", "tls_key")

    def __init__(self, certificates: Certificates, server: MariadbServer) -> None:
        super().__init__(certificates)
        self._server = server
        self._order(f"CREATE USER ada IDENTIFIED BY '{SECRET}' REQUIRE SSL", "GRANT ALL ON *.* TO ada")

    def url(self, host: str = NAMED, /, **options: str) -> str:
        asked = {"tls": "verify", **options}
        return f"mysql://ada:{SECRET}@{host}:{self._server.port}/holdfast?{urlencode(asked)}"

    def plain_url(self) -> str:
        return self.url(tls="off")

    def want_certificates(self) -> None:
        self._order("ALTER USER ada REQUIRE X509")

    def _order(self, *statements: str) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


class GuardedRedis(Guarded):
    trusting = "ssl_ca_certs"
    encrypting: ClassVar = {"ssl_cert_reqs": "none"}
    unnamed: ClassVar = {"ssl_check_hostname": "false"}
    clients = ("ssl_certfile", "ssl_keyfile")

    def __init__(self, certificates: Certificates, server: RedisServer) -> None:
        super().__init__(certificates)
        self._server = server

    def url(self, host: str = NAMED, /, **options: str) -> str:
        return f"rediss://:{SECRET}@{host}:{self._server.tls_port}/0?{urlencode(options)}"

    def plain_url(self) -> str:
        return f"redis://:{SECRET}@{NAMED}:{self._server.tls_port}/0"

    def want_certificates(self) -> None:
        with self._server.client() as client:
            client.config_set("tls-auth-clients", "yes")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return unless_missing(lambda: Certificates(tmp_path_factory.mktemp("certificates")))


@pytest.fixture(scope="module", params=["postgres", "mysql", "redis"])
def guarded(request: pytest.FixtureRequest, certificates: Certificates) -> Generator[Guarded]:
    match request.param:
        case "postgres":
            with running(lambda: PostgresServer(tls=certificates)) as server:
                yield GuardedPostgres(certificates, server)
        case "mysql":
            with running(lambda: MariadbServer(tls=certificates)) as server:
                yield GuardedMysql(certificates, server)
        case _:
            with running(lambda: RedisServer(tls=certificates, settings={"requirepass": SECRET})) as server:
                yield GuardedRedis(certificates, server)


@contextmanager
def running(make: Callable[[], Any]) -> Generator[Any]:
    server = started(make)
    try:
        yield server
    finally:
        server.close()


def opened(url: str) -> Engine:
    return EngineFactory(KEYS, table_prefix=f"tls{next(_numbers)}_").open(url)[0]


def serves(url: str) -> None:
    """Enqueue, claim and settle a job."""
    with opened(url) as engine:
        job = engine.envelopes.make(JobDefinition(handler="send"))
        assert engine.accept([job])[0].created
        [lease] = engine.claim("default", 10, owner_token=new_owner_token())
        assert lease.wire == job.wire
        assert engine.ack(lease)
        assert engine.counts() == {"default": {JobState.COMPLETED: 1}}


def refused(url: str, why: type[BackendError], *words: str) -> None:
    """Assert that the connection fails, with these words in the error and without the password."""
    with opened(url) as engine, pytest.raises(why) as refusal:
        engine.check()
    said = str(refusal.value)
    assert [word for word in words if word not in said] == [], said
    assert SECRET not in said


def test_a_job_goes_over_an_encrypted_connection_to_a_server_that_was_verified(guarded: Guarded) -> None:
    serves(guarded.trusted())


def test_a_server_whose_authority_is_a_stranger_is_refused(guarded: Guarded) -> None:
    strange = guarded.url(**{guarded.trusting: str(guarded.certificates.stranger)})
    refused(strange, BackendUnavailable, "certificate", guarded.trusting)


def test_a_server_under_another_name_than_its_certificate_has_is_refused(guarded: Guarded) -> None:
    refused(
        guarded.trusted(UNNAMED),
        BackendUnavailable,
        "certificate",
        "to the CA that signed",
        "host name in the certificate",
    )


def test_the_host_name_is_not_checked_if_an_option_disables_it(guarded: Guarded) -> None:
    serves(guarded.trusted(UNNAMED, **guarded.unnamed))


def test_any_certificate_is_believed_if_that_was_asked_for(guarded: Guarded) -> None:
    serves(guarded.url(UNNAMED, **guarded.encrypting))


def test_who_does_not_encrypt_is_not_let_in(guarded: Guarded) -> None:
    refused(guarded.plain_url(), BackendError)


def test_a_server_that_wants_our_certificate_gets_it(guarded: Guarded) -> None:
    """The last of those that share a server: from here on, it wants certificates."""
    serves(guarded.with_certificate())
    guarded.want_certificates()
    serves(guarded.with_certificate())
    refused(guarded.trusted(), BackendError)


@pytest.mark.parametrize(
    ("engine", "scheme", "options", "advice"),
    [
        ("postgres", "postgresql", "?sslmode=require", "ssl = on"),
        ("mysql", "mysql", "?tls=encrypt", "leave tls out"),
        ("redis", "rediss", "?socket_timeout=0.5", "use the TLS port or redis://"),
    ],
)
def test_encryption_that_a_server_has_not_is_not_left_out(
    servers: Servers, engine: str, scheme: str, options: str, advice: str
) -> None:
    url = servers.running(engine).url
    refused(
        f"{scheme}{url[url.index('://') :]}{options}",
        BackendUnavailable,
        "TLS" if engine != "postgres" else "SSL",
        advice,
    )


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("postgresql://ada:hunter2@localhost/shop", ("sslrootcert", "sslcert", "sslkey")),
        ("mysql://ada:hunter2@localhost/shop?tls=verify", ("tls_ca", "tls_cert")),
        ("rediss://ada:hunter2@localhost/0", ("ssl_ca_certs", "ssl_certfile")),
    ],
)
def test_missing_certificate_files_are_refused_without_connecting(
    url: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    for option in options:
        with pytest.raises(ConfigError, match=option) as refusal:
            opened(f"{url}{'&' if '?' in url else '?'}{option}={tmp_path / 'nowhere.pem'}")
        assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://ada:hunter2@localhost/0?ssl_ca_certs=ca.pem",
        "redis://ada:hunter2@localhost/0?colour=hunter2",
        "rediss://ada:hunter2@localhost/0?ssl_cert_reqs=hunter2",
        "unix:///run/redis.sock?password=hunter2&ssl_ca_certs=ca.pem",
        "postgresql://ada:hunter2@localhost/shop?colour=red",
    ],
)
def test_an_option_that_its_driver_does_not_know_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"option") as refusal:
        opened(url)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "redis"])
@pytest.mark.parametrize(
    "password", ["hunter2%zz", "hunter2/more", "hunter2\u2100", "[hunter2", "hunter2?a#b/c", "a/hunter2?x"]
)
def test_a_password_that_was_not_escaped_is_never_quoted(scheme: str, password: str) -> None:
    """Drivers may parse part of it as a port, a path or an option, and quote it."""
    url = f"{scheme}://ada:{password}@127.0.0.1:1/0"
    with pytest.raises((ConfigError, BackendError)) as refusal:
        opened(url).check()
    assert SECRET not in str(refusal.value)
    assert SECRET not in str(refusal.value.__cause__)
