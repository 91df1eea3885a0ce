"""The engine in a PostgreSQL database, shared by any number of machines."""

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.codec import MAX_WIRE_BYTES
from holdfast.queues.contract import DEFAULT_POLICY, Capabilities, Engine, EngineInfo, LeasePolicy
from holdfast.queues.engines.postgres.announcing import Announcements
from holdfast.queues.engines.postgres.connections import PostgresConnections
from holdfast.queues.engines.postgres.jobs import PostgresJobs
from holdfast.queues.engines.postgres.records import PostgresRecords
from holdfast.queues.engines.postgres.state import PostgresState
from holdfast.queues.envelope import EnvelopeFactory


class PostgresEngine(Engine):
    """Jobs, records and shared state in a PostgreSQL database, in a namespace of their own."""

    capabilities = Capabilities(
        durable=True,
        shared=True,
        transactional_enqueue=True,
        wakes_up=True,
        max_wire_bytes=MAX_WIRE_BYTES,
        delay_resolution_s=1e-6,
    )

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
            jobs=PostgresJobs(self.connections, self._announcements, policy, clock),
            records=PostgresRecords(self.connections, self._announcements, policy),
            state=PostgresState(self.connections),
        )

    def check(self) -> None:
        self.connections.check_schema()

    def describe(self) -> EngineInfo:
        return self.connections.describe()

    def create_schema(self) -> None:
        self.connections.create_schema()

    def close(self) -> None:
        self._announcements.close()
        self.connections.close()
