"""Rates as people write them."""

import pytest

from holdfast.rates import Rate, parse_rate

FORMAT = "write a number and a unit, such as 10/s"


@pytest.mark.parametrize(
    ("value", "text", "per_s", "burst"),
    [
        ("60/min", "60/min", 1.0, 1),
        ("10/s", "10/s", 10.0, 10),
        ("100/h", "100/h", 100 / 3600, 1),
        ("5/d", "5/d", 5 / 86_400, 1),
        ("90/min", "90/min", 1.5, 1),
        ("600 / Minute", "600/min", 10.0, 10),
        (" 2.5/sec ", "2.5/s", 2.5, 2),
        (60, "60/min", 1.0, 1),
        (0.5, "0.5/min", 0.5 / 60, 1),
        ("30", "30/min", 0.5, 1),
        ("10/s,burst=20", "10/s,burst=20", 10.0, 20),
        ("10/s, burst = 10", "10/s", 10.0, 10),
        ({"rate": "10/s"}, "10/s", 10.0, 10),
        ({"rate": "10/s", "burst": 20}, "10/s,burst=20", 10.0, 20),
        ({"rate": 120, "burst": 1}, "120/min,burst=1", 2.0, 1),
    ],
)
def test_a_rate_is_read_and_written_in_one_spelling(value: object, text: str, per_s: float, burst: int) -> None:
    rate = parse_rate(value)
    assert rate is not None
    assert (str(rate), rate.burst) == (text, burst)
    assert rate.per_s == pytest.approx(per_s)
    assert rate.each_s == pytest.approx(1 / per_s)
    assert parse_rate(text) == rate


@pytest.mark.parametrize("value", [0, 0.0, "0", "0/s", {"rate": 0, "burst": 3}])
def test_zero_is_no_limit(value: object) -> None:
    assert parse_rate(value) is None


def test_a_burst_can_be_given_apart() -> None:
    assert parse_rate("10/s", burst=3) == Rate(number=10.0, unit="s", burst=3)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        *((value, FORMAT) for value in ("", "10/", "/s", "-1/s", "10/w", "10 s", "1e3/s", "10/s,burst", True, None)),
        *((value, "use a rate from 0.0864/d to 1000000/s") for value in ("0.01/d", "2000000/s", -1, float("nan"))),
        ("10/s,burst=0", "the burst must be between 1 and 1,000,000, not 0"),
        ({"rate": "10/s", "burst": "20"}, "the burst must be an integer, not '20'"),
        ({"rate": "10/s", "burst": True}, "the burst must be an integer, not True"),
        ({"rate": "10/s", "bursts": 20}, "a table has a rate and may have a burst"),
        ({"burst": 20}, "a table has a rate and may have a burst"),
        ({"rate": {"rate": 1}}, "a table has a rate and may have a burst"),
    ],
)
def test_anything_else_is_refused_with_the_format(value: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_rate(value)
