"""The setting `app`: commands know the application without being given it."""

import pytest

from .terminal import Terminal

SHOP = """
from holdfast import Holdfast

hf = Holdfast()

@hf.job
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    terminal.write("shop.py", SHOP)
    terminal.write("holdfast.toml", 'app = "shop:hf"\n')
    return terminal


def test_a_worker_runs_the_application_of_the_settings(shop: Terminal) -> None:
    assert shop.program("enqueue", "--job", "add", "a=1", "b=2", "--id", "job1").code == 0
    ended = shop.program("worker", "start", "--burst")
    assert ended.code == 0, ended.err
    assert "handlers add" in ended.err
    assert shop.job("job1")["history"][0]["result"] == 3


def test_arguments_are_checked_against_the_application_of_the_settings(shop: Terminal) -> None:
    answer = shop.program("enqueue", "--job", "add", "a=one", "b=2")
    assert answer.code != 0
    assert "a" in answer.err
    assert shop.program("enqueue", "--job", "subtract", "a=1").code != 0
    assert shop.program("list", "--count").out.strip() == "0"


def test_an_application_on_the_command_line_comes_first(shop: Terminal) -> None:
    shop.write("other.py", SHOP.replace("add", "multiply").replace("a + b", "a * b"))
    assert "handlers multiply" in shop.program("worker", "start", "other:hf", "--burst").err


@pytest.mark.parametrize("words", ["show job1", "worker list", "queue show default", "doctor"])
def test_hints_leave_out_what_the_settings_say(shop: Terminal, words: str) -> None:
    shop.program("enqueue", "--job", "add", "a=1", "b=2", "--id", "job1")
    answer = shop.program(*words.split())
    assert "holdfast worker start\n" in answer.out + answer.err
    assert "APP" not in answer.out + answer.err


def test_doctor_checks_the_application_of_the_settings(shop: Terminal) -> None:
    shop.program("enqueue", '{"job": "unheard-of"}')
    assert "unheard-of" in shop.program("doctor").out


def test_an_application_that_cannot_be_imported_is_named(shop: Terminal) -> None:
    shop.write("holdfast.toml", 'app = "nowhere:hf"\n')
    answer = shop.program("worker", "start", "--burst")
    assert answer.code == 2
    assert "there is no module 'nowhere';" in answer.err
