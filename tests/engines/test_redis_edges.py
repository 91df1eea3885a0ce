"""Edges between jobs on Redis: how much one call does, what a killed client leaves, names, damaged and rebuilt keys."""

import itertools
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from holdfast.errors import BackendUnavailable, NotSupported
from holdfast.queues.contract import MAX_CHILDREN, TOMBSTONE_S, LeasePolicy, new_owner_token
from holdfast.queues.engines.redis.edges import RESOLVE
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.queues.engines.tables.states import OUTCOME_CODES, POLICY_CODES
from holdfast.testing import Lab
from holdfast.testing.laws.dependencies import complete, states
from holdfast.values import Ack, EdgeOutcome, JobLease, JobState, OnParentFailure

from ..conformance.labs import redis_lab
from ..servers.redis import redis_for_laws
from .redis_site import check_indexes

BLOCKED, PENDING, CANCELLED, DEAD = JobState.BLOCKED, JobState.PENDING, JobState.CANCELLED, JobState.DEAD
PREFIX = "edges_"
BASE = f"{{{PREFIX}}}:"
PATIENCE_S = 20.0
FAMILY = 2 * MAX_CHILDREN + MAX_CHILDREN // 2


@pytest.fixture
def client() -> Generator[Any]:
    with redis_for_laws().client() as client:
        yield client
        client.config_set("maxmemory", "0")
        client.delete(f"{BASE}schema", *client.keys(f"{BASE}*"))


@pytest.fixture
def lab(client: Any) -> Generator[Lab]:
    with redis_lab(prefix=PREFIX) as lab:
        yield lab


def redis(lab: Lab) -> RedisEngine:
    assert isinstance(lab.engine, RedisEngine)
    return lab.engine


def name_of(client: Any, id: str) -> str:
    """The name of a job in its edges."""
    return f"{int(client.hget(f'{BASE}job:{id}', 'number')):016}{id}"


def key_of(client: Any, index: str) -> str:
    """The name of an index, whose last word may be an id."""
    kind, _, id = index.partition(":")
    return f"{kind}:{name_of(client, id)}" if id else index


def damage(client: Any, name: str) -> None:
    """Replace a key by one of another type."""
    client.set(f"{BASE}{name}", "junk")


def commands(client: Any) -> int:
    return sum(told["calls"] for name, told in client.info("commandstats").items() if name != "cmdstat_info")


def cost(client: Any, call: Callable[[], object]) -> int:
    before = commands(client)
    call()
    return commands(client) - before


def put_family(lab: Lab, number: int) -> None:
    lab.put("parent")
    lab.engine.accept([lab.envelope(f"c{at}", after=("parent",), queue="many") for at in range(number)])


def counted(lab: Lab) -> dict[JobState, int]:
    return lab.engine.counts("many")["many"]


# How much work one call does


def test_the_script_has_the_values_of_the_contract() -> None:
    script = RESOLVE.source.decode()
    assert f"MAX_CHILDREN, MAX_NOTES = {MAX_CHILDREN}, 1000\n" in script
    outcomes = ", ".join(str(10 * OUTCOME_CODES[one]) for one in EdgeOutcome)
    assert f"EDGE_OPEN, EDGE_MET, EDGE_CANCELLED = {outcomes}\n" in script
    policies = ", ".join(str(POLICY_CODES[one]) for one in OnParentFailure)
    assert f"TO_CANCEL, TO_RUN, TO_WAIT = {policies}\n" in script


def test_edges_cost_plain_jobs_one_command_a_batch(lab: Lab, client: Any) -> None:
    def costs(number: int) -> int:
        lab.put(*(f"{number}-{at}-{lab.now():%H%M%S%f}" for at in range(number)), queue="plain")
        ends = [Ack(lease=lease, record=lab.record()) for lease in lab.claim(number, queue="plain")]
        lab.advance(1)
        return cost(client, lambda: lab.engine.settle(ends))

    costs(1)  # loads the scripts into the server
    before = [costs(number) for number in (1, 100)]
    put_family(lab, 10)
    assert [costs(number) for number in (1, 100)] == [number + 1 for number in before]


