"""Declared queues: if the setting `queues` lists any, every other name is a mistake."""

import re
from collections.abc import Collection

from holdfast.spelling import did_you_mean
from holdfast.values import PRIVATE_QUEUE_PATTERN


def undeclared(queue: str, declared: Collection[str]) -> str | None:
    """The problem with a queue that is not declared; None if there is none, or if any name may be used.

    The private queues of `holdfast run` need not be declared.
    """
    if not declared or queue in declared or re.fullmatch(PRIVATE_QUEUE_PATTERN, queue):
        return None
    hint = did_you_mean(queue, declared) or f"declared queues: {', '.join(declared)}"
    return f"queue '{queue}' is not declared; {hint}"
