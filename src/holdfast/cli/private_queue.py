"""The private queue of one `holdfast run`: it has one job, and only that process works on it."""

import re

# Stands for all private queues in lists.
SHOWN = "run-…"
_private = re.compile(r"run-[0-9a-f]{12}")


def new_private_queue() -> str:
    """A name for a new private queue."""
    import secrets

    return f"run-{secrets.token_hex(6)}"


def is_private(queue: str) -> bool:
    """Whether this is the name of a private queue."""
    return _private.fullmatch(queue) is not None
