"""Other job systems on the same servers, each in its best arrangements, and how to detect that one has finished.

Each has a module `<name>_app.py`: `fill` enqueues jobs in its fastest way and prints how long that took, `probe`
enqueues them one at a time. Its workers are started as its users start them.
"""

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Final, Generic, TypeVar

from measuring import Site
from servers import Place, PostgresPlace, RedisPlace

SERVER_VARIABLE: Final = "BENCH_SERVER"
P = TypeVar("P", bound=Place)


class Peer(ABC, Generic[P]):
    """One arrangement of a peer."""

    package: ClassVar[str]
    app: ClassVar[str]
    promise: ClassVar[str]

    def __init__(self, name: str, **variables: str) -> None:
        self.name = name
        self._variables = variables

    @property
    def version(self) -> str | None:
        """None if it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    @property
    def note(self) -> str:
        return f"{self.version}: {self.promise}"

    def variables(self, place: P) -> dict[str, str]:
        """The environment of its programs."""
        return {SERVER_VARIABLE: place.url, **self._variables}

    def ask(self, site: Site, place: P, call: str) -> Any:
        """The output of a function of its module."""
        command = [sys.executable, "-c", f"import {self.app}; {self.app}.{call}"]
        environment = site.environment(**self.variables(place))
        done = subprocess.run(command, cwd=site.directory, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{command!r} failed:\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])

    @abstractmethod
    def workers(self, number: int) -> Sequence[Sequence[str]]:
        """The command lines that start this many worker processes."""

    @abstractmethod
    def is_settled(self, place: P) -> bool:
        """Whether no job is waiting or unacknowledged."""

    def check(self, place: P, jobs: int) -> None:
        """Assert that all of these jobs succeeded, as far as it records results."""


class PgQueuer(Peer[PostgresPlace]):
    package, app = "pgqueuer", "pgqueuer_app"
    promise = "at least once, a row in its log for each"

    def workers(self, number: int) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", self.app]] * number

    def is_settled(self, place: PostgresPlace) -> bool:
        return place.connection.execute("SELECT 1 FROM pgqueuer LIMIT 1").fetchone() is None

    def check(self, place: PostgresPlace, jobs: int) -> None:
        query = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"
        assert place.connection.execute(query).fetchone() == (jobs,)


class Repid(Peer[RedisPlace]):
    package, app = "repid", "repid_app"
    promise = "stays in the stream, taken back from a dead worker only if asked to"

    def workers(self, number: int) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", self.app]] * number

    def is_settled(self, place: RedisPlace) -> bool:
        [group] = place.client.xinfo_groups("repid:bench")
        return bool(group["pending"] == 0 and group["lag"] == 0)

    def check(self, place: RedisPlace, jobs: int) -> None:
        [group] = place.client.xinfo_groups("repid:bench")
        assert group["entries-read"] == jobs
        assert place.client.exists("repid:bench:dlq") == 0


class Dramatiq(Peer[RedisPlace]):
    package, app = "dramatiq", "dramatiq_app"
    promise = "at least once, nothing retained"

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(name)
        self._threads = threads

    def workers(self, number: int) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", "dramatiq", self.app, "-p", str(number), "-t", str(self._threads)]]

    def is_settled(self, place: RedisPlace) -> bool:
        # Acknowledging a message deletes it.
        return not place.client.exists("dramatiq:default.msgs", "dramatiq:default")

    def check(self, place: RedisPlace, jobs: int) -> None:
        assert place.client.exists("dramatiq:default.XQ.msgs") == 0


class Huey(Peer[RedisPlace]):
    package, app = "huey", "huey_redis_app"
    promise = "at most once, nothing retained"

    def __init__(self, name: str, kind: str, workers: int) -> None:
        super().__init__(name)
        self._options = ("-k", kind, "-w", str(workers))

    def workers(self, number: int) -> Sequence[Sequence[str]]:
        consumer = [sys.executable, "-m", "huey.bin.huey_consumer", f"{self.app}.huey", "--quiet", *self._options]
        return [consumer] * number

    def is_settled(self, place: RedisPlace) -> bool:
        return not place.client.exists("huey.redis.huey")


ON_POSTGRES: Final = (
    PgQueuer("PgQueuer, batches of 100", BENCH_BATCH="100"),
    PgQueuer("PgQueuer, batches of 500", BENCH_BATCH="500"),
)
ON_REDIS: Final = (
    Repid("repid, 20 tasks each", BENCH_TASKS="20", BENCH_BATCH="20"),
    Repid("repid, 100 tasks each", BENCH_TASKS="100", BENCH_BATCH="100"),
    Dramatiq("Dramatiq, 8 threads each", 8),
    Dramatiq("Dramatiq, 16 threads each", 16),
    Huey("Huey, 4 threads each", "thread", 4),
    Huey("Huey, a thread each", "thread", 1),
)
