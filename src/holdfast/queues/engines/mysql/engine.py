"""The engine in MySQL (8.0 or newer) or MariaDB (10.6 or newer): tables with a prefix, shared by many machines."""

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.contract import DEFAULT_POLICY, Capabilities, Engine, LeasePolicy
from holdfast.queues.engines.mysql.address import MysqlAddress
from holdfast.queues.engines.mysql.claims import MysqlClaims
from holdfast.queues.engines.mysql.connections import MysqlConnections
from holdfast.queues.engines.mysql.jobs import MysqlJobs
from holdfast.queues.engines.mysql.records import MysqlRecords
from holdfast.queues.engines.mysql.state import MysqlState
from holdfast.queues.envelope import EnvelopeFactory


class MysqlEngine(Engine):
    """Jobs, records and shared state in a MySQL or MariaDB database."""

    capabilities = Capabilities(
        durable=True, shared=True, transactional_enqueue=True, wakes_up=False, dependencies=True
    )

    def __init__(
        self,
        address: str | MysqlAddress,
        envelopes: EnvelopeFactory,
        *,
        policy: LeasePolicy = DEFAULT_POLICY,
        clock: Clock = SYSTEM_CLOCK,
        prefix: str = "holdfast_",
    ) -> None:
        if isinstance(address, str):
            address = MysqlAddress.of(address)
        self.connections = MysqlConnections(address, prefix=prefix)
        super().__init__(
            envelopes,
            self.connections,
            jobs=MysqlJobs(self.connections, MysqlClaims(self.connections, policy), policy, clock),
            records=MysqlRecords(self.connections, policy),
            state=MysqlState(self.connections),
        )
