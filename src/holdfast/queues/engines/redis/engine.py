"""Redis and Valkey: one server, shared by any number of machines, that stores jobs in memory and in its own file."""

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.contract import DEFAULT_POLICY, Capabilities, Engine, LeasePolicy
from holdfast.queues.engines.redis.connections import RedisConnections
from holdfast.queues.engines.redis.jobs import RedisJobs
from holdfast.queues.engines.redis.records import RedisRecords
from holdfast.queues.engines.redis.state import RedisState
from holdfast.queues.envelope import EnvelopeFactory


class RedisEngine(Engine):
    """Jobs, records and shared state on a Redis or Valkey server."""

    capabilities = Capabilities(
        durable=True, shared=True, transactional_enqueue=False, wakes_up=True, dependencies=True
    )

    def __init__(
        self,
        url: str,
        envelopes: EnvelopeFactory,
        *,
        policy: LeasePolicy = DEFAULT_POLICY,
        clock: Clock = SYSTEM_CLOCK,
        prefix: str = "holdfast_",
    ) -> None:
        self.connections = RedisConnections(url, clock=clock, prefix=prefix)
        super().__init__(
            envelopes,
            self.connections,
            jobs=RedisJobs(self.connections, policy, clock),
            records=RedisRecords(self.connections, policy),
            state=RedisState(self.connections),
        )

    def tidy(self) -> None:
        self.connections.repair()
