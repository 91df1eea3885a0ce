"""Servers on the same machine, reached through a socket in the file system."""

import pytest

from holdfast.definition import JobDefinition
from holdfast.queues.contract import new_owner_token
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Keyring, SigningKey

from ..servers.mysql import MariadbServer
from ..servers.places import Servers
from ..servers.postgres import PostgresServer
from ..servers.redis import RedisServer
from ..servers.running import Server, free_port

KEYS = Keyring([SigningKey(b"a key of thirty-two bytes, or more")])


def socket_url(server: Server) -> str:
    """Its URL, in which a network port would not work."""
    match server:
        case PostgresServer():
            return f"postgresql://postgres@/postgres?host={server.directory}&port={server.port}&prefix=local_"
        case MariadbServer():
            return f"mysql://root@127.0.0.1:{free_port()}/holdfast?socket={server.socket}&prefix=local_"
        case RedisServer():
            return f"unix://{server.socket}?db=0&prefix=local_"
        case _:
            raise AssertionError(f"{server.name} has no socket")


@pytest.mark.parametrize("engine", ["postgres", "mysql", "redis"])
def test_a_job_goes_through_a_socket(servers: Servers, engine: str) -> None:
    with EngineFactory(KEYS).open(socket_url(servers.running(engine)))[0] as backend:
        job = backend.envelopes.make(JobDefinition(handler="send"))
        assert backend.accept([job])[0].created
        [lease] = backend.claim("default", 10, owner_token=new_owner_token())
        assert (lease.id, lease.wire) == (job.id, job.wire)
        assert backend.ack(lease)
