"""Suggestions for misspelled words."""

from collections.abc import Iterable


def closest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that is most similar to this one, if any is similar enough."""
    from difflib import get_close_matches  # imported here: commands without a mistake do not need it

    near = get_close_matches(word, [str(each) for each in known], n=1, cutoff=cutoff)
    return near[0] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion for an unknown word, or an empty text if no known word is similar."""
    words = [str(each) for each in known]
    near = None if word in words else closest(word, words)
    return f"did you mean '{near}'?" if near else ""
