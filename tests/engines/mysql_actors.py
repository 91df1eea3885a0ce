"""Other processes that use a MySQL server during a test:  python -m tests.engines.mysql_actors ROLE …"""

import json
import os
import random
import sys
import threading
from collections.abc import Callable

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.contract import LeasePolicy, new_owner_token
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import Ack, JobLease

from .actors import forked, say, verdict, wait_for, wait_for_go
from .sqlite_site import job

_envelopes = EnvelopeFactory(Keyring([SigningKey(b"the key of the engine tests, 32 bytes")]))


def opened(
    url: str, prefix: str, *, lease_s: float = 60.0, crash_limit: int = 1000, clock: Clock = SYSTEM_CLOCK
) -> MysqlEngine:
    policy = LeasePolicy(lease_s=lease_s, crash_limit=crash_limit)
    return MysqlEngine(url, _envelopes, policy=policy, clock=clock, prefix=prefix)


def hammer(url: str, prefix: str, name: str, rounds: str) -> None:
    """Accept, claim, settle in every way, settle too late and reap; print which jobs were accepted and acknowledged."""
    dice = random.Random(name)
    accepted: list[str] = []
    acked: list[str] = []
    late: list[JobLease] = []
    with opened(url, prefix) as backend, opened(url, prefix, lease_s=0.02) as careless:
        backend.create_schema()
        wait_for_go()
        for number in range(int(rounds)):
            batch = [job(f"{name}-{number}-{place}") for place in range(dice.randint(1, 3))]
            accepted += [answer.id for answer in backend.accept(batch) if answer.created]
            leases = backend.claim("default", 4, owner_token=new_owner_token())
            settlements = [Ack(lease=lease) for lease in late] + [verdict(dice, lease) for lease in leases]
            answers, more = backend.exchange(settlements, "default", 2, owner_token=new_owner_token())
            answers += backend.settle([Ack(lease=lease) for lease in more])
            settlements += [Ack(lease=lease) for lease in more]
            acked += [
                one.lease.id for one, held in zip(settlements, answers, strict=True) if held and isinstance(one, Ack)
            ]
            late = careless.claim("default", 2, owner_token=new_owner_token()) if dice.random() < 0.1 else []
            if number % 10 == 0:
                backend.reap_expired()
                backend.prune()
    say(json.dumps({"accepted": accepted, "acked": acked}))


def fork(url: str, prefix: str) -> None:
    """Use one handle on both sides of a fork, while another thread is in the middle of a query."""
    with opened(url, prefix) as backend:
        backend.accept([job("before")])
        mine = connection_id(backend)
        asks = threading.Thread(target=lambda: backend.connections.run(lambda session: session.run("SELECT SLEEP(1)")))
        asks.start()
        while not backend.connections.run(
            lambda session: session.row("SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE = 'User sleep'")
        ):
            pass

        def in_the_child() -> None:
            assert sockets() == 0, "the child holds connections of its parent"
            assert connection_id(backend) != mine
            for number in range(20):
                backend.accept([job(f"child-{number}")])

        child = forked(in_the_child)
        for number in range(20):
            backend.accept([job(f"parent-{number}")])
        wait_for(child)
        asks.join()
        assert connection_id(backend) == mine, "the child has hung up for its parent"
        backend.accept([job("after")])


def connection_id(backend: MysqlEngine) -> int:
    found: int = backend.connections.run(lambda session: session.one("SELECT CONNECTION_ID()"))[0]
    return found


def sockets() -> int:
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    return sum(link.startswith("socket:") for link in links)


ROLES: dict[str, Callable[..., None]] = {"hammer": hammer, "fork": fork}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
