"""Every example runs, in a copy of its own, and does what it says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent


class Copy:
    """The examples in a directory of their own, with a project for those that bring none."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "examples"
        shutil.copytree(EXAMPLES, self.directory, ignore=shutil.ignore_patterns("__pycache__", ".holdfast"))
        (self.directory / "holdfast.toml").touch()
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_", "PYTHON"))
        }
        self._environment = {
            **kept,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(directory),
            "LC_ALL": "C.UTF-8",
        }

    def run(self, *command: str, inside: str = ".") -> str:
        """What a command prints on stdout; it has to succeed."""
        done = subprocess.run(
            command,
            cwd=self.directory / inside,
            env=self._environment,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def jobs(self, inside: str = ".") -> dict[str, dict[str, Any]]:
        """The jobs that are kept there, by their ids."""
        listed: list[dict[str, Any]] = json.loads(self.run("holdfast", "list", "--json", inside=inside))
        return {job["id"]: job for job in listed}


@pytest.fixture
def examples(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_every_example_is_run_here() -> None:
    found = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith((".", "__"))}
    assert found == {"script.py", "handlers.py", "commands"}


def test_the_script_works_its_own_job(examples: Copy) -> None:
    kept, done = examples.run("python", "script.py").splitlines()
    (job_id,) = examples.jobs()
    assert kept == f"kept as {job_id}: pending"
    assert done == "completed: 8 words"


def test_the_job_of_the_script_can_be_worked_elsewhere(examples: Copy) -> None:
    examples.run("holdfast", "enqueue", "--id", "w", '{"job": "count_words", "payload": {"text": "one two"}}')
    printed = examples.run("holdfast", "worker", "start", "script:hf", "--burst")
    assert "[acked] count_words w (attempt 1)" in printed
    assert examples.jobs()["w"]["state"] == "completed"


def test_a_handler_class_snoozes_fails_for_good_and_cancels(examples: Copy) -> None:
    printed = re.sub(r"\d\.\d{3} s", "<span>", examples.run("python", "handlers.py"))
    assert printed.splitlines() == [
        "{'tracking': 'HF-1', 'request': 'order-1'}",
        "  snoozed: ['attempt 1 of order-1', 'snoozed after <span>']",
        "  succeeded: ['attempt 1 of order-1', 'succeeded after <span>']",
        "job 'order-2' is dead (no-retry): __main__.AddressUnknown: order 2 has no address",
        "  failed: ['attempt 1 of order-2', 'failed after <span>']",
        "job 'order-3' was cancelled: 80 kg is too heavy to send",
        "  cancelled: ['attempt 1 of order-3', 'cancelled after <span>']",
    ]


def test_commands_run_fail_and_become_dead_letters(examples: Copy) -> None:
    printed = examples.run("sh", "run.sh", inside="commands")
    assert "3 jobs queued" in printed
    jobs = examples.jobs(inside="commands")
    assert {job_id: job["state"] for job_id, job in jobs.items()} == {
        "greet": "completed",
        "sort-names": "completed",
        "broken": "dead",
    }
    assert jobs["broken"]["attempts"] == 2
    shown = json.loads(examples.run("holdfast", "show", "--json", "sort-names", inside="commands"))
    assert shown["history"][-1]["output"] == "Curie\nHopper\nLovelace\n"
