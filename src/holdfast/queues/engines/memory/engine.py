"""The engine in the memory of one process: for tests, and for jobs that may die with the process.

It obeys every law for as long as the process lives, and is the readable reference of what the laws mean.
"""

from typing import Final

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.codec import MAX_WIRE_BYTES
from holdfast.queues.contract import DEFAULT_POLICY, Capabilities, Engine, EngineInfo, LeasePolicy
from holdfast.queues.engines.memory.connections import MemoryStore
from holdfast.queues.engines.memory.jobs import MemoryJobs
from holdfast.queues.engines.memory.records import MemoryRecords
from holdfast.queues.engines.memory.state import MemoryState
from holdfast.queues.envelope import EnvelopeFactory

DURABILITY: Final = {"always": "nothing: a job ends with its process"}
"""What an accepted job survives, by how the engine is set up."""


class MemoryEngine(Engine):
    """Jobs in a `MemoryStore`."""

    capabilities = Capabilities(
        durable=False,
        shared=False,
        transactional_enqueue=False,
        wakes_up=False,
        max_wire_bytes=MAX_WIRE_BYTES,
        delay_resolution_s=1e-6,
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
            jobs=MemoryJobs(self.store, policy, clock),
            records=MemoryRecords(self.store, policy, clock),
            state=MemoryState(self.store, clock),
        )

    def check(self) -> None:
        pass

    def describe(self) -> EngineInfo:
        return EngineInfo(server="the memory of this process", settings={}, survives=DURABILITY["always"])

    def create_schema(self) -> None:
        pass

    def close(self) -> None:
        pass
