"""`holdfast version`."""

import platform

import click

from holdfast import __version__


@click.command()
def version() -> None:
    """Print the version."""
    import sqlite3

    click.echo(f"holdfast {__version__} (python {platform.python_version()}, sqlite {sqlite3.sqlite_version})")
