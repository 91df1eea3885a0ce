"""`holdfast backend info`: what an engine is and can do."""

import click

from holdfast.cli.options import deployment_at, json_option, url_option
from holdfast.errors import BackendError


@click.group()
def backend() -> None:
    """Look at engines."""


@backend.command()
@click.argument("place", metavar="[URL]", required=False)
@url_option
@json_option
def info(place: str | None, url: str | None, as_json: bool) -> None:
    """Show what the engine of a URL is and can do, and what a job survives there.

    Nothing is made by asking: no file, no schema, no key. Without a URL it is the configured place.

    \b
    Examples:
      holdfast backend info
      holdfast backend info redis://127.0.0.1:6379/0
    """
    from holdfast.cli.backend_info import print_document, print_lines
    from holdfast.queues.addresses import kind_of
    from holdfast.queues.opening import Mode

    if place is not None and url is not None and place != url:
        raise click.UsageError("name the URL once: as an argument, or with --url")
    deployment = deployment_at(place or url)
    engine, _ = deployment.open(mode=Mode.READ)
    with engine:
        try:
            said, problem = engine.describe(), None
        except BackendError as why:
            said, problem = None, why
    show = print_document if as_json else print_lines
    show(deployment.location(), kind_of(deployment.url()).scheme, said, engine.capabilities)
    if problem is not None:
        raise problem
