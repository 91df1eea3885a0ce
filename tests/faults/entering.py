"""A process that runs jobs with one key, one after the other:  python -m tests.faults.entering URL

It works until it is killed. If it was stopped for so long that the server has given it up, it goes on.
"""

import sys
from contextlib import suppress

from holdfast.definition import JobDefinition
from holdfast.errors import BackendUnavailable
from holdfast.queues.contract import Engine, new_owner_token
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Unsigned
from holdfast.values import Ack, Entry, EntryOutcome, Slot

KEY = Slot(name="key:a")


def work(engine: Engine, queue: str) -> None:
    """Run one job."""
    engine.accept([engine.envelopes.make(JobDefinition(handler="job", queue=queue))])
    leases = engine.claim(queue, 1, owner_token=new_owner_token())
    answers = engine.enter([Entry(lease=lease, slots=(KEY,)) for lease in leases])
    entered = [one for one, answer in zip(leases, answers, strict=True) if answer.outcome is EntryOutcome.ENTERED]
    engine.settle([Ack(lease=lease, leaves=(KEY.name,)) for lease in entered])


def main(url: str) -> None:
    engine, _ = EngineFactory(Unsigned()).open(url)
    with engine:
        engine.create_schema()
        print("ready", flush=True)
        while True:
            with suppress(BackendUnavailable):
                work(engine, "stopped")


if __name__ == "__main__":
    main(*sys.argv[1:])
