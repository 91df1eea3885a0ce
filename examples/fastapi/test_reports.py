"""Tests of the application: no server, no worker and no waiting. Run them with  pytest"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from holdfast.testing import JobKit
from reports.jobs import build
from reports.web import web


@pytest.fixture
def client(holdfast: JobKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A client of the application, with its jobs in memory and its data in a temporary file."""
    monkeypatch.setenv("REPORTS_DB", str(tmp_path / "reports.db"))
    with TestClient(web) as client:
        yield client


def lines(directory: Path) -> int:
    with sqlite3.connect(directory / "reports.db") as database:
        count: int = database.execute("SELECT count(*) FROM lines").fetchone()[0]
    return count


def test_a_report_is_built(client: TestClient, holdfast: JobKit, tmp_path: Path) -> None:
    answer = client.post("/reports", json={"title": "May", "amounts": [1, 2.5]})
    assert answer.status_code == 202
    holdfast.assert_enqueued(build, {"order": {"title": "May"}}, queue="reports", count=1)
    url = f"/reports/{answer.json()['id']}"
    assert client.get(url).json()["state"] == "pending"

    assert holdfast.drain() == {"succeeded": 1}
    shown = client.get(url).json()
    assert shown["report"] == {"title": "May", "lines": 2, "total": 3.5}
    assert lines(tmp_path) == 2


def test_a_run_that_fails_half_way_leaves_no_lines(client: TestClient, holdfast: JobKit, tmp_path: Path) -> None:
    job_id = client.post("/reports", json={"title": "June", "amounts": [1, -2]}).json()["id"]
    assert holdfast.drain() == {"retried": 1, "dead": 1}
    assert "negative" in client.get(f"/reports/{job_id}").json()["error"]
    assert lines(tmp_path) == 0


def test_an_invalid_request_is_refused_at_once(client: TestClient, holdfast: JobKit) -> None:
    assert client.post("/reports", json={"title": "July"}).status_code == 422
    assert client.get("/reports/unknown").status_code == 404
    holdfast.refute_enqueued(build)


def test_a_waiting_report_can_be_cancelled(client: TestClient, holdfast: JobKit) -> None:
    job_id = client.post("/reports", json={"title": "August", "amounts": []}).json()["id"]
    assert client.delete(f"/reports/{job_id}").json() == "cancelled"
    assert holdfast.drain() == {}
