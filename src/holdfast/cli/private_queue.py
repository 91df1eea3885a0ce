"""The private queue of one `holdfast run`: it has one job, and only that process works on it."""

import os
import re
from typing import Final

from holdfast.values import PRIVATE_QUEUE_PATTERN

# Stands for all private queues in lists.
SHOWN: Final = "run-…"


def new_private_queue() -> str:
    """A name for a new private queue."""
    return f"run-{os.urandom(6).hex()}"


def is_private(queue: str) -> bool:
    """Whether this is the name of a private queue."""
    return re.fullmatch(PRIVATE_QUEUE_PATTERN, queue) is not None
