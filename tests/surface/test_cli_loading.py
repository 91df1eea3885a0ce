"""What a command does not load: help, completion and looking are as fast as what they import is little.

Times are in `benchmarks/surface.py`; here it is the set of modules, which does not depend on the machine.
"""

import re
import sys
from collections.abc import Iterator

import pytest

from .terminal import Terminal

# What runs jobs, and what only it needs.
RUNNING = {
    "asyncio",
    "holdfast.worker",
    "holdfast.execution.runtime",
    "holdfast.execution.timeout",
    "holdfast.executor",
}
# What opens a store.
STORING = {"holdfast.app", "holdfast.queues.contract", "holdfast.queues.opening", "holdfast.handlers"}
ENGINES = {"holdfast.queues.engines.memory", "psycopg", "pymysql", "redis"}
SLOW = {"dataclasses", "http.client", "logging", "ssl", "subprocess", "textual", "tomlkit"}
# What prints jobs and queues.
PRINTING = {"holdfast.cli.listing", "holdfast.cli.queue_views", "holdfast.cli.showing", "holdfast.cli.style"}
# What only a command that runs needs: to hash, to suggest a similar word, to read or write a format, to draw at random.
RARE = {"csv", "ctypes", "difflib", "hashlib", "importlib.resources", "json", "random", "secrets", "tempfile"}
# The words before the cursor, what is offered, and what has not to be loaded for that.
COMPLETED = (
    ("st", "plain,status", {"msgspec", "holdfast.config", "holdfast.cli.output", "sqlite3", *STORING, *SLOW}),
    ("list --st", "plain,--state", {"holdfast.config", "holdfast.search", "sqlite3", *STORING, *SLOW}),
    ("config get ma", "plain,max-retries", {"sqlite3", *STORING, *SLOW}),
    ("queue show ", "plain,mail", {"holdfast.definition", "logging", *PRINTING, *RARE}),
    ("show jo", "plain,job1", {"holdfast.definition", "logging", *PRINTING, *RARE}),
)
HELP_OF_ALL = """
import click
from holdfast.cli import cli
def show(command, context):
    print(command.get_help(context))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            show(inner, click.Context(inner, parent=context, info_name=name))
show(cli, click.Context(cli, info_name="holdfast"))
"""


def loaded(terminal: Terminal, *arguments: str, says: str, **environment: str) -> set[str]:
    """What was imported until a program had said this, but for the file of the command itself."""
    program = (sys.executable, "-X", "importtime", *arguments)
    answer = terminal.program(program=program, stdin="", **environment)
    assert answer.code == 0, answer.err
    assert says in answer.out
    return set(re.findall(r"^import time: .*\| +(\S+)$", answer.err, re.MULTILINE))


def among(modules: set[str], unwanted: set[str]) -> Iterator[str]:
    """Those of the modules that are one of these, or within one."""
    return (name for name in sorted(modules) if any(name == one or name.startswith(f"{one}.") for one in unwanted))


def test_the_help_of_the_program_loads_nothing_else_of_it(terminal: Terminal) -> None:
    modules = loaded(terminal, "-m", "holdfast", "--help", says="Operations:")
    ours = {name for name in modules if name.startswith("holdfast")}
    assert ours <= {"holdfast", "holdfast.cli"}
    assert not list(among(modules, {"msgspec", "json", *RUNNING, *STORING, *ENGINES, *SLOW, "sqlite3"}))


def test_the_help_of_no_command_loads_what_the_command_works_with(terminal: Terminal) -> None:
    modules = loaded(terminal, "-c", HELP_OF_ALL, says="holdfast worker start")
    assert {"holdfast.cli.selecting", "holdfast.cli.worker.options", "holdfast.config"} <= modules
    # holdfast.definition declares the options of a job, and so the options of enqueue and run.
    unwanted = {"holdfast.search", "tomllib", "sqlite3"}
    assert not list(among(modules, {*unwanted, *RUNNING, *STORING, *ENGINES, *SLOW}))


@pytest.mark.parametrize("command", ["list", "enqueue", "worker start", "config set"])
def test_the_help_of_a_command_loads_nothing_that_only_running_it_needs(terminal: Terminal, command: str) -> None:
    modules = loaded(terminal, "-m", "holdfast", *command.split(), "--help", says=f"Usage: holdfast {command}")
    unwanted = {"holdfast.cli.listing", "holdfast.config.writing", "holdfast.search", "sqlite3"}
    assert not list(among(modules, {*unwanted, *RUNNING, *STORING, *ENGINES, *SLOW, *RARE}))


def test_completing_loads_at_most_the_embedded_engine(terminal: Terminal) -> None:
    terminal("enqueue", '{"id": "job1", "job": "send", "queue": "mail"}')
    always = {*RUNNING, *ENGINES, "holdfast.app", "http.client", "ssl", "textual", "tomlkit"}
    for words, says, unwanted in COMPLETED:
        asked = {
            "_HOLDFAST_COMPLETE": "bash_complete",
            "COMP_WORDS": f"holdfast {words}",
            "COMP_CWORD": str(words.count(" ") + 1),
        }
        modules = loaded(terminal, "-m", "holdfast", says=says, **asked)
        assert not list(among(modules, always | unwanted)), words


def test_looking_at_jobs_loads_nothing_that_runs_them(terminal: Terminal) -> None:
    terminal("enqueue", '{"id": "job1", "job": "send", "queue": "mail"}')
    modules = loaded(terminal, "-m", "holdfast", "list", says="job1")
    assert "holdfast.queues.engines.sqlite.jobs" in modules
    assert not list(among(modules, {*RUNNING, *ENGINES, "http.client", "ssl", "textual", "tomlkit"}))
