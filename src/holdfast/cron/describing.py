"""Timings in plain words."""

from holdfast.units import format_duration


def describe_expression(expression: str) -> str:
    return expression


def describe_interval(seconds: float) -> str:
    return f"every {format_duration(seconds)}"


def interval_text(seconds: float) -> str:
    """The interval as `parse_duration` reads it, in the largest unit in which it is a whole number."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:.15g}s"
