"""The engine in a PostgreSQL database, shared by any number of machines."""

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.contract import DEFAULT_POLICY, Capabilities, Engine, LeasePolicy
from holdfast.queues.engines.postgres.announcing import Announcements
from holdfast.queues.engines.postgres.connections import PostgresConnections
from holdfast.queues.engines.postgres.jobs import PostgresJobs
from holdfast.queues.engines.postgres.records import PostgresRecords
from holdfast.queues.engines.postgres.state import PostgresState
from holdfast.queues.envelope import EnvelopeFactory


class PostgresEngine(Engine):
    """Jobs, records and shared state in their own schema of a PostgreSQL database."""

    capabilities = Capabilities(durable=True, shared=True, transactional_enqueue=True, wakes_up=True, dependencies=True)

    def __init__(
        self,
        conninfo: str,
        envelopes: EnvelopeFactory,
        *,
        policy: LeasePolicy = DEFAULT_POLICY,
        clock: Clock = SYSTEM_CLOCK,
        prefix: str = "holdfast_",
    ) -> None:
        self.connections = PostgresConnections(conninfo, prefix=prefix)
        self._announcements = Announcements(self.connections)
        super().__init__(
            envelopes,
            self.connections,
            jobs=PostgresJobs(self.connections, self._announcements, policy, clock),
            records=PostgresRecords(self.connections, self._announcements, policy),
            state=PostgresState(self.connections, self._announcements),
        )

    def close(self) -> None:
        self._announcements.close()
        super().close()
