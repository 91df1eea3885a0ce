"""`holdfast backend info`: the engine and its capabilities."""

import click

from holdfast.cli.options import deployment_at, json_option, url_option
from holdfast.errors import BackendError


@click.group()
def backend() -> None:
    """Show the engine and its capabilities."""


@backend.command()
@click.argument("place", metavar="[URL]", required=False)
@url_option
@json_option
def info(place: str | None, url: str | None, as_json: bool) -> None:
    """Show an engine's capabilities and durability.

    Durability means the failures that its jobs survive. Default: the configured URL. This command does not create a
    file, a schema or a key.

    \b
    Examples:
      holdfast backend info
      holdfast backend info redis://127.0.0.1:6379/0
    """
    from holdfast.cli.backend_info import print_document, print_lines
    from holdfast.queues.addresses import kind_of
    from holdfast.queues.opening import Mode

    if place is not None and url is not None and place != url:
        raise click.UsageError("pass the URL once: as an argument or with --url")
    deployment = deployment_at(place or url)
    engine, _ = deployment.open(mode=Mode.READ)
    with engine:
        try:
            described, problem = engine.describe(), None
        except BackendError as why:
            described, problem = None, why
    show = print_document if as_json else print_lines
    show(deployment.location(), kind_of(deployment.url()).scheme, described, engine.capabilities)
    if problem is not None:
        raise problem
