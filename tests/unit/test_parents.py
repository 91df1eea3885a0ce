"""Jobs that depend on others, as an application enqueues and runs them."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Holdfast, JobContext, JobState
from holdfast.errors import DefinitionError, JobCancelled, JobFailed, ResultGone, UnknownParent
from holdfast.values import EdgeOutcome, OnParentFailure


@dataclass
class Part:
    number: int


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with Holdfast("memory://") as hf:
        yield hf


def run_all(hf: Holdfast) -> None:
    with hf.worker() as worker:
        hf.loop(worker, burst=True).run()


# Enqueueing


def test_parents_are_handles_of_both_kinds_and_ids(hf: Holdfast) -> None:
    @hf.job
    def step() -> None: ...

    one, two = step.enqueue(), asyncio.run(step.enqueue_async())
    three = hf.enqueue(step.define())
    child = step.options(after=[one, two, three, one]).enqueue()
    assert child.view().after == (one.id, two.id, three)
    assert child.status() is JobState.BLOCKED


def test_the_builder_sets_them_too(hf: Holdfast) -> None:
    parent = hf.handle(hf.define("a").id("a1").dispatch())
    builder = hf.define("b").after(parent, "a2", on_parent_failure="wait")
    definition = builder.definition()
    assert (definition.after, definition.on_parent_failure) == (("a1", "a2"), OnParentFailure.WAIT)
    assert definition == hf.define("b").definition().with_options(after=["a1", "a2"], on_parent_failure="wait")


def test_a_later_list_of_parents_replaces_an_earlier_one(hf: Holdfast) -> None:
    @hf.job(after=["a"])
    def step() -> None: ...

    assert step.define().after == ("a",)
    assert step.options(after=("b", "c")).define().after == ("b", "c")
    assert step.options(after=[]).define().after == ()


@pytest.mark.parametrize("parents", ["import-7", 7, [7], [None], object()])
def test_what_is_no_list_of_jobs_is_refused(hf: Holdfast, parents: Any) -> None:
    with pytest.raises(
        DefinitionError, match=r"after must be a list of jobs or their ids, like \[handle, 'import-7'\]"
    ):
        hf.define("a").definition().with_options(after=parents)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on_parent_failure": "run"}, "on_parent_failure has no effect without after; set after as well"),
        ({"after": ["a"], "on_parent_failure": "retry"}, "on_parent_failure must be 'cancel', 'run', 'wait', not"),
        (
            {"after": [f"a{n}" for n in range(1001)]},
            "a job can depend on up to 1,000 jobs, not 1,001; add intermediate jobs",
        ),
        ({"after": ["a"], "unique": "k", "on_conflict": "replace"}, "a job that replaces another one cannot have"),
        ({"after": ["a b"]}, "'a b' is not a valid job id"),
    ],
)
def test_options_that_make_no_sense_are_refused(hf: Holdfast, options: Any, problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        hf.define("a").definition().with_options(**options)
    assert problem in str(caught.value)


def test_jobs_of_one_call_may_refer_to_each_other_in_any_order(hf: Holdfast) -> None:
    define = hf.define("step").definition().with_options
    ids = ["report", "clean", "extract", "train"]
    parents = [["clean", "train"], ["extract"], [], ["extract"]]
    assert hf.enqueue_many([define(after=one) for one in parents], ids=ids) == ids
    states = [hf.handle(id).status() for id in ids]
    assert states == [JobState.BLOCKED, JobState.BLOCKED, JobState.PENDING, JobState.BLOCKED]


def test_jobs_that_wait_for_each_other_are_refused_and_named(hf: Holdfast) -> None:
    define = hf.define("step").definition().with_options
    with pytest.raises(DefinitionError, match="these jobs wait for each other, so none of them could run: a → b → a"):
        hf.enqueue_many([define(after=["b"]), define(after=["a"]), define()], ids=["a", "b", "c"])
    assert hf.backend().counts() == {}


def test_an_unknown_parent_is_refused_and_nothing_is_enqueued(hf: Holdfast) -> None:
    define = hf.define("step").definition().with_options
    with pytest.raises(UnknownParent, match="job 'b' depends on 'nobody', which does not exist in this backend") as one:
        hf.enqueue_many([define(), define(after=["a", "nobody"])], ids=["a", "b"])
    assert (one.value.job_id, one.value.parent) == ("b", "nobody")
    assert hf.backend().counts() == {}


def test_a_parent_in_another_backend_is_refused_with_the_names_of_both() -> None:
    backends, routes = {"third": "memory://", "slow": "memory://"}, {"reports": "slow"}
    with Holdfast("memory://", backends=backends, routes=routes) as hf:
        parent = hf.dispatch(hf.define("a").queue("reports").definition())
        with pytest.raises(UnknownParent) as caught:
            hf.define("b").id("b").after(parent).dispatch()
        assert str(caught.value) == (
            f"job 'b' depends on '{parent.id}', which is in backend 'slow', so nothing was enqueued; a job can depend "
            "only on jobs in its own backend, 'default'"
        )
        with pytest.raises(UnknownParent, match="which does not exist in this backend"):
            hf.define("b").after("nobody").dispatch()
        assert hf.define("b").queue("reports").after(parent).dispatch()


# Running


def test_a_chain_a_fan_out_and_a_fan_in_run_in_order(hf: Holdfast) -> None:
    ran: list[str] = []

    @hf.job
    def step(context: JobContext) -> None:
        ran.append(context.id)

    top = step.options(id="top").enqueue()
    middle = [step.options(id=f"middle-{number}", after=[top]).enqueue() for number in range(3)]
    bottom = step.options(id="bottom", after=middle).enqueue()
    step.options(id="end", after=[bottom]).enqueue()
    run_all(hf)
    assert ran == ["top", "middle-0", "middle-1", "middle-2", "bottom", "end"]


def test_the_results_of_parents_are_read_by_id_and_decoded_for_handles(hf: Holdfast) -> None:
    found: list[Any] = []

    @hf.job
    def part(number: int) -> Part:
        return Part(number)

    @hf.job
    def whole(context: JobContext, first: str) -> int:
        results = context.results
        found.extend([results[first], results[part.handle(first)], dict(results) == {**results}, len(results)])
        found.append((first in results, "other" in results))
        return sum(one["number"] for one in results.values())

    parts = [part.enqueue(number) for number in (1, 2, 3)]
    total = whole.options(after=parts).enqueue(parts[0].id)
    run_all(hf)
    assert total.result() == 6
    assert found == [{"number": 1}, Part(1), True, 3, (True, False)]


def test_a_coroutine_reads_them_as_well(hf: Holdfast) -> None:
    @hf.job
    async def double(context: JobContext, number: int = 0) -> int:
        return 2 * (number or sum(context.results.values()))

    first = double.enqueue(1)
    second = double.options(after=[first]).enqueue()
    run_all(hf)
    assert second.result() == 4


def test_a_job_that_is_no_parent_is_a_key_error_that_names_the_parents(hf: Holdfast) -> None:
    @hf.job(max_retries=0)
    def reads(context: JobContext) -> Any:
        return context.results["other"]

    parent = hf.handle(hf.define("holdfast.nothing").id("parent").dispatch())
    alone = reads.enqueue()
    child = reads.options(after=["parent"], on_parent_failure="run").enqueue()
    parent.cancel()
    run_all(hf)
    assert alone.view().last_error == "KeyError: \"this job does not depend on job 'other'; it has no parents\""
    assert child.view().last_error == "KeyError: \"this job does not depend on job 'other'; it depends on parent\""


def test_a_parent_without_a_result_is_an_error_that_says_why(hf: Holdfast) -> None:
    found: dict[str, str] = {}

    @hf.job(max_retries=0)
    def fails() -> None:
        raise ValueError("no luck")

    @hf.job
    def nothing() -> None: ...

    @hf.job
    def reads(context: JobContext) -> None:
        hf.backend().discard("deleted", states=[JobState.COMPLETED])
        for parent in context.results:
            with pytest.raises((JobFailed, JobCancelled, ResultGone)) as caught:
                context.results[parent]
            found[parent] = str(caught.value)
        hf.backend().replay("dead")
        with pytest.raises(ResultGone) as caught:
            context.results["dead"]
        found["replayed"] = str(caught.value)

    parents = [fails.options(id="dead").enqueue(), nothing.options(id="deleted").enqueue()]
    cancelled = nothing.options(id="cancelled", delay=3600).enqueue()
    child = reads.options(after=[*parents, cancelled], on_parent_failure="run").enqueue()
    cancelled.cancel("not needed")
    run_all(hf)
    assert child.status() is JobState.COMPLETED
    assert found == {
        "dead": "job 'dead' is dead (failed): ValueError: no luck",
        "deleted": "the record of job 'deleted' was deleted while this job was waiting or running",
        "cancelled": "job 'cancelled' was cancelled: not needed",
        "replayed": "job 'dead' has no result yet: it is pending",
    }


def test_a_child_whose_parent_failed_says_so(hf: Holdfast) -> None:
    @hf.job
    def step() -> None: ...

    parent = step.options(id="parent").enqueue()
    child = step.options(id="child", after=[parent]).enqueue()
    grandchild = step.options(id="grandchild", after=[child]).enqueue()
    parent.cancel("not needed")
    with pytest.raises(JobCancelled) as caught:
        grandchild.result()
    assert str(caught.value) == (
        "job 'grandchild' was cancelled (parent-failed): one of the jobs that it depends on failed (child)"
    )
    [edge] = hf.backend().relatives("child").parents
    assert (edge.job_id, edge.outcome) == ("parent", EdgeOutcome.CANCELLED)


def test_jobs_that_run_at_once_read_results_too() -> None:
    with Holdfast("sync://") as hf:

        @hf.job
        def double(context: JobContext, number: int = 0) -> int:
            return 2 * (number or sum(context.results.values()))

        first = double.enqueue(1)
        assert double.options(after=[first]).enqueue().result() == 4
