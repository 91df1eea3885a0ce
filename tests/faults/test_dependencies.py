"""Jobs that wait for others, while workers are killed: every job ends, no child runs before its parents have ended, and
no child is released twice.

With HOLDFAST_LONG=1 in the environment the diamond has a thousand jobs and the parent ten thousand children.
"""

import os
import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from holdfast.definition import JobDefinition, definition_of
from holdfast.values import JobState, JobView, OnParentFailure, Outcome

from ..servers.places import every_engine
from .processes import Slayer, until
from .yard import Yard

IS_LONG = os.environ.get("HOLDFAST_LONG") == "1"
MIDDLE = 998 if IS_LONG else 60
CHILDREN = 10_000 if IS_LONG else 1_500  # more than one commit releases
LAYERS, WIDTH = (12, 40) if IS_LONG else (5, 12)
KILLS = 20 if IS_LONG else 3
PATIENCE_S = 900.0 if IS_LONG else 300.0

pytestmark = pytest.mark.timeout(1800 if IS_LONG else 600)

Graph = Mapping[str, JobDefinition]


def diamond() -> Graph:
    """A job, many that wait for it, and one that waits for all of these."""
    middle = [f"middle-{number}" for number in range(MIDDLE)]
    return {
        "top": definition_of("brief", None, {}),
        **{id: definition_of("brief", None, {"after": ["top"]}) for id in middle},
        "bottom": definition_of("brief", None, {"after": middle}),
    }


def layers(dice: random.Random) -> Graph:
    """Layers of jobs that wait for some of the layer before. A few of them fail."""
    graph: dict[str, JobDefinition] = {}
    before: list[str] = []
    for depth in range(LAYERS):
        layer = [f"{depth}-{number}" for number in range(WIDTH)]
        for id in layer:
            job = "broken" if dice.random() < 0.1 else "brief"
            graph[id] = definition_of(job, None, {"max_retries": 0 if job == "broken" else 1000})
            if before:
                graph[id] = graph[id].with_options(
                    after=dice.sample(before, dice.randint(1, 3)),
                    on_parent_failure="cancel" if dice.random() < 0.3 else "run",
                )
        before = layer
    return graph


def expected(graph: Graph) -> dict[str, JobState]:
    """How each job must end. Parents come before their children."""
    ends: dict[str, JobState] = {}
    for id, definition in graph.items():
        failed = any(ends[parent] is not JobState.COMPLETED for parent in definition.after)
        if failed and definition.on_parent_failure is OnParentFailure.CANCEL:
            ends[id] = JobState.CANCELLED
        else:
            ends[id] = JobState.DEAD if definition.handler == "broken" else JobState.COMPLETED
    return ends


def check_order(yard: Yard, graph: Graph) -> None:
    """No job started before its parents: those that completed had ended, and those that failed had started."""
    ends = expected(graph)
    seen: set[tuple[str, str]] = set()
    for entry in yard.ledger():
        for parent in graph[entry.id].after if entry.what == "start" else ():
            if ends[parent] is not JobState.CANCELLED:
                what = "start" if ends[parent] is JobState.DEAD else "end"
                assert (what, parent) in seen, f"job {entry.id} started before its parent {parent}"
        seen.add((entry.what, entry.id))


def views(yard: Yard, ids: Sequence[str]) -> Iterator[JobView]:
    return (yard.history(id).job for id in ids)


def run_while_workers_die(yard: Yard, graph: Graph, dice: random.Random) -> None:
    """Enqueue the graph in one call, and kill a worker again and again until every job has ended."""
    yard.hf.enqueue_many(graph.values(), ids=graph)
    slayer = Slayer()
    workers = [yard.worker("--count", "2", lease_s=2) for _ in range(2)]
    for _ in range(KILLS):
        reached = len(yard.ledger()) + dice.randint(1, max(2, len(graph) // (2 * KILLS)))
        until(lambda: len(yard.ledger()) >= reached or not _is_open(yard), "the workers to make progress")  # noqa: B023
        victim = workers.pop(0)
        slayer.kill(victim.pid)
        victim.kill()
        workers.append(yard.starting("--count", "2", lease_s=2))
    until(lambda: not _is_open(yard), "every job to end", within_s=PATIENCE_S)


def _is_open(yard: Yard) -> bool:
    return any(not state.is_final for state in yard.counts())


@every_engine
def test_a_diamond_ends_although_its_workers_are_killed(yard: Yard) -> None:
    graph = diamond()
    run_while_workers_die(yard, graph, random.Random(17))
    assert {view.state for view in views(yard, list(graph))} == {JobState.COMPLETED}
    check_order(yard, graph)
    *before, last = yard.outcomes("bottom")
    assert last is Outcome.SUCCEEDED
    assert set(before) <= {Outcome.CRASHED, Outcome.INTERRUPTED}, "released once"
    assert yard.history("bottom").job.deliveries == len(before) + 1


@every_engine
def test_layers_of_jobs_end_as_their_policies_say_although_workers_are_killed(yard: Yard) -> None:
    dice = random.Random(18)
    graph = layers(dice)
    assert set(expected(graph).values()) == {JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED}
    run_while_workers_die(yard, graph, dice)
    assert {view.id: view.state for view in views(yard, list(graph))} == expected(graph)
    check_order(yard, graph)


@every_engine
def test_every_child_of_a_large_family_runs_although_the_worker_that_released_it_is_killed(yard: Yard) -> None:
    [parent] = yard.put("brief")
    children = yard.put("quick", CHILDREN, after=[parent])
    first = yard.worker(lease_s=2)
    yard.wait_for_entry("end", parent, by=first)
    first.kill()
    yard.worker("--count", "2", lease_s=2)
    until(lambda: yard.are_done(CHILDREN + 1), "every child to be completed", within_s=PATIENCE_S)
    ends = yard.ends()
    assert set(children) <= set(ends)
