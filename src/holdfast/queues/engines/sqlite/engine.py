"""The embedded engine: one SQLite file, shared by any number of threads and processes of one machine."""

from pathlib import Path

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.contract import DEFAULT_POLICY, Capabilities, Engine, LeasePolicy
from holdfast.queues.engines.sqlite.connections import SqliteFile
from holdfast.queues.engines.sqlite.jobs import SqliteJobs
from holdfast.queues.engines.sqlite.records import SqliteRecords
from holdfast.queues.engines.sqlite.state import SqliteState
from holdfast.queues.envelope import EnvelopeFactory


class SqliteEngine(Engine):
    """Jobs, records and shared state in an SQLite file."""

    capabilities = Capabilities(durable=True, shared=True, transactional_enqueue=True, wakes_up=True, dependencies=True)

    def __init__(
        self,
        path: str | Path,
        envelopes: EnvelopeFactory,
        *,
        policy: LeasePolicy = DEFAULT_POLICY,
        clock: Clock = SYSTEM_CLOCK,
        prefix: str = "holdfast_",
        only_looks: bool = False,
    ) -> None:
        self.file = SqliteFile(Path(path), clock=clock, prefix=prefix, only_looks=only_looks)
        super().__init__(
            envelopes,
            self.file,
            jobs=SqliteJobs(self.file, policy, clock),
            records=SqliteRecords(self.file, policy, clock),
            state=SqliteState(self.file, clock),
        )

    def tidy(self) -> None:
        self.file.checkpoint()