def test_the_end_of_a_parent_costs_the_same_next_to_a_large_family(lab: Lab, client: Any) -> None:
    def costs(id: str) -> int:
        lab.put(id, queue="small")
        lab.put(f"child-of-{id}", after=(id,))
        end = Ack(lease=lab.take(id, queue="small"), record=lab.record())
        return cost(client, lambda: lab.engine.settle([end]))

    first = costs("first")
    put_family(lab, FAMILY)
    assert costs("second") == first
    lab.engine.cancel("parent")
    assert counted(lab)[BLOCKED] == FAMILY - MAX_CHILDREN


def test_one_call_changes_a_bounded_number_of_edges(lab: Lab, client: Any) -> None:
    put_family(lab, FAMILY)
    complete(lab, "parent")
    assert counted(lab) == {PENDING: MAX_CHILDREN, BLOCKED: FAMILY - MAX_CHILDREN}
    assert lab.engine.repair() == FAMILY - MAX_CHILDREN
    assert counted(lab) == {PENDING: FAMILY}
    check_indexes(client, PREFIX)


def test_a_descendant_counts_towards_the_bound(lab: Lab) -> None:
    put_family(lab, MAX_CHILDREN - 1)
    lab.engine.accept([lab.envelope(f"d{at}", after=(f"c{at}",), queue="many") for at in range(MAX_CHILDREN - 1)])
    lab.engine.cancel("parent")
    assert counted(lab)[CANCELLED] == MAX_CHILDREN
    lab.engine.repair()
    assert counted(lab) == {CANCELLED: 2 * (MAX_CHILDREN - 1)}


def test_the_children_of_several_parents_count_towards_the_bound(lab: Lab) -> None:
    lab.put("a", "b")
    for parent in ("a", "b"):
        jobs = [lab.envelope(f"{parent}{at}", after=(parent,), queue="many") for at in range(MAX_CHILDREN - 1)]
        lab.engine.accept(jobs)
    complete(lab, "a", "b")
    assert counted(lab)[PENDING] == MAX_CHILDREN
    lab.engine.repair()
    assert counted(lab) == {PENDING: 2 * (MAX_CHILDREN - 1)}


def test_a_settlement_releases_its_own_children_before_those_that_others_have_left(lab: Lab) -> None:
    put_family(lab, FAMILY)
    complete(lab, "parent")
    lab.advance(1)
    lab.put("other")
    lab.put("child", after=("other",))
    complete(lab, "other")
    assert states(lab, "child") == [PENDING]


def test_too_many_edges_are_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.queues.engines.redis.jobs.MOST_EDGES", 3)
    lab.put("a", "b")
    with lab.unchanged(), pytest.raises(NotSupported, match="4 dependencies between jobs are too many"):
        lab.engine.accept([lab.envelope(id, after=("a", "b")) for id in ("c", "d")])


