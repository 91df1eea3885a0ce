"""The private queue of one `holdfast run`: it has one job, and only that process works on it."""

import os
import re
from typing import Final

# Stands for all private queues in lists.
SHOWN = "run-…"
_PRIVATE: Final = r"run-[0-9a-f]{12}"


def new_private_queue() -> str:
    """A name for a new private queue."""
    return f"run-{os.urandom(6).hex()}"


def is_private(queue: str) -> bool:
    """Whether this is the name of a private queue."""
    return re.fullmatch(_PRIVATE, queue) is not None
