"""Several backends on the command line: a queue is worked, shown and changed where it is."""

from pathlib import Path

import pytest

from .terminal import Terminal

JOBS = "def resize(width: int) -> str:\n    return f'{width} pixels'\n"
SETTINGS = """\
handlers = ["shop_jobs:resize"]
[backends]
reports = "sqlite:///reports.db"
[routes]
nightly = "reports"
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    terminal.config.write_text(SETTINGS)
    (terminal.config.parent / "shop_jobs.py").write_text(JOBS)
    return terminal


def test_a_queue_is_filled_worked_shown_and_changed_where_it_is(shop: Terminal) -> None:
    kept = shop("enqueue", "--job", "resize", "width:=640", "--queue", "nightly", "--id", "n1")
    assert (kept.code, kept.out) == (0, "✓ n1 queued on nightly\n")
    assert "reports.db" in kept.err
    assert shop("enqueue", "--job", "resize", "width:=5", "--id", "d1").code == 0

    assert shop("list", "-q").out == "d1\n"
    assert shop("list", "-q", "--queue", "nightly").out == "n1\n"
    assert shop("list", "-q", "--url", "reports").out == "n1\n"
    assert "nightly" in shop("queue", "show", "nightly").out
    assert shop("queue", "pause", "nightly").code == 0
    assert shop("status", "--queue", "nightly").out.startswith(str(Path(shop.config.parent, "reports.db")))
    assert "holdfast status --url reports" in shop("status").err
    assert shop("queue", "resume", "nightly").out == "✓ nightly resumed\n"

    worked = shop("worker", "start", "--queue", "nightly", "--burst")
    assert worked.code == 0, worked.err
    assert "reports.db" in worked.err
    assert "n1" in worked.out
    assert shop("show", "n1", "--json").json == shop("show", "n1", "--url", "reports", "--json").json
    assert shop("wait", "n1").out == '"640 pixels"\n'
    assert shop("show", "n2").code == 3
    assert shop("show", "n1", "--json").json["history"][0]["result"] == "640 pixels"
    assert shop("list", "-q", "--state", "pending").out == "d1\n"
    assert shop("queue", "purge", "nightly", "--yes").code == 0
    assert shop("list", "-q", "--url", "reports").out == ""


def test_what_is_in_two_backends_is_refused_with_what_to_do(shop: Terminal) -> None:
    for words in (["worker", "start", "--queue", "nightly,default"], ["queue", "pause", "nightly", "default"]):
        answer = shop(*words)
        assert answer.code == 2
        assert "handle the queues of each backend separately" in answer.err
    both = '[{"job": "resize", "queue": "nightly"}, {"job": "resize"}]'
    answer = shop("enqueue", both)
    assert answer.code == 2
    assert "handle the queues of each backend separately" in answer.err
    assert shop("list", "-q").out == ""


def test_the_doctor_looks_into_each(shop: Terminal) -> None:
    for _ in range(2):
        shop("enqueue", "--job", "resize", "--queue", "nightly")
    answer = shop("doctor", "--json")
    assert answer.code == 1
    found = [one for one in answer.json["findings"] if one["level"] == "error"]
    assert [one["message"] for one in found] == ["reports: nightly has 2 jobs waiting and no worker"]
    assert shop("doctor", "--url", "default").code == 0
    assert "nightly has 2 jobs waiting" in shop("doctor", "--url", "reports").out


def test_the_doctor_minds_no_backend_that_a_variable_names(shop: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BACKEND_SECRET", "sqlite:///secret.db")
    shop.config.write_text('url = "sqlite:///jobs.db"\n[routes]\nnightly = "secret"\n')
    answer = shop("doctor")
    assert "names no backend" not in answer.out
    assert answer.code == 0, answer.out


def test_health_says_whom_it_has_not_asked(shop: Terminal) -> None:
    answer = shop("health", "--live")
    assert answer.err == "backend reports was not checked:  holdfast health --url reports\n"


def test_the_check_of_the_settings_looks_at_each(shop: Terminal) -> None:
    shop.config.write_text('[backends]\ncache = "redis://db/0"\n')
    answer = shop("config", "check")
    assert answer.code == 2
    assert "'redis://db/0' is shared with other machines" in answer.out


def test_a_backend_that_is_not_there_is_named_with_the_nearest(shop: Terminal) -> None:
    answer = shop("list", "--url", "report")
    assert answer.code == 2
    assert "there is no backend 'report'; did you mean 'reports'?" in answer.err


def test_the_schema_of_each_is_made_by_its_name(shop: Terminal) -> None:
    answer = shop("migrate")
    assert answer.code == 0
    assert "holdfast migrate --url reports" in answer.err
    assert not (shop.config.parent / "reports.db").exists()
    assert shop("migrate", "--url", "reports").code == 0
    assert (shop.config.parent / "reports.db").exists()
