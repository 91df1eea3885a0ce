"""`holdfast version`."""

import platform

import click

from holdfast import __version__
from holdfast.cli.options import json_option
from holdfast.cli.output import print_json


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the version."""
    import sqlite3

    if as_json:
        print_json({"holdfast": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version})
    else:
        click.echo(f"holdfast {__version__} (python {platform.python_version()}, sqlite {sqlite3.sqlite_version})")
