"""What the shop does in the background. Workers find tasks in the module `tasks` of each application."""

from django.core.mail import send_mail
from django_tasks import TaskContext, task

from shop.models import Order


@task(queue_name="mail", priority=50)
def confirm(order: int) -> str:
    """Write to the customer. A run may happen twice, so it looks first whether it has to."""
    found = Order.objects.get(pk=order)
    if not found.confirmed:
        send_mail(f"Order {order}", f"You pay {found.amount}.", "shop@example.org", [found.email])
        Order.objects.filter(pk=order).update(confirmed=True)
    return found.email


@task(takes_context=True, max_retries=1)
def charge(context: TaskContext, order: int) -> int:
    """Fails for orders of nothing: once more it is tried, then it is a dead letter."""
    found = Order.objects.get(pk=order)
    if found.amount <= 0:
        raise ValueError(f"order {order}: {found.amount} cannot be charged (attempt {context.attempt})")
    return found.amount


@task()
async def count_orders() -> dict[str, int]:
    """A coroutine, with Django's asynchronous queries."""
    return {"orders": await Order.objects.acount(), "confirmed": await Order.objects.filter(confirmed=True).acount()}
