"""The documents that `--json` prints, by the names they carry, and `holdfast schema`, which prints their JSON Schemas.

A name ends with a version: members may be added under the same one, anything else gets the next. Each is the type that
makes the document, so that the two cannot differ.
"""

from importlib import import_module
from typing import Any, Final

import click
import msgspec

from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.options import json_option
from holdfast.cli.output import print_json, print_table

# Where the type of each document is, and which command prints it.
DOCUMENTS: Final = {
    "holdfast.doctor/1": ("holdfast.cli.doctor:Diagnosis", "doctor"),
    "holdfast.files/1": ("holdfast.cli.generate:Files", "generate systemd, docker, compose"),
    "holdfast.health/1": ("holdfast.cli.health:Health", "health"),
    "holdfast.help/1": ("holdfast.cli.topics:Topic", "help"),
    "holdfast.status/1": ("holdfast.cli.status:Status", "status, top"),
    "holdfast.worker/1": ("holdfast.cli.workers:WorkerDocument", "worker show"),
}
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class UnknownSchema(click.ClickException):
    """No document has that name."""

    exit_code = NOT_FOUND


@click.command()
@click.argument("name", required=False)
@json_option
def schema(name: str | None, as_json: bool) -> None:
    """Print the JSON Schema of what a command prints with --json; without a NAME, which there are.

    \b
    Examples:
      holdfast schema
      holdfast schema holdfast.health/1
    """
    if name is not None:
        print_json(schema_of(name))
    elif as_json:
        print_json([{"name": each, "commands": commands} for each, (_, commands) in DOCUMENTS.items()])
    else:
        print_table(("NAME", "PRINTED BY"), [(each, commands) for each, (_, commands) in DOCUMENTS.items()])


def type_of(name: str) -> Any:
    """The type of a document; the newest version, if none is said."""
    full = name if name.startswith("holdfast.") else f"holdfast.{name}"
    whole = max((each for each in DOCUMENTS if each.partition("/")[0] == full), default=full)
    if whole not in DOCUMENTS:
        from difflib import get_close_matches

        near = get_close_matches(whole, DOCUMENTS, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else "see  holdfast schema"
        raise UnknownSchema(f"there is no schema '{name}'; {hint}")
    module, _, attribute = DOCUMENTS[whole][0].partition(":")
    return getattr(import_module(module), attribute)


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a document."""
    kind = type_of(name)
    [described], components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    return {"$schema": DIALECT, "$id": _name_of(kind), **described, "$defs": components}


def _name_of(kind: Any) -> str:
    [field] = [field for field in msgspec.structs.fields(kind) if field.name == "schema"]
    return str(field.default)
