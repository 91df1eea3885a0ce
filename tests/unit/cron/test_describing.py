"""Timings in plain words."""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings, strategies as st

from holdfast.cron.describing import MAX_DESCRIPTION
from holdfast.cron.timing import Cron, Timing, instants, parse_timing
from holdfast.errors import DefinitionError

WORDS = [
    ("* * * * *", "every minute"),
    ("*/5 * * * *", "every 5 minutes"),
    ("*/2 * * * *", "every 2 minutes"),
    ("*/30 * * * *", "every 30 minutes"),
    ("0,30 * * * *", "every 30 minutes"),
    ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
    ("5,20,35,50 * * * *", "at minutes 5, 20, 35 and 50 of every hour"),
    ("10-20 * * * *", "at minutes 10-20 of every hour"),
    ("0-5,30 * * * *", "at minutes 0-5 and 30 of every hour"),
    ("0 * * * *", "every hour"),
    ("5 * * * *", "every hour at :05"),
    ("0 */2 * * *", "every 2 hours"),
    ("15 */2 * * *", "every 2 hours at :15"),
    ("0 */6 * * *", "every 6 hours"),
    ("0 */12 * * *", "every day at 00:00 and 12:00"),
    ("0 */5 * * *", "every day at 00:00, 05:00, 10:00, 15:00 and 20:00"),
    ("0 1 * * *", "every day at 01:00"),
    ("0 1,13 * * *", "every day at 01:00 and 13:00"),
    ("30 9,17 * * *", "every day at 09:30 and 17:30"),
    ("0 9-17 * * *", "every hour from 09:00 to 17:00"),
    ("30 9-17 * * 1-5", "every hour from 09:30 to 17:30 on weekdays"),
    ("*/15 9-17 * * *", "every 15 minutes from 09:00 to 17:45"),
    ("*/15 2 * * *", "every 15 minutes from 02:00 to 02:45"),
    ("* 2 * * *", "every minute from 02:00 to 02:59"),
    ("0,15 2 * * *", "every day at 02:00 and 02:15"),
    ("*/15 0,2,4 * * *", "every 15 minutes in the hours 0, 2 and 4"),
    ("* 9-17 * * *", "every minute from 09:00 to 17:59"),
    ("7,13 9-17 * * *", "at minutes 7 and 13 in the hours 9-17"),
    ("0 9-10 * * *", "every day at 09:00 and 10:00"),
    ("0 1,3,5,7,9,11,13 * * *", "at :00 in the hours 1, 3, 5, 7, 9, 11 and 13"),
    ("0 9 * * 1", "Mondays at 09:00"),
    ("0 9 * * MON,WED,FRI", "Mondays, Wednesdays and Fridays at 09:00"),
    ("0 9 * * MON-FRI", "weekdays at 09:00"),
    ("0 9 * * SAT,SUN", "weekends at 09:00"),
    ("0 9 * * 6-7", "weekends at 09:00"),
    ("0 9 * * 1-4", "Mondays to Thursdays at 09:00"),
    ("0 9 * * 5-7", "Fridays to Sundays at 09:00"),
    ("0 9 * * 0", "Sundays at 09:00"),
    ("*/5 * * * 1", "every 5 minutes on Mondays"),
    ("0 0 1 * *", "the 1st of every month at 00:00"),
    ("0 0 1,15 * *", "the 1st and 15th of every month at 00:00"),
    ("0 0 1-7 * *", "the 1st to 7th of every month at 00:00"),
    ("0 0 L * *", "the last day of every month at 00:00"),
    ("0 0 LW * *", "the last weekday of every month at 00:00"),
    ("0 0 1,L * *", "the 1st and last day of every month at 00:00"),
    ("0 0 1 1 *", "the 1st of January at 00:00"),
    ("0 0 1 */3 *", "the 1st of January, April, July and October at 00:00"),
    ("0 0 1 1,7 *", "the 1st of January and July at 00:00"),
    ("0 0 * 6 *", "every day in June at 00:00"),
    ("*/5 * * 6 *", "every 5 minutes in June"),
    ("0 0 * 6-8 *", "every day in June to August at 00:00"),
    ("0 9 * 6 1", "Mondays in June at 09:00"),
    ("*/10 8-18 * 1-3 1-5", "every 10 minutes from 08:00 to 18:50 on weekdays in January to March"),
    ("0 9 * * MON#2", "the second Monday of every month at 09:00"),
    ("0 9 * * 5L", "the last Friday of every month at 09:00"),
    ("0 9 * 12 5L", "the last Friday of December at 09:00"),
    ("0 9 * * MON#1,MON#3", "the first Monday of every month and the third Monday of every month at 09:00"),
    ("0 9 * * 1,5L", "Mondays and the last Friday of every month at 09:00"),
    ("0 0 13 * 5", "the 13th of every month and all Fridays at 00:00"),
    ("0 0 13 6 5", "the 13th of June and all Fridays in June at 00:00"),
    ("0 0 13 * MON#2", "the 13th of every month and the second Monday of every month at 00:00"),
    ("0 0 */2 * *", "odd days of every month at 00:00"),
    ("0 0 2-30/2 * *", "even days of every month at 00:00"),
    ("0 0 */2 * 1", "Mondays, if on odd days of every month at 00:00"),
    ("0 0 */10 * *", "the 1st, 11th, 21st and 31st of every month at 00:00"),
    ("0 0 1-7 * */7", "Sundays, if on the 1st to 7th of every month at 00:00"),
    ("0 0 29 2 *", "the 29th of February at 00:00"),
    ("0 0 1-31 * 1", "every day at 00:00"),
    ("59 23 31 12 *", "the 31st of December at 23:59"),
    ("@hourly", "every hour"),
    ("@daily", "every day at 00:00"),
    ("@weekly", "Sundays at 00:00"),
    ("@monthly", "the 1st of every month at 00:00"),
    ("@yearly", "the 1st of January at 00:00"),
    (
        "1,3,7,9,20,33,41,59 1,3,7,9,20,23 1,3,5,9,11,20 1,3,6,8,11 1,3,5",
        "at times that match 1,3,7,9,20,33,41,59 1,3,7,9,20,23 1,3,5,9,11,20 1,3,6,8,11 1,3,5",
    ),
    ("0/20 5/6 * * *", "every 20 minutes in the hours 5, 11, 17 and 23"),
    ("every 90s", "every 90 seconds"),
    ("every 1h", "every hour"),
    ("every 1d", "every day"),
    ("every 1.5s", "every 1.5 seconds"),
    ("every 2w", "every 14 days"),
    ("every 300", "every 5 minutes"),
]


