"""The options that name and label a job, for the commands that make one."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from msgspec import Struct

from holdfast.cli.options import with_options
from holdfast.errors import DefinitionError

F = TypeVar("F", bound=Callable[..., Any])


class Labels(Struct, frozen=True, kw_only=True):
    """What a job was to be called and labelled with, by the names of the options."""

    job_id: str | None
    name: str | None
    tags: tuple[str, ...]
    meta: tuple[str, ...]
    trace_id: str | None

    def fields(self) -> dict[str, Any]:
        """The same by the names of the fields of a job's description; what was not said is left out."""
        from holdfast.cli.arguments import parse_arguments, untyped

        said: dict[str, Any] = {
            "id": self.job_id,
            "name": self.name,
            "tags": _split_tags(self.tags) or None,
            "meta": untyped(parse_arguments(self.meta, what="--meta")) or None,
            "trace_id": self.trace_id,
        }
        return only_said(said)


def only_said(options: dict[str, Any]) -> dict[str, Any]:
    """Without what was left to its default."""
    return {name: value for name, value in options.items() if value is not None}


def _split_tags(given: tuple[str, ...]) -> list[str]:
    """Tags, however many were written into one word."""
    tags = [tag.strip() for word in given for tag in word.split(",")]
    if "" in tags:
        raise DefinitionError(f"{','.join(given)!r} holds a tag without a name; write --tag a,b")
    return tags


def label_options(command: F) -> F:
    """Give a command those that name and label a job, which arrive as the fields of `Labels`."""
    return with_options(LABEL_OPTIONS, command)


# In the order of the help.
LABEL_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option(
        "--id", "job_id", metavar="ID", help="The id: enqueueing it again with the same content adds nothing."
    ),
    click.option("--name", metavar="TEXT", help="A name for people, in lists and logs."),
    click.option("--tag", "--tags", "tags", multiple=True, metavar="A,B", help="Labels to find it by; repeatable."),
    click.option("--meta", multiple=True, metavar="K=V", help="A note for the handler; K:=JSON, too; repeatable."),
    click.option("--trace-id", metavar="TEXT", help="Handed to the handler, and to be searched for."),
)
