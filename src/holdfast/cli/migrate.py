"""`holdfast migrate`: create the schema or bring it up to date."""

import click

from holdfast.app import Holdfast
from holdfast.cli.options import json_option, url_option
from holdfast.cli.output import glyph, print_json


@click.command()
@url_option
@json_option
def migrate(url: str | None, as_json: bool) -> None:
    """Create the schema or bring it up to date; safe to run from many places at once.

    The embedded engine does this by itself, except in a database that other programs use.
    """
    with Holdfast(url) as hf:
        hf.create_schema()
        location = hf.location
    if as_json:
        print_json({"location": location, "schema": "current"})
    else:
        click.echo(f"{glyph('✓', '*')} {location} is up to date")
