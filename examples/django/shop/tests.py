"""Tests of the shop. Jobs are stored in memory, and run when a test calls `drain`."""

from django.core import mail
from django.test import TestCase

from holdfast.contrib.django.worker import application
from holdfast.testing import JobKit
from shop.models import Order


class ShopTest(TestCase):
    def setUp(self) -> None:
        self.jobs = self.enterContext(JobKit(application("default")))

    def order(self, amount: int) -> "dict[str, str]":
        answer = self.client.post("/orders", {"email": "ada@example.org", "amount": amount}, "application/json")
        found: dict[str, str] = answer.json()
        return found

    def test_an_order_is_confirmed_and_charged(self) -> None:
        placed = self.order(20)
        self.jobs.assert_enqueued("shop.tasks.confirm", queue="mail", priority=7, count=1)
        assert self.jobs.drain() == {"succeeded": 2}
        assert [message.subject for message in mail.outbox] == [f"Order {placed['order']}"]
        assert self.client.get(f"/tasks/{placed['payment']}").json()["value"] == 20

    def test_an_order_of_0_cannot_be_charged(self) -> None:
        placed = self.order(0)
        assert self.jobs.drain() == {"succeeded": 1, "retried": 1, "dead": 1}
        shown = self.client.get(f"/tasks/{placed['payment']}").json()
        assert shown["status"] == "FAILED"
        assert shown["errors"] == ["builtins.ValueError"] * 2

    def test_an_order_that_is_too_large_is_not_stored(self) -> None:
        assert "error" in self.order(5000)
        assert Order.objects.count() == 0
