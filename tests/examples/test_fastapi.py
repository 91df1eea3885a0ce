"""The FastAPI application, its worker and its own tests, as real processes."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

from tests.faults.processes import until
from tests.servers.running import free_port

from .copies import Copy, Site


def test_reports_are_built_by_a_worker_while_the_web_goes_on(copy_of: Callable[[str], Copy]) -> None:
    example = copy_of("fastapi")
    serve, work, *_, tests = example.readme()
    port = free_port()
    example.start(*serve.removesuffix(" &").replace("8000", str(port)).split())
    example.start(*work.removesuffix(" &").split())
    assert "passed" in example.run(*tests.split())
    site = Site(port)
    until(lambda: site.answers("/openapi.json") or "Traceback" in example.said(), "the server to answer")

    def report(job_id: str) -> Any:
        return site.ask("GET", f"/reports/{job_id}")[1]

    def ended(job_id: str) -> Any:
        shown = report(job_id)
        return shown if shown["state"] in ("completed", "dead") else None

    # What is wrong is told at once, and no job of it exists.
    assert site.ask("POST", "/reports", {"title": "May"})[0] == 422
    assert site.ask("GET", "/reports/unknown")[0] == 404

    status, accepted = site.ask("POST", "/reports", {"title": "May", "amounts": [1, 2.5]})
    assert status == 202
    done = until(lambda: ended(accepted["id"]), "the report")
    assert done["report"] == {"title": "May", "lines": 2, "total": 3.5}, example.said()

    # A run that fails half way is rolled back, each time.
    failed = site.ask("POST", "/reports", {"title": "June", "amounts": [3, -1]})[1]["id"]
    assert "negative" in until(lambda: ended(failed), "the dead letter")["error"]
    with closing(sqlite3.connect(example.directory / "reports.db")) as database:
        assert database.execute("SELECT amount FROM lines").fetchall() == [(1.0,), (2.5,)]

        # While somebody else writes, the run waits, and says how far it is.
        database.execute("BEGIN IMMEDIATE")
        waits = site.ask("POST", "/reports", {"title": "July", "amounts": [5]})[1]["id"]
        until(lambda: report(waits)["progress"] == 0, "its progress")
        assert report(waits)["state"] == "processing"
        database.rollback()
    assert until(lambda: ended(waits), "the report that waited")["report"]["total"] == 5

    _, worker_code = example.end()
    assert worker_code == 0, example.said()
    assert "Application shutdown complete" in example.said()
