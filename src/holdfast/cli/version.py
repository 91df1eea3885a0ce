"""`holdfast version`: print the version."""

import platform

import click

from holdfast import __version__
from holdfast.cli.output import write


@click.command()
def version() -> None:
    """Print the version."""
    import sqlite3

    write(f"holdfast {__version__} (python {platform.python_version()}, sqlite {sqlite3.sqlite_version})")
