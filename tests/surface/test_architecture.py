"""`docs/architecture.md` describes the house as it is: layers, files and decisions."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/holdfast"
PAGE = (ROOT / "docs/architecture.md").read_text()


def test_the_table_has_the_layers_of_the_linter_in_its_order() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [contract] = config["tool"]["importlinter"]["contracts"]
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)`", PAGE.partition("## Values")[0], re.MULTILINE)
    layers = list(dict.fromkeys(path.partition("/")[0].removesuffix(".py") for path in rows if path != "src/holdfast/"))
    assert layers == contract["layers"][::-1]


def test_every_file_that_the_page_names_exists() -> None:
    names = {path.name for path in PACKAGE.rglob("*")} | {path.name for path in (ROOT / "scripts").iterdir()}
    paths = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|lua|sql))`", PAGE))
    missing = {name for name in named if name.rpartition("/")[2] not in names}
    missing |= {name for name in named if "/" in name and not any(f"/{path}".endswith(f"/{name}") for path in paths)}
    assert missing - {"scripts/reference.py"} == set()


def test_every_file_of_a_worker_is_on_the_page() -> None:
    assert {path.name for path in (PACKAGE / "worker").glob("*.py") if f"`{path.name}`" not in PAGE} == {"__init__.py"}


def test_every_decision_is_listed_with_its_title() -> None:
    for path in sorted((ROOT / "docs/decisions").glob("*.md")):
        heading = path.read_text().splitlines()[0]
        number, _, title = heading.removeprefix("# ").partition(". ")
        assert f"{number}. [{title}](decisions/{path.name})" in PAGE
