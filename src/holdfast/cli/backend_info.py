"""The output of `holdfast backend info`, and the state of the schema in words."""

from collections.abc import Mapping

from msgspec import Struct

from holdfast.cli.documents import Document
from holdfast.cli.output import write, write_json
from holdfast.cli.style import GOOD, print_table
from holdfast.queues.capabilities import MEANINGS, answers
from holdfast.queues.contract import Capabilities, EngineInfo


class SchemaVersion(Struct, frozen=True, kw_only=True):
    """The version of the tables, and the version that this program knows."""

    version: int
    known: int | None
    state: str


class EngineDocument(Document, frozen=True, kw_only=True, tag="holdfast.backend/1"):
    """The document of `backend info --json`. What an unavailable engine did not report is null."""

    location: str
    engine: str
    server: str | None
    names: str | None
    database_schema: SchemaVersion | None
    settings: Mapping[str, str]
    survives: str | None
    capabilities: Capabilities


def print_document(location: str, name: str, info: EngineInfo | None, capabilities: Capabilities) -> None:
    write_json(
        EngineDocument(
            location=location,
            engine=name,
            server=None if info is None else info.server,
            names=None if info is None else info.names or None,
            database_schema=None if info is None else _schema_document(info),
            settings={} if info is None else dict(info.settings),
            survives=None if info is None else info.survives,
            capabilities=capabilities,
        )
    )


def print_lines(location: str, name: str, info: EngineInfo | None, capabilities: Capabilities) -> None:
    facts = [("location", location), ("engine", name)]
    if info is not None:
        facts += [
            ("server", info.server),
            ("names", info.names),
            ("schema", _schema_line(info)),
            ("settings", ", ".join(f"{setting} {value}" for setting, value in info.settings.items())),
            ("survives", info.survives),
        ]
    for label, value in facts:
        if value:
            write(f"{label:<10} {value}")
    write()
    print_table(
        ("CAPABILITY", "", "MEANING"),
        [(name, answer, MEANINGS[name]) for name, answer in answers(capabilities).items()],
        (None, {"yes": GOOD}),
    )


def _schema_line(info: EngineInfo) -> str:
    if info.schema is None:
        return ""
    state, remedy = schema_in_words(info)
    return f"{state.removeprefix('schema ')}{f'; {remedy}' if remedy else ''}"


def _schema_document(info: EngineInfo) -> SchemaVersion | None:
    if info.schema is None:
        return None
    return SchemaVersion(version=info.schema, known=info.known_schema, state=schema_state(info))


def schema_state(info: EngineInfo) -> str:
    """Whether the tables are missing, older, current, or newer than this program."""
    schema, known = info.schema or 0, info.known_schema or 0
    if not schema:
        return "missing"
    return "current" if schema == known else "older" if schema < known else "newer"


def schema_in_words(info: EngineInfo) -> tuple[str, str]:
    """The state of the schema, and what to do about it."""
    match schema_state(info):
        case "missing":
            return "no schema yet", "it is created when first needed, or by  holdfast migrate"
        case "older":
            return f"schema {info.schema} is older than this program's {info.known_schema}", "run  holdfast migrate"
        case "newer":
            return f"schema {info.schema} is newer than this program's {info.known_schema}", "upgrade Holdfast here"
        case _:
            return f"schema {info.schema} (current)", ""
