"""The Django project, its worker and its own tests, as real processes."""

import json
from collections.abc import Callable
from typing import Any

from tests.faults.processes import until
from tests.servers.running import free_port

from .copies import Copy, Site


def test_orders_and_their_tasks_are_one(copy_of: Callable[[str], Copy]) -> None:
    example = copy_of("django")
    migrate, tests, serve, work, _, _, dead_letters = example.readme()
    example.run(*migrate.split())
    port = free_port()
    example.start(*serve.removesuffix(" &").replace("8000", f"127.0.0.1:{port} --noreload").split())
    example.start(*work.removesuffix(" &").split())
    example.run(*tests.split())
    site = Site(port)
    until(lambda: site.answers("/orders/1") or "Traceback" in example.said(), "the server to answer")

    def ended(task: str) -> Any:
        shown = site.ask("GET", f"/tasks/{task}")[1]
        return shown if shown["status"] in ("SUCCESSFUL", "FAILED") else None

    # An order that is refused after its tasks were enqueued leaves neither.
    assert site.ask("POST", "/orders", {"email": "ada@example.org", "amount": 5000})[0] == 422
    assert site.ask("GET", "/orders/1")[0] == 404

    status_code, placed = site.ask("POST", "/orders", {"email": "ada@example.org", "amount": 20})
    assert status_code == 202, example.said()
    confirmed = until(lambda: ended(placed["confirmation"]), "the confirmation")
    assert confirmed == {
        "task": "confirm",
        "status": "SUCCESSFUL",
        "attempts": 1,
        "errors": [],
        "value": "ada@example.org",
    }, example.said()
    assert site.ask("GET", f"/orders/{placed['order']}")[1]["confirmed"] is True
    assert until(lambda: ended(placed["payment"]), "the payment")["value"] == 20
    (mail,) = (example.directory / "outbox").iterdir()
    assert "To: ada@example.org" in mail.read_text(encoding="utf-8")

    refused = site.ask("POST", "/orders", {"email": "ada@example.org", "amount": 0})[1]["payment"]
    shown = until(lambda: ended(refused), "the dead letter")
    assert shown["errors"] == ["builtins.ValueError"] * 2
    assert shown["attempts"] == 2
    assert site.ask("GET", "/tasks/unknown")[0] == 404

    (listed,) = json.loads(example.run(*dead_letters.split(), "--json"))
    assert listed["id"] == refused
    _, worker_code = example.end()
    assert worker_code == 0, example.said()
