"""`holdfast version`."""

import platform

import click

from holdfast import __version__
from holdfast.cli.documents import Document
from holdfast.cli.options import json_option
from holdfast.cli.output import print_json


class VersionDocument(Document, frozen=True, kw_only=True, tag="holdfast.version/1"):
    """What `version --json` prints."""

    holdfast: str
    python: str
    sqlite: str


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the version."""
    import sqlite3

    if as_json:
        python, sqlite = platform.python_version(), sqlite3.sqlite_version
        print_json(VersionDocument(holdfast=__version__, python=python, sqlite=sqlite))
    else:
        click.echo(f"holdfast {__version__} (python {platform.python_version()}, sqlite {sqlite3.sqlite_version})")
