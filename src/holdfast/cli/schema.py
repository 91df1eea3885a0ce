"""`holdfast schema`: JSON schemas of what Holdfast reads and prints."""

import json
from collections.abc import Callable
from typing import Any, Final

import click

from holdfast.cli.options import json_option
from holdfast.cli.output import print_json
from holdfast.config.schema import settings_schema

SCHEMAS: Final[dict[str, Callable[[], dict[str, Any]]]] = {"config": settings_schema}


@click.command()
@click.argument("name", type=click.Choice(list(SCHEMAS)), metavar="NAME")
@json_option
def schema(name: str, as_json: bool) -> None:
    """Print a JSON schema: `config`, that of the configuration file.

    \b
    Examples:
      holdfast schema config > holdfast.schema.json
    """
    document = SCHEMAS[name]()
    if as_json:
        print_json(document)
    else:
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
