"""What an engine can do, in words: `holdfast backend info` and the documentation say the same."""

from typing import Final

from holdfast.queues.contract import Capabilities

MEANINGS: Final = {
    "durable": "an accepted job outlives the process that accepted it",
    "shared": "several processes can work the same jobs",
    "transactional_enqueue": "a job can be part of your own transaction (tx=)",
    "wakes_up": "a waiting worker is told of new jobs, and need not look for them",
    "max_wire_bytes": "the largest message, signature included",
    "delay_resolution_s": "how exactly a due time is kept",
}


def answers(capabilities: Capabilities) -> dict[str, str]:
    """Each capability with its answer."""
    return {
        "durable": _yes_or_no(capabilities.durable),
        "shared": _yes_or_no(capabilities.shared),
        "transactional_enqueue": _yes_or_no(capabilities.transactional_enqueue),
        "wakes_up": _yes_or_no(capabilities.wakes_up),
        "max_wire_bytes": _size(capabilities.max_wire_bytes),
        "delay_resolution_s": _span(capabilities.delay_resolution_s),
    }


def _yes_or_no(can: bool) -> str:
    return "yes" if can else "no"


def _size(size: int) -> str:
    for unit, bytes_each in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_each:
            return f"{size / bytes_each:.3g} {unit}"
    return f"{size} bytes"


def _span(seconds: float) -> str:
    for unit, seconds_each in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= seconds_each:
            return f"{seconds / seconds_each:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
