"""The capabilities of an engine in words, for `holdfast backend info` and the documentation."""

from typing import Final

from holdfast.queues.contract import Capabilities
from holdfast.units import format_duration, format_size

MEANINGS: Final = {
    "durable": "an accepted job outlives the process that accepted it",
    "shared": "several processes can process the same jobs",
    "transactional_enqueue": "a job can be part of your own transaction (tx=)",
    "wakes_up": "a waiting worker is notified of new jobs, without polling",
    "dependencies": "a job can wait for other jobs (after=)",
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
        "dependencies": _yes_or_no(capabilities.dependencies),
        "max_wire_bytes": format_size(capabilities.max_wire_bytes),
        "delay_resolution_s": format_duration(capabilities.delay_resolution_s),
    }


def _yes_or_no(can: bool) -> str:
    return "yes" if can else "no"
