"""Prints the jobs that a job depends on and those that depend on it, as a tree or as JSON.

At most as many jobs are read as are shown, and a job's children are drawn once: damaged records may contain a cycle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from holdfast.cli.documents import GraphDocument, GraphJobDocument
from holdfast.cli.output import note, write_json
from holdfast.cli.style import COLOURS, Fit, painted_table
from holdfast.cli.words import NOTHING, command
from holdfast.errors import UnknownJob
from holdfast.units import counted
from holdfast.values import JobFilter, JobState, JobView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

FIT: Final = Fit(pliant={"ID": 24, "JOB": 12}, left_out=("DEPENDS ON",))
AT_ONCE: Final = 1000


class Node(Struct):
    """A job of the graph: its parents and children in the graph, in order, and how many others it has."""

    state: JobState
    parents: list[str] = field(default_factory=list[str])
    children: list[str] = field(default_factory=list[str])
    hidden_parents: int = 0
    hidden_children: int = 0


def print_graph(engine: Engine, job_id: str, *, depth: int, limit: int, as_json: bool) -> None:
    """Print the graph around a job, up to `depth` steps from it and up to `limit` jobs."""
    history = engine.get(job_id)
    if history is None:
        raise UnknownJob(job_id)
    job_id = history.job.id
    nodes = _explored(engine, job_id, history.job.state, depth=depth, limit=limit)
    views = _views(engine, list(nodes))
    if as_json:
        write_json(_document(job_id, nodes, views))
        return
    rows = [_row(nodes, views, name, line) for name, line in _lines(job_id, nodes)]
    painted_table(("ID", "STATE", "DEPENDS ON", "JOB"), rows, (None, COLOURS), fit=FIT).print()
    if any(node.hidden_parents or node.hidden_children for node in nodes.values()):
        more = command("holdfast", "graph", job_id, "--depth", depth * 2, "--limit", limit * 10)
        note(f"some of these jobs have more parents or children; to show more:  {more}")


def _explored(engine: Engine, job_id: str, state: JobState, *, depth: int, limit: int) -> dict[str, Node]:
    """The job, its ancestors and its descendants, the nearest first."""
    nodes = {job_id: Node(state)}
    edges: dict[tuple[str, str], None] = {}
    found = {(job_id, True), (job_id, False)}
    waiting = deque((job_id, is_upwards, 0) for is_upwards in (True, False))
    while waiting:
        name, is_upwards, steps = waiting.popleft()
        relatives = engine.relatives(name, limit=limit)
        for one in (relatives.parents if is_upwards else relatives.children) if steps < depth else ():
            if one.job_id not in nodes and len(nodes) >= limit:
                break
            nodes.setdefault(one.job_id, Node(one.state))
            edges[(one.job_id, name) if is_upwards else (name, one.job_id)] = None
            if (one.job_id, is_upwards) not in found:
                found.add((one.job_id, is_upwards))
                waiting.append((one.job_id, is_upwards, steps + 1))
        nodes[name].hidden_parents, nodes[name].hidden_children = len(relatives.parents), relatives.child_count
    for parent, child in edges:
        nodes[parent].children.append(child)
        nodes[child].parents.append(parent)
        nodes[parent].hidden_children -= 1
        nodes[child].hidden_parents -= 1
    return nodes


def _views(engine: Engine, job_ids: Sequence[str]) -> dict[str, JobView]:
    parts = [tuple(job_ids[start : start + AT_ONCE]) for start in range(0, len(job_ids), AT_ONCE)]
    return {job.id: job for ids in parts for job in engine.find(JobFilter(ids=ids), limit=AT_ONCE).jobs}


def _lines(job_id: str, nodes: Mapping[str, Node]) -> Iterator[tuple[str, str]]:
    """The lines of the tree, each with its job; a line that stands for hidden children has none."""
    roots = [name for name, node in nodes.items() if not node.parents]
    drawn: set[str] = set()
    # Without a root, the records contain a cycle.
    waiting = [(name, "", "") for name in reversed(roots or [job_id])]
    while waiting:
        name, branch, indent = waiting.pop()
        if not name:
            yield name, branch
            continue
        mark = " (this job)" if name == job_id else ""
        is_repeated = name in drawn
        yield name, f"{branch}{name}{mark}{' (see above)' if is_repeated and nodes[name].children else ''}"
        if is_repeated:
            continue
        drawn.add(name)
        node = nodes[name]
        below: list[tuple[str, str]] = [(child, child) for child in node.children]
        if node.hidden_children:
            below.append(("", f"and {counted(node.hidden_children, 'more job')}"))
        last = len(below) - 1
        for place, (child, text) in reversed(list(enumerate(below))):
            turn, further = ("└─ ", "   ") if place == last else ("├─ ", "│  ")
            waiting.append((child, f"{indent}{turn}{'' if child else text}", f"{indent}{further}"))


def _row(nodes: Mapping[str, Node], views: Mapping[str, JobView], name: str, line: str) -> list[object]:
    if not name:
        return [line, "", "", ""]
    node, view = nodes[name], views.get(name)
    parents = len(node.parents) + node.hidden_parents
    job = NOTHING if view is None else view.name or view.job
    return [line, str(node.state), counted(parents, "job") if parents else NOTHING, job]


def _document(job_id: str, nodes: Mapping[str, Node], views: Mapping[str, JobView]) -> GraphDocument:
    jobs = [
        GraphJobDocument(
            id=name,
            state=node.state,
            job=views[name].job if name in views else None,
            queue=views[name].queue if name in views else None,
            depends_on=tuple(node.parents),
            hidden_parents=node.hidden_parents,
            hidden_children=node.hidden_children,
        )
        for name, node in nodes.items()
    ]
    return GraphDocument(id=job_id, jobs=tuple(jobs))
