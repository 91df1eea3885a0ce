"""A process that is stopped while it changes a key holds up no other for long, whatever it was doing.

With HOLDFAST_LONG=1 in the environment, it is stopped a hundred times instead of five times.
"""

import os
from collections.abc import Iterator

import pytest

from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Unsigned

from ..servers.places import Place
from .entering import work
from .processes import Programs, stopped

IS_LONG = os.environ.get("HOLDFAST_LONG") == "1"
STOPS = 100 if IS_LONG else 5

pytestmark = pytest.mark.timeout(1800 if IS_LONG else 300)


@pytest.fixture
def programs(place: Place) -> Iterator[Programs]:
    programs = Programs(place.directory)
    yield programs
    programs.end_all()


@pytest.mark.parametrize("place", ["postgres", "mysql"], indirect=True)
def test_a_stopped_process_does_not_lock_its_key_for_long(place: Place, programs: Programs) -> None:
    program = programs.module("tests.faults.entering", place.url)
    program.wait_for("ready")
    engine, _ = EngineFactory(Unsigned()).open(place.url)
    with engine:
        for _ in range(STOPS):
            with stopped(program.pid):
                work(engine, "other")  # raises if it cannot enter
            work(engine, "other")
    assert (program.runs, program.complained) == (True, "")
