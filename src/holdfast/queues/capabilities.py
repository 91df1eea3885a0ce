"""The capabilities of an engine in words, for `holdfast backend info` and the documentation."""

from typing import Final

from holdfast.queues.contract import Capabilities

MEANINGS: Final = {
    "durable": "an accepted job outlives the process that accepted it",
    "shared": "several processes can process the same jobs",
    "transactional_enqueue": "a job can be part of your own transaction (tx=)",
    "wakes_up": "a waiting worker is notified of new jobs, without polling",
    "max_wire_bytes": "the largest message, signature included",
    "delay_resolution_s": "the precision of due times",
}


def answers(capabilities: Capabilities) -> dict[str, str]:
    """The value of each capability as text."""
    return {
        "durable": _yes_or_no(capabilities.durable),
        "shared": _yes_or_no(capabilities.shared),
        "transactional_enqueue": _yes_or_no(capabilities.transactional_enqueue),
        "wakes_up": _yes_or_no(capabilities.wakes_up),
        "max_wire_bytes": _size(capabilities.max_wire_bytes),
        "delay_resolution_s": _duration(capabilities.delay_resolution_s),
    }


def _yes_or_no(can: bool) -> str:
    return "yes" if can else "no"


def _size(size: int) -> str:
    for unit, bytes_each in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_each:
            return f"{size / bytes_each:.3g} {unit}"
    return f"{size} bytes"


def _duration(seconds: float) -> str:
    for unit, seconds_each in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= seconds_each:
            return f"{seconds / seconds_each:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
