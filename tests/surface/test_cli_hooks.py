"""Middleware and dependencies where jobs come from the command line and run in processes of their own."""

import json

import pytest

from .terminal import Terminal

HOOKS = """
from holdfast import Middleware
from holdfast.errors import DefinitionError

class Tenancy(Middleware):
    def before_enqueue(self, definition):
        if definition.queue == "closed":
            raise DefinitionError("the queue is closed")
        return definition.with_added_meta({"tenant": "ada"})

    def before_run(self, context):
        print("tenant", context.meta["tenant"])

    def after_run(self, context, value):
        print("value", value)

    def on_run_error(self, context, error):
        print("error", error)
"""

SHOP = """
import logging
from holdfast import Depends, Holdfast

hf = Holdfast()

def session():
    print("begin")
    try:
        yield "session"
        print("commit")
    except BaseException:
        print("rollback")
        raise

@hf.job
def add(a: int, b: str = Depends(session)) -> str:
    logging.getLogger("shop").warning("adding")
    return f"{a} {b}"

@hf.job(key="fail")
async def fail(b: str = Depends(session)) -> None:
    raise ValueError("no")
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    terminal.write("shop.py", SHOP)
    terminal.write("shop_hooks.py", HOOKS)
    terminal.config.write_text('middleware = ["shop_hooks:Tenancy"]\n')
    return terminal


@pytest.mark.parametrize("concurrency", ["1", "3"])
def test_jobs_of_the_command_line_pass_through_the_configured_hooks(shop: Terminal, concurrency: str) -> None:
    jobs = [{"id": "one", "job": "add", "payload": {"a": 1}, "meta": {"kept": 1}}, {"id": "two", "job": "fail"}]
    shop("enqueue", "--max-retries", "0", json.dumps(jobs))
    assert shop.job("one")["meta"] == {"kept": 1, "tenant": "ada"}
    answer = shop("worker", "start", "shop", "--burst", "--concurrency", concurrency)
    assert answer.code == 0
    [one] = shop.job("one")["history"]
    assert one["output"] == "tenant ada\nbegin\nWARNING shop: adding\ncommit\nvalue 1 session\n"
    assert one["result"] == "1 session"
    [two] = shop.job("two")["history"]
    assert two["output"] == "tenant ada\nbegin\nrollback\nerror no\n"


def test_a_hook_that_refuses_one_of_many_keeps_none(shop: Terminal) -> None:
    jobs = [{"id": "one", "job": "add"}, {"id": "two", "job": "add", "queue": "closed"}]
    answer = shop("enqueue", json.dumps(jobs))
    assert answer.code != 0
    assert "the queue is closed" in answer.err
    assert shop.jobs() == []


def test_a_name_that_leads_nowhere_stops_the_worker_before_it_takes_a_job(shop: Terminal) -> None:
    shop("enqueue", '{"id": "one", "job": "add", "payload": {"a": 1}}')
    shop.config.write_text('middleware = ["shop_hooks:Missing"]\n')
    answer = shop("worker", "start", "shop", "--burst")
    assert answer.code != 0
    assert "cannot load the middleware 'shop_hooks:Missing'" in answer.err
    shop.config.write_text("")
    assert shop.job("one")["state"] == "pending"


def test_json_logs_of_a_worker_say_which_run_they_are_of(shop: Terminal) -> None:
    shop("enqueue", '{"id": "one", "job": "add", "payload": {"a": 1}}')
    answer = shop.program("worker", "start", "shop", "--burst", HOLDFAST_LOG_FORMAT="json")
    [line] = [line for line in answer.err.splitlines() if line.startswith("{")]
    document = json.loads(line)
    assert document.items() >= {"message": "adding", "logger": "shop", "level": "WARNING", "job_id": "one"}.items()
    assert (document["job"], document["queue"], document["attempt"], document["delivery"]) == ("add", "default", 1, 1)


def test_a_log_format_that_does_not_exist_is_refused(shop: Terminal) -> None:
    answer = shop.program("worker", "start", "shop", "--burst", HOLDFAST_LOG_FORMAT="xml")
    assert answer.code != 0
    assert "HOLDFAST_LOG_FORMAT = 'xml': choose text or json" in answer.err
