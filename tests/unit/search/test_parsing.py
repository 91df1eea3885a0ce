"""The language of searches: what can be said, what it means, and how a mistake is answered."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from holdfast.clock import to_us
from holdfast.errors import SearchRejected
from holdfast.search import Search, parse
from holdfast.search.parsing import ALIASES, FIELDS
from holdfast.search.terms import (
    Compared,
    Comparison,
    Measure,
    Pattern,
    Range,
    RangeTerm,
    Root,
    StateTerm,
    TextField,
    TextTerm,
    ValueTerm,
    WordTerm,
)
from holdfast.values import JobState

NOW = datetime(2026, 11, 16, 12, 30, 5, 250_000, tzinfo=UTC)
HOUR = 3_600_000_000


def read(text: str) -> Search:
    return parse(text, now=NOW, zone=UTC)


def us(text: str) -> int:
    return to_us(datetime.fromisoformat(text).replace(tzinfo=UTC))


def test_every_term_of_a_search_is_read() -> None:
    assert read("state:dead error:Timeout args.user:42 age:>1h") == Search(
        (
            StateTerm(states=(JobState.DEAD,)),
            TextTerm(field=TextField.ERROR, patterns=(Pattern("Timeout"),)),
            ValueTerm(root=Root.ARGS, path=("user",), operands=(Pattern("42"),)),
            RangeTerm(field=Measure.AGE, ranges=(Range(least=HOUR + 1),)),
        )
    )


@pytest.mark.parametrize("text", ["", "  ", "\n\t"])
def test_nothing_said_is_everything_meant(text: str) -> None:
    assert read(text) == Search()


@pytest.mark.parametrize(
    "text", ["-state:dead", "!state:dead", "state:!dead", "-state:!!dead", "!status:DEAD", "-state=dead"]
)
def test_a_term_is_negated_by_a_sign(text: str) -> None:
    assert read(text) == Search((StateTerm(states=(JobState.DEAD,), is_negated=True),))


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("id:a,b", (Pattern("a"), Pattern("b"))),
        ('id:"a,b c"', (Pattern("a,b c", is_quoted=True),)),
        ("id:'it\\'s'", (Pattern("it's", is_quoted=True),)),
        (r'id:"a\"\\"', (Pattern('a"\\', is_quoted=True),)),
        ("id:send_*", (Pattern("send_*"),)),
        ("id:can't", (Pattern("can't"),)),
        ("id:a:b", (Pattern("a:b"),)),
        ("id=a", (Pattern("a"),)),
    ],
)
def test_texts_are_words_or_quoted(text: str, pattern: tuple[Pattern, ...]) -> None:
    assert read(text) == Search((TextTerm(field=TextField.ID, patterns=pattern),))


@pytest.mark.parametrize(
    ("text", "pattern"),
    [("oops", Pattern("oops")), ('"a: b"', Pattern("a: b", is_quoted=True)), ("shop.send", Pattern("shop.send"))],
)
def test_what_names_no_field_is_a_free_word(text: str, pattern: Pattern) -> None:
    assert read(text) == Search((WordTerm(pattern=pattern),))
    assert read(f"-{text}") == Search((WordTerm(pattern=pattern, is_negated=True),))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("attempts:2", Range(2, 2)),
        ("attempts:>2", Range(least=3)),
        ("attempts>=2", Range(least=2)),
        ("attempts:<2", Range(most=1)),
        ("attempts:<=2", Range(most=2)),
        ("attempts:2..4", Range(2, 4)),
        ("attempts:2..", Range(least=2)),
        ("attempts:..4", Range(most=4)),
        ("attempts:*", Range()),
    ],
)
def test_numbers_are_compared(text: str, part: Range) -> None:
    assert read(text) == Search((RangeTerm(field=Measure.ATTEMPTS, ranges=(part,)),))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("2026-11-15", Range(us("2026-11-15"), us("2026-11-16") - 1)),
        (">2026-11-15", Range(least=us("2026-11-16"))),
        (">=2026-11-15", Range(least=us("2026-11-15"))),
        ("<2026-11-15", Range(most=us("2026-11-15") - 1)),
        ("<=2026-11-15", Range(most=us("2026-11-16") - 1)),
        ("2026-11-14..2026-11-15", Range(us("2026-11-14"), us("2026-11-16") - 1)),
        ("today", Range(us("2026-11-16"), us("2026-11-17") - 1)),
        ("yesterday..", Range(least=us("2026-11-15"))),
        ("14:00", Range(us("2026-11-16T14:00"), us("2026-11-16T14:01") - 1)),
        ("2026-11-15T14:00:05", Range(us("2026-11-15T14:00:05"), us("2026-11-15T14:00:06") - 1)),
        ("2026-11-15T14:00:05.5", Range(us("2026-11-15T14:00:05.500000"), us("2026-11-15T14:00:05.500000"))),
        ("2026-11-15T14:00+02:00", Range(us("2026-11-15T12:00"), us("2026-11-15T12:01") - 1)),
        (">=2h", Range(least=to_us(NOW) - 2 * HOUR)),
        ("<+2h", Range(most=to_us(NOW) + 2 * HOUR - 1)),
        ("<now", Range(most=to_us(NOW) - 1)),
    ],
)
def test_moments_are_as_precise_as_they_are_said(text: str, part: Range) -> None:
    assert read(f"due:{text}") == Search((RangeTerm(field=Measure.DUE, ranges=(part,)),))


def test_a_day_is_one_of_the_zone() -> None:
    there = timezone(timedelta(hours=2))
    found = parse("due:2026-11-15", now=NOW, zone=there)
    assert found == Search(
        (RangeTerm(field=Measure.DUE, ranges=(Range(us("2026-11-14T22:00"), us("2026-11-15T22:00") - 1),)),)
    )


@pytest.mark.parametrize(
    ("text", "path", "operand"),
    [
        ("args.user.id:42", ("user", "id"), Pattern("42")),
        ('args."a.b".0:"42"', ("a.b", "0"), Pattern("42", is_quoted=True)),
        ("payload.amount:>=1.5", ("amount",), Compared(Comparison.FROM, 1.5)),
        ("args.amount<10", ("amount",), Compared(Comparison.BELOW, 10)),
        ("args:needle", (), Pattern("needle")),
    ],
)
def test_paths_lead_to_typed_values(text: str, path: tuple[str, ...], operand: Pattern | Compared) -> None:
    assert read(text) == Search((ValueTerm(root=Root.ARGS, path=path, operands=(operand,)),))


@pytest.mark.parametrize("field", ["args.user.id", "meta.n", "payload.user", "attempts"])
@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
def test_a_comparison_may_leave_out_the_colon(field: str, sign: str) -> None:
    assert read(f"{field}{sign}1") == read(f"{field}:{sign}1")
    assert not isinstance(read(f"{field}{sign}1").terms[0], WordTerm)


@pytest.mark.parametrize("text", ["a>b", "x->y", "shop.send>1", "<Future", "List[int]>"])
def test_a_word_may_have_a_sign_in_it(text: str) -> None:
    assert read(text) == Search((WordTerm(pattern=Pattern(text)),))


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("stat:dead", 1, "'stat' is not a field; did you mean 'state'? use state, id, queue"),
        ("queue:mail ERR0R:x", 12, "did you mean 'error'?"),
        ("http://x", 1, "quote a text that contains a colon"),
        ("state:ded", 7, "'ded' is not a state; did you mean 'dead'? use blocked, scheduled"),
        ("state:dead,fialed", 12, "did you mean 'failed'?"),
        ("state:dead,", 12, "a value is missing here"),
        ("state:", 7, "'state:' needs a value"),
        ("state: dead", 7, "'state:' needs a value"),
        ("queue:>a", 7, "quote a value that starts with '>'"),
        ("reason:timout", 8, "did you mean 'timeout'?"),
        ("reason:whim", 8, "'whim' is not a dead-letter reason; use failed, timeout"),
        ("attempts:many", 10, "write an integer, as in attempts:3, attempts:>2 or attempts:2..4"),
        ("attempts:2,x", 12, "write an integer"),
        ("age:1h", 5, "age:>1h or age:<1h"),
        ("age:>soon", 5, "write a duration such as 90s, 15m, 2h or 3d"),
        ("age:>+1h", 5, "write a duration"),
        ("due:2h", 5, "due:>2h or due:<2h"),
        ("due:2026-13-01", 5, "2h is two hours ago"),
        ("due:>9999-12-31", 5, "2h is two hours ago"),
        ("due:<99999999999d", 5, "2h is two hours ago"),
        ("args.:1", 6, "a name or a number after each dot"),
        ("args.user", 10, ":* stands for any value"),
        ("args.user:>many", 11, "compares numbers"),
        ('error:"half', 7, "is not closed"),
        ('error:"a"b', 10, "write a space or a comma after"),
        ('"half', 1, "is not closed"),
        ("dead -", 6, "nothing follows '-'"),
        ("state:dead atempts>1", 12, "did you mean attempts:>1?"),
        ("arg.user>=3", 1, "did you mean args.user:>=3?"),
        ("attempts!=1", 9, "did you mean -attempts:1?"),
        ("-args.user!=1", 11, "did you mean args.user:1?"),
    ],
)
def test_a_mistake_is_pointed_at(text: str, column: int, says: str) -> None:
    with pytest.raises(SearchRejected) as caught:
        read(text)
    assert says in caught.value.problem
    assert caught.value.column == column
    problem, quoted, pointer = str(caught.value).split("\n")
    assert (problem, quoted) == (caught.value.problem, f"  {text}")
    assert pointer.index("^") == column + 1


fields = st.sampled_from([*FIELDS, *ALIASES, "args.user", 'meta."x y".0', "nonsense", "error-reason"])
values = st.one_of(
    st.sampled_from(["dead", "failed,dead", "timeout", "42", "2..4", "1h", "2h..3h", "today", "*", "send_*", "14:00"]),
    st.text(alphabet="ab*.,:<>=!-\"'\\ 0123456789hTZ", max_size=8),
    st.text(max_size=5),
)
terms = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["", "-", "!"]),
    fields,
    st.sampled_from([":", "", "="]),
    st.sampled_from(["", ">", "<="]),
    values,
)
texts = st.lists(st.one_of(terms, values), max_size=4).map(" ".join)


@given(texts)
def test_any_text_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    column = 1
    try:
        search = read(text)
    except SearchRejected as problem:
        column, search = problem.column, Search()
    assert 1 <= column <= len(text) + 1
    assert read(str(search)) == search
