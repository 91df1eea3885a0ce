"""The engine in the memory of one process: for tests, and for jobs that may die with the process.

It obeys every law while the process lives, and is the readable reference for what the laws mean.
"""

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.contract import DEFAULT_POLICY, Capabilities, Engine, LeasePolicy
from holdfast.queues.engines.memory.connections import MemoryStore
from holdfast.queues.engines.memory.jobs import MemoryJobs
from holdfast.queues.engines.memory.records import MemoryRecords
from holdfast.queues.engines.memory.state import MemoryState
from holdfast.queues.envelope import EnvelopeFactory


class MemoryEngine(Engine):
    """Jobs in a `MemoryStore`."""

    capabilities = Capabilities(
        durable=False, shared=False, transactional_enqueue=False, wakes_up=False, dependencies=True
    )

    def __init__(
        self,
        envelopes: EnvelopeFactory,
        *,
        policy: LeasePolicy = DEFAULT_POLICY,
        clock: Clock = SYSTEM_CLOCK,
        store: MemoryStore | None = None,
    ) -> None:
        self.store = store or MemoryStore()
        super().__init__(
            envelopes,
            self.store,
            jobs=MemoryJobs(self.store, policy, clock),
            records=MemoryRecords(self.store, policy, clock),
            state=MemoryState(self.store, clock),
        )
