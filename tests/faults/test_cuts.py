"""Workers that lose their connections in the middle of a job: they are alive, so their jobs are not taken over."""

import pytest

from holdfast.values import JobState, Outcome

from ..servers.places import SERVERS
from .cutting import cut, ports_of
from .processes import until
from .yard import Yard

LEASE_S = 3600
CUTS = 5


@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_a_worker_whose_connections_are_cut_again_and_again_is_not_robbed(yard: Yard) -> None:
    """The last cut is not followed by a pause: the job finishes while its worker has no connection."""
    server = yard.place.server
    assert server is not None
    [id] = yard.put("gated")
    worker = yard.worker(lease_s=LEASE_S)
    first = yard.wait_for_entry("start", id, by=worker)
    other = yard.worker(lease_s=LEASE_S)
    for _ in range(CUTS):
        cut(worker.pid, server)
        yard.complete_slow_jobs(1, by=other)
        until(lambda: ports_of(worker.pid, server), "the worker to connect again")
        assert yard.state(id) is JobState.PROCESSING
    cut(worker.pid, server)
    yard.open_gate(first)
    until(lambda: yard.are_done(1 + CUTS), "every job to be completed")
    assert yard.outcomes(id) == [Outcome.SUCCEEDED]
    assert yard.entries("start", id) == [first]
    assert yard.ends()[id] == 1
    assert worker.runs
    assert "Traceback" not in worker.complained
