"""The queue of one `holdfast run`: made for one job, worked by one process, and by nobody once that is gone."""

import re

SHOWN = "run-…"
_private = re.compile(r"run-[0-9a-f]{12}")


def new_private_queue() -> str:
    import secrets

    return f"run-{secrets.token_hex(6)}"


def is_private(queue: str) -> bool:
    return _private.fullmatch(queue) is not None