@pytest.mark.parametrize(("text", "words"), WORDS)
def test_a_timing_in_plain_words(text: str, words: str) -> None:
    assert parse_timing(text).describe() == words


def test_the_same_words_mean_the_same_instants() -> None:
    described: dict[str, Timing] = {}
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for text, _ in WORDS:
        timing = parse_timing(text)
        other = described.setdefault(timing.describe(), timing)
        assert timing == other or instants(timing, begin, None, 500) == instants(other, begin, None, 500)


numbers = st.integers(0, 70).map(str)
terms = st.one_of(
    st.just("*"),
    numbers,
    st.builds("{}-{}".format, numbers, numbers),
    st.builds("{}/{}".format, st.one_of(st.just("*"), numbers, st.builds("{}-{}".format, numbers, numbers)), numbers),
    st.sampled_from(
        ["L", "LW", "5L", "MON#2", "JAN", "MON-FRI", "SUN", "1--100000000", "0-99999999999", "*/*", "#", ""]
    ),
)
expressions = st.lists(st.lists(terms, min_size=1, max_size=9).map(",".join), min_size=5, max_size=5).map(" ".join)


@st.composite
def valid_expressions(draw: st.DrawFn) -> str:
    ranges = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
    lists = [draw(st.lists(st.integers(low, high), min_size=1, max_size=40, unique=True)) for low, high in ranges]
    return " ".join("*" if draw(st.booleans()) else ",".join(map(str, sorted(numbers))) for numbers in lists)


@settings(deadline=None)
@given(st.one_of(valid_expressions(), expressions, st.text(max_size=40)))
def test_a_description_is_short_and_every_error_is_ours(text: str) -> None:
    began = time.process_time()
    try:
        timing = parse_timing(text)
    except DefinitionError:
        pass
    else:
        words = timing.describe()
        assert words.isprintable()
        assert 5 <= len(words) <= MAX_DESCRIPTION
        assert parse_timing(timing.text(), timing.zone) == timing
    assert time.process_time() - began < 1


def test_an_expression_without_short_words_is_described_by_itself() -> None:
    minutes = ",".join(str(minute) for minute in range(60) if minute % 3)
    words = Cron(f"{minutes} 1,3,5,9,11 1,3,5,9,11 1,3,5,9,11 1,3,5").describe()
    assert words.startswith("at times that match 1,2,4,5,7")
    assert words.endswith("…")
    assert len(words) <= MAX_DESCRIPTION
