"""The table of settings in the documentation: `python -m holdfast.config.page docs/configuration.md` renews it."""

import re
import sys
from pathlib import Path
from typing import Any

from holdfast.config.keys import KEYS, Applies, Key

_table_pattern = re.compile(r"(?<=<!-- settings: begin -->\n).*?(?=<!-- settings: end -->)", re.DOTALL)
_APPLIES = {Applies.START: "next start", Applies.ENQUEUE: "next start, new jobs"}


def with_settings(page: str) -> str:
    """The page with the table of settings between its two marks as it has to be."""
    if not _table_pattern.search(page):
        raise SystemExit("there are no marks for the table: <!-- settings: begin --> and <!-- settings: end -->")
    return _table_pattern.sub(lambda _: settings_table(), page)


def settings_table() -> str:
    """Every setting as a row of Markdown."""
    head = "| Setting | Kind | Default | Range | Applies from | Meaning |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        "".join(f"| {cell} " if cell else "| " for cell in _row(key)) + "|\n" for key in KEYS.values()
    )


def _row(key: Key) -> list[str]:
    range_ = f"{key.bound(key.low)} to {key.bound(key.high)}" if key.high else ""
    return [f"`{key.name}`", key.kind, _default(key, key.default), range_, _APPLIES[key.applies], key.meaning]


def _default(key: Key, value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case None | ():
            return ""
        case float() if key.kind == "span":
            return key.bound(value)
        case float():
            return f"{value:g}"
        case _:
            return str(value)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(with_settings(path.read_text(encoding="utf-8")), encoding="utf-8")
