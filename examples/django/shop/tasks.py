"""The background tasks of the shop. Workers find tasks in the module `tasks` of each application."""

from django.core.mail import send_mail
from django_tasks import TaskContext, task

from shop.models import Order


@task(queue_name="mail", priority=50)
def confirm(order: int) -> str:
    """Send a mail to the customer. A task can run twice, so it first checks whether the mail was sent."""
    found = Order.objects.get(pk=order)
    if not found.confirmed:
        send_mail(f"Order {order}", f"You pay {found.amount}.", "shop@example.org", [found.email])
        Order.objects.filter(pk=order).update(confirmed=True)
    return found.email


@task(takes_context=True, max_retries=1)
def charge(context: TaskContext, order: int) -> int:
    """Charge the customer. For an amount of 0 it fails, is retried once, and becomes a dead letter."""
    found = Order.objects.get(pk=order)
    if found.amount <= 0:
        raise ValueError(f"order {order}: {found.amount} cannot be charged (attempt {context.attempt})")
    return found.amount


@task()
async def count_orders() -> dict[str, int]:
    """Count the orders with Django's async queries."""
    return {"orders": await Order.objects.acount(), "confirmed": await Order.objects.filter(confirmed=True).acount()}