def test_parents_that_are_spared_do_not_hide_others_from_pruning(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.queues.engines.redis.records.PRUNE_BATCH", 2)
    engine = lab.open(LeasePolicy(retain_completed_s=60))
    parents, plain = [f"p{at}" for at in range(5)], [f"plain{at}" for at in range(5)]
    lab.put(*parents, *plain)
    lab.put(*(f"child-of-{id}" for id in parents), after=tuple(parents), queue="children")
    for id in (*parents, *plain):
        assert engine.ack(lab.take(id))
        lab.advance(1)
    lab.advance(60)
    assert engine.prune() == len(plain)
    assert sorted(lab.ids()) == sorted([*parents, *(f"child-of-{id}" for id in parents)])


# What a killed client leaves


def test_another_client_resolves_what_a_killed_one_has_left(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    put_family(lab, FAMILY)
    lab.engine.cancel("parent")
    connections = redis(lab).connections
    run, calls = connections.run, itertools.count()

    def killed(script: Any, *arguments: Any, **options: Any) -> Any:
        if script is RESOLVE and next(calls):
            raise BackendUnavailable("the client was killed")
        return run(script, *arguments, **options)

    monkeypatch.setattr(connections, "run", killed)
    with pytest.raises(BackendUnavailable):
        lab.engine.repair()
    assert counted(lab) == {CANCELLED: 2 * MAX_CHILDREN, BLOCKED: FAMILY - 2 * MAX_CHILDREN}
    lab.open().repair()
    assert counted(lab) == {CANCELLED: FAMILY}


@pytest.mark.parametrize("act", ["replay", "replay and complete", "discard", "reschedule a child", "discard a child"])
def test_anything_may_happen_between_two_calls(lab: Lab, client: Any, act: str) -> None:
    put_family(lab, FAMILY)
    lab.engine.cancel("parent")
    last = f"c{FAMILY - 1}"
    expected = {CANCELLED: FAMILY}
    match act:
        case "replay":
            lab.engine.replay("parent")
            expected = {BLOCKED: FAMILY}
        case "replay and complete":
            lab.engine.replay("parent")
            complete(lab, "parent")
            expected = {PENDING: FAMILY}
        case "discard":
            assert lab.engine.discard("parent", states=[CANCELLED])
        case "reschedule a child":
            assert lab.engine.reschedule([lab.envelope(last, queue="many", payload={"new": 1})]) == [True]
        case _:
            lab.engine.cancel(last)
            assert lab.engine.discard(last, states=[CANCELLED])
            expected = {CANCELLED: FAMILY - 1}
    lab.engine.repair()
    assert counted(lab) == expected
    assert client.exists(f"{BASE}notes") == 0
    check_indexes(client, PREFIX)


def test_a_settlement_whose_reply_was_lost_releases_the_child_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.put("parent")
    lab.put("child", after=("parent",))
    end = Ack(lease=lab.take("parent"), record=lab.record())
    assert lab.engine.settle([end]) == [True]
    lease = lab.take("child")
    assert lab.engine.settle([end]) == [True]
    assert lab.claim() == []
    assert lab.engine.ack(lease)


# Names, queues and hints


def test_a_new_job_inherits_no_edges_of_a_deleted_one_that_had_its_id(lab: Lab, client: Any) -> None:
    lab.put("parent", "top")
    lab.put("child", after=("parent",), on_parent_failure=OnParentFailure.WAIT)
    lab.put("middle", after=("top",))
    lab.engine.cancel("parent")
    lab.engine.cancel("middle")
    assert lab.engine.discard("parent", states=[CANCELLED])
    assert lab.engine.discard("middle", states=[CANCELLED])
    lab.advance(TOMBSTONE_S)
    lab.engine.prune()
    lab.put("parent", "middle", queue="new")
    assert [lab.engine.relatives(id).child_count for id in ("parent", "top")] == [0, 0]
    assert lab.engine.relatives("middle").parents == ()
    lab.engine.cancel("parent")
    lab.engine.replay("parent")
    lab.engine.repair()
    assert states(lab, "child", "middle") == [CANCELLED, PENDING]
    check_indexes(client, PREFIX)


def test_a_note_on_a_deleted_job_does_not_concern_a_new_one_that_has_its_id(lab: Lab, client: Any) -> None:
    put_family(lab, FAMILY)
    lab.engine.cancel("parent")
    assert lab.engine.discard("parent", states=[CANCELLED])
    client.delete(f"{BASE}job:parent")
    lab.put("parent")
    lab.put("heir", after=("parent",))
    lab.engine.repair()
    assert counted(lab) == {CANCELLED: FAMILY}
    assert states(lab, "heir") == [BLOCKED]
    assert lab.engine.relatives("parent").child_count == 1
    complete(lab, "parent")
    complete(lab, "heir")


def test_the_edges_of_deleted_jobs_are_deleted(lab: Lab, client: Any) -> None:
    engine = lab.open(LeasePolicy(retain_completed_s=60))
    lab.put("a", "b")
    lab.put("child", after=("a", "b"))
    complete(lab, "a", "b")
    complete(lab, "child")
    for _ in range(2):
        lab.advance(61)
        engine.prune()
    left = {key.decode().removeprefix(BASE).partition(":")[0] for key in client.keys(f"{BASE}*")}
    assert not left & {"parents", "children", "watched", "notes"}


def test_a_child_of_a_deleted_job_leaves_no_edge_of_it_when_it_is_replayed(lab: Lab, client: Any) -> None:
    family(lab)
    lab.engine.cancel("a")
    assert lab.engine.discard("a", states=[CANCELLED])
    lab.engine.replay("child")
    check_indexes(client, PREFIX)
    complete(lab, "b")
    complete(lab, "child")


def test_a_rescheduled_child_is_blocked_in_its_new_queue(lab: Lab, client: Any) -> None:
    lab.put("parent")
    lab.put("child", after=("parent",))
    since = lab.view("child").blocked_since
    lab.advance(1)
    assert lab.engine.reschedule([lab.envelope("child", queue="other", priority=9)]) == [True]
    view = lab.view("child")
    assert (view.state, view.queue, view.priority, view.blocked_since) == (BLOCKED, "other", 9, since)
    assert lab.engine.counts()["other"] == {BLOCKED: 1}
    check_indexes(client, PREFIX)
    complete(lab, "parent")
    lab.take("child", queue="other")


def test_a_released_child_wakes_a_worker_of_its_queue(lab: Lab) -> None:
    lab.put("parent")
    lab.put("child", after=("parent",), queue="mail")
    assert lab.claim(queue="mail") == []
    found: list[JobLease] = []
    worker = lab.open()

    def wait() -> None:
        found.extend(worker.claim("mail", 1, owner_token=new_owner_token(), wait=PATIENCE_S))

    waiting = threading.Thread(target=wait)
    waiting.start()
    complete(lab, "parent")
    waiting.join(PATIENCE_S)
    assert [lease.id for lease in found] == ["child"]


# Damaged keys

INDEXES = ("watched", "notes", "parents:child", "children:a", "children:b", "parents:grandchild", "children:child")


def maintain(lab: Lab) -> None:
    """Do the maintenance that every worker does for all queues."""
    lab.engine.repair()
    lab.engine.tidy()
    lab.engine.repair()


def family(lab: Lab) -> None:
    lab.put("a", "b")
    lab.put("child", after=("a", "b"))
    lab.put("grandchild", after=("child",))


@pytest.mark.parametrize("index", INDEXES)
def test_edges_survive_the_damage_of_an_index(lab: Lab, client: Any, index: str) -> None:
    family(lab)
    relatives = [lab.engine.relatives(id) for id in ("a", "b", "child", "grandchild")]
    damage(client, key_of(client, index))
    for id in ("a", "b", "child", "grandchild"):
        lab.engine.relatives(id)
    maintain(lab)
    assert [lab.engine.relatives(id) for id in ("a", "b", "child", "grandchild")] == relatives
    check_indexes(client, PREFIX)
    for ids in (("a", "b"), ("child",), ("grandchild",)):
        complete(lab, *ids)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("last", ["a", "b"])
def test_parents_end_despite_a_damaged_key(lab: Lab, client: Any, index: str, last: str) -> None:
    """The child is released by the last of them, and not before."""
    family(lab)
    first, second = lab.claim(2)
    leases = {first.id: first, second.id: second}
    damage(client, key_of(client, index))
    assert lab.engine.ack(leases.pop("a" if last == "b" else "b"))
    assert states(lab, "child") == [BLOCKED]
    maintain(lab)
    assert states(lab, "child") == [BLOCKED]
    damage(client, key_of(client, index))
    assert lab.engine.ack(leases[last])
    maintain(lab)
    complete(lab, "child")
    maintain(lab)
    complete(lab, "grandchild")


@pytest.mark.parametrize("other", ["parents:child", "children:a", "children:b", "notes"])
def test_parents_end_despite_two_damaged_keys(lab: Lab, client: Any, other: str) -> None:
    family(lab)
    damage(client, "watched")
    damage(client, key_of(client, other))
    complete(lab, "a", "b")
    assert states(lab, "child") == [BLOCKED]
    # The second key is found to be damaged when the first one has been rebuilt.
    maintain(lab)
    maintain(lab)
    complete(lab, "child")
    check_indexes(client, PREFIX)


def test_a_parent_whose_children_are_damaged_is_spared(lab: Lab, client: Any) -> None:
    engine = lab.open(LeasePolicy(retain_completed_s=60))
    family(lab)
    assert lab.engine.ack(lab.take("a"))
    lab.advance(61)
    damage(client, key_of(client, "children:a"))
    for _ in range(2):
        engine.prune()
        assert states(lab, "a") == [JobState.COMPLETED]
        engine.tidy()
    complete(lab, "b")
    complete(lab, "child")


@pytest.mark.parametrize("index", INDEXES)
def test_an_operator_changes_a_family_despite_a_damaged_key(lab: Lab, client: Any, index: str) -> None:
    family(lab)
    damage(client, key_of(client, index))
    lab.engine.cancel("a")
    maintain(lab)
    assert states(lab, "child", "grandchild") == [CANCELLED, CANCELLED]
    damage(client, key_of(client, index))
    lab.engine.replay("a")
    maintain(lab)
    assert states(lab, "child", "grandchild") == [BLOCKED, BLOCKED]
    complete(lab, "a", "b")
    maintain(lab)
    complete(lab, "child")


@pytest.mark.parametrize("index", INDEXES)
def test_a_child_is_replayed_and_pruned_despite_a_damaged_key(lab: Lab, client: Any, index: str) -> None:
    engine = lab.open(LeasePolicy(retain_completed_s=60, retain_dead_s=60))
    family(lab)
    lab.engine.cancel("a")
    assert states(lab, "child", "grandchild") == [CANCELLED, CANCELLED]
    key = key_of(client, index)
    damage(client, key)
    lab.engine.replay("child")
    maintain(lab)
    complete(lab, "b")
    maintain(lab)
    complete(lab, "child")
    maintain(lab)
    complete(lab, "grandchild")
    damage(client, key)
    for _ in range(4):
        lab.advance(61)
        engine.prune()
        engine.tidy()
    assert lab.ids() == []


def test_nothing_is_resolved_while_edges_are_rebuilt(lab: Lab, client: Any) -> None:
    family(lab)
    client.rename(f"{BASE}{key_of(client, 'parents:child')}", f"{BASE}damaged:here")
    client.hset(f"{BASE}rebuild", key_of(client, "parents:child"), 1)
    complete(lab, "a", "b")
    assert states(lab, "child") == [BLOCKED]
    lab.engine.tidy()
    assert states(lab, "child") == [BLOCKED]
    lab.engine.repair()
    complete(lab, "child")


def test_a_child_whose_edges_are_lost_runs(lab: Lab, client: Any) -> None:
    family(lab)
    for index in ("children:a", "children:b", "parents:child"):
        damage(client, key_of(client, index))
    complete(lab, "a", "b")
    maintain(lab)
    lab.engine.tidy()
    complete(lab, "child")


def test_a_damaged_child_is_dead_lettered_and_its_siblings_run(lab: Lab, client: Any) -> None:
    lab.put("parent")
    lab.put("a", "b", after=("parent",))
    lab.put("grandchild", after=("a",))
    client.set(f"{BASE}job:a", "junk")
    complete(lab, "parent")
    assert states(lab, "a", "b") == [DEAD, PENDING]
    lab.engine.repair()
    assert states(lab, "grandchild") == [CANCELLED]


def test_an_unreadable_parent_is_not_taken_for_a_deleted_one(lab: Lab, client: Any) -> None:
    lab.put("parent")
    lab.put("child", after=("parent",))
    client.set(f"{BASE}job:parent", "junk")
    client.zadd(f"{BASE}notes", {client.hget(f"{BASE}watched", "parent"): 1})
    lab.engine.repair()
    assert states(lab, "child") == [BLOCKED]
    assert lab.claim() == []
    assert states(lab, "parent") == [DEAD]
    lab.engine.repair()
    assert states(lab, "child") == [CANCELLED]


# A full server


def test_a_full_server_lets_parents_end(lab: Lab, client: Any) -> None:
    family(lab)
    first, second = lab.claim(2)
    client.config_set("maxmemory", "1")
    with pytest.raises(BackendUnavailable):
        lab.engine.accept([lab.envelope("late", after=("a",))])
    assert lab.engine.settle([Ack(lease=lease, record=lab.record()) for lease in (first, second)]) == [True, True]
    complete(lab, "child")
    lab.engine.cancel("grandchild")
    lab.engine.replay("grandchild")
    lab.engine.repair()
    complete(lab, "grandchild")
    assert lab.engine.relatives("a").child_count == 1
