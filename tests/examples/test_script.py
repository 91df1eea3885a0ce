"""The plain scripts and the command jobs run, and do what they say."""

import json
import re
from collections.abc import Callable

from .copies import EXAMPLES, Copy


def test_every_example_is_run_and_told() -> None:
    found = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))}
    assert found == {"script", "commands", "fastapi", "django"}
    assert all((EXAMPLES / name / "README.md").is_file() for name in found)


def test_the_scripts_run_as_their_page_says(copy_of: Callable[[str], Copy]) -> None:
    example = copy_of("script")
    words, parcels, *elsewhere = example.readme()

    kept, done = example.run("sh", "-c", words).splitlines()
    (job_id,) = example.jobs()
    assert kept == f"stored as {job_id}: pending"
    assert done == "completed: 8 words"

    printed = re.sub(r"\d\.\d{3} s", "<span>", example.run("sh", "-c", parcels))
    assert printed.splitlines() == [
        "{'tracking': 'HF-1', 'request': 'order-1'}",
        "  snoozed: ['attempt 1 of order-1', 'snoozed after <span>']",
        "  succeeded: ['attempt 1 of order-1', 'succeeded after <span>']",
        "job 'order-2' is dead (no-retry): __main__.AddressUnknown: order 2 has no address",
        "  failed: ['attempt 1 of order-2', 'failed after <span>']",
        "job 'order-3' was cancelled: 80 kg is too heavy to send",
        "  cancelled: ['attempt 1 of order-3', 'cancelled after <span>']",
    ]

    _, worked, shown = [example.run("sh", "-c", command) for command in elsewhere]
    assert "count_words w done in" in worked
    assert re.search(r"^state +completed$", shown, re.MULTILINE)


def test_commands_fail_become_dead_letters_and_are_mended(copy_of: Callable[[str], Copy]) -> None:
    example = copy_of("commands")
    *_, logs = [example.run("sh", "-c", command) for command in example.readme()]
    assert logs.splitlines()[-3:] == ["Curie", "Hopper", "Lovelace"]
    jobs = example.jobs()
    assert {job["state"] for job in jobs.values()} == {"completed"}
    assert len(jobs) == 4
    told = json.loads(example.run("holdfast", "show", "--json", "totals"))
    assert [attempt["outcome"] for attempt in told["history"]] == ["failed", "failed", "succeeded"]


def test_the_script_of_the_commands_does_the_same_in_one_go(copy_of: Callable[[str], Copy]) -> None:
    script = (EXAMPLES / "commands" / "run.sh").read_text(encoding="utf-8")
    said = [line.replace(" >", " > ") for line in script.splitlines() if line and not line.startswith(("#", "set "))]
    assert said == copy_of("commands").readme()
