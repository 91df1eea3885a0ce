"""What `holdfast backend info` shows of an engine: for people, or as a document."""

from collections.abc import Mapping

from msgspec import Struct

from holdfast.cli.documents import Document
from holdfast.cli.output import write, write_json
from holdfast.cli.style import GOOD, print_table
from holdfast.queues.capabilities import MEANINGS, answers
from holdfast.queues.contract import Capabilities, EngineInfo


class SchemaVersion(Struct, frozen=True, kw_only=True):
    """Which version of the tables there is, and which this program knows."""

    version: int
    known: int | None
    state: str


class EngineDocument(Document, frozen=True, kw_only=True, tag="holdfast.backend/1"):
    """What `backend info --json` prints; what could not be asked is null."""

    location: str
    engine: str
    server: str | None
    names: str | None
    database_schema: SchemaVersion | None
    settings: Mapping[str, str]
    survives: str | None
    capabilities: Capabilities


def print_document(location: str, name: str, said: EngineInfo | None, capabilities: Capabilities) -> None:
    write_json(
        EngineDocument(
            location=location,
            engine=name,
            server=None if said is None else said.server,
            names=None if said is None else said.names or None,
            database_schema=None if said is None else _schema_document(said),
            settings={} if said is None else dict(said.settings),
            survives=None if said is None else said.survives,
            capabilities=capabilities,
        )
    )


def print_lines(location: str, name: str, said: EngineInfo | None, capabilities: Capabilities) -> None:
    facts = [("location", location), ("engine", name)]
    if said is not None:
        facts += [
            ("server", said.server),
            ("names", said.names),
            ("schema", _schema(said)),
            ("settings", ", ".join(f"{setting} {value}" for setting, value in said.settings.items())),
            ("survives", said.survives),
        ]
    for label, value in facts:
        if value:
            write(f"{label:<10} {value}")
    write()
    print_table(
        ("CAPABILITY", "", "MEANING"),
        [(name, (answer), (MEANINGS[name])) for name, answer in answers(capabilities).items()],
        (None, {"yes": GOOD}),
    )


def _schema_document(said: EngineInfo) -> SchemaVersion | None:
    if said.schema is None:
        return None
    return SchemaVersion(version=said.schema, known=said.known_schema, state=schema_state(said))


def schema_state(said: EngineInfo) -> str:
    """Whether the tables are missing, older, current, or newer than this program."""
    schema, known = said.schema or 0, said.known_schema or 0
    if not schema:
        return "missing"
    return "current" if schema == known else "older" if schema < known else "newer"


def _schema(said: EngineInfo) -> str:
    if said.schema is None:
        return ""
    match schema_state(said):
        case "missing":
            return "none yet; it is made when it is first needed, or by  holdfast migrate"
        case "older":
            return f"{said.schema}, older than this program's {said.known_schema}: run  holdfast migrate"
        case "newer":
            return f"{said.schema}, newer than this program's {said.known_schema}: upgrade Holdfast here"
        case _:
            return f"{said.schema}, current"
