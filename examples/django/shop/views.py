"""The views: they enqueue tasks and show their results."""

import json

from django.db import transaction
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST
from django_tasks import default_task_backend
from django_tasks.exceptions import TaskResultDoesNotExist

from shop.models import Order
from shop.tasks import charge, confirm


@csrf_exempt
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Store the order and its tasks in one transaction: if the order is too large, none of them is stored."""
    wanted = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(email=wanted["email"], amount=wanted["amount"])
            confirmation = confirm.enqueue(order.pk)
            payment = charge.enqueue(order.pk)
            reserve(order)
    except OverflowError as problem:
        return JsonResponse({"error": str(problem)}, status=422)
    return JsonResponse({"order": order.pk, "confirmation": confirmation.id, "payment": payment.id}, status=202)


def reserve(order: Order) -> None:
    if order.amount > 1000:
        raise OverflowError(f"{order.amount} is more than we have in stock")


@require_GET
def show_order(_: HttpRequest, number: int) -> JsonResponse:
    order = Order.objects.filter(pk=number).first()
    if order is None:
        raise Http404(f"there is no order {number}")
    return JsonResponse({"email": order.email, "amount": order.amount, "confirmed": order.confirmed})


@require_GET
def show_task(_: HttpRequest, result_id: str) -> JsonResponse:
    try:
        result = default_task_backend.get_result(result_id)
    except TaskResultDoesNotExist:
        raise Http404(f"there is no task {result_id}") from None
    shown: dict[str, object] = {
        "task": result.task.name,
        "status": result.status,
        "attempts": result.attempts,
        "errors": [error.exception_class_path for error in result.errors],
    }
    if result.is_finished and not result.errors:
        shown["value"] = result.return_value
    return JsonResponse(shown)
