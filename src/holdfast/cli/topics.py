"""`holdfast help`: what is not about one command, as topics; of a command, its own help."""

from collections.abc import Callable
from typing import Final

import click
from msgspec import Struct

from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.options import json_option
from holdfast.cli.output import print_json, table_lines
from holdfast.values import JobState

STATES: Final = {
    JobState.BLOCKED: "waits for another job",
    JobState.SCHEDULED: "waits for its time, or was put off",
    JobState.PENDING: "is due and waits for a worker",
    JobState.PROCESSING: "is held by a worker, with a lease",
    JobState.FAILED: "has failed and waits for its retry",
    JobState.COMPLETED: "is done; kept for retain-completed",
    JobState.DEAD: "will not be run again by itself: a dead letter, kept until you decide",
    JobState.CANCELLED: "was cancelled, or too late to start",
}

EXIT_CODES: Final = {
    "0": "done; well",
    "1": "failed in some other way, is not well, or you said no",
    "2": "the command line, a setting or a job's description is wrong; nothing was done",
    "3": "there is no such job, worker or name",
    "4": "refused: not allowed, taken, or not possible in the state it is in",
    "5": "the engine cannot be reached or written, or stayed locked",
    "6": "the time is up: what was waited for has not happened yet",
    "7": "the job that was waited for is dead or cancelled",
    "130": "interrupted",
}

SEARCH: Final = """\
A search is a list of conditions, all of which have to hold:

  holdfast list --where 'state:dead error:Timeout args.user:42 age:>1h'

  state:dead,failed     one of these states
  queue:mail            the queue
  job:send_*            the handler; * stands for anything
  -tag:test             not that tag: a dash before a condition turns it round
  args.user.id:42       a value within the payload; 42 is a number, "42" is text
  error:Timeout         the last error has this in it
  attempts:>2           more failed runs than that; also <, >=, <=
  age:>1h               accepted longer ago than that

`holdfast list --help` says which of them this version knows."""

DURATIONS: Final = """\
A time span is a number of seconds, or a number with a unit:

  500ms   90s   15m   2h   3d   1w

In JSON every span is a number of seconds, and every instant is RFC 3339 in UTC. What is printed for people is in
local time, with its offset."""


class Topic(Struct, frozen=True, kw_only=True):
    """What `help --json` prints."""

    schema: str = "holdfast.help/1"
    topic: str
    text: str


class UnknownTopic(click.ClickException):
    """Neither a topic nor a command."""

    exit_code = NOT_FOUND


@click.command("help")
@click.argument("words", metavar="[TOPIC]...", nargs=-1)
@json_option
@click.pass_context
def help_on(ctx: click.Context, words: tuple[str, ...], as_json: bool) -> None:
    """Explain a TOPIC, or a command; without one, say which topics there are.

    \b
    Examples:
      holdfast help states
      holdfast help worker start
    """
    name = " ".join(words)
    text = TOPICS[name][1]() if name in TOPICS else _of_command(ctx, words) if words else _overview()
    if as_json:
        print_json(Topic(topic=name, text=text))
    else:
        click.echo(text)


def _overview() -> str:
    rows = table_lines(("TOPIC", ""), [(name, meaning) for name, (meaning, _) in TOPICS.items()])
    return "\n".join([*rows, "", "holdfast help TOPIC, or holdfast help COMMAND; holdfast --help lists the commands"])


def _of_command(ctx: click.Context, words: tuple[str, ...]) -> str:
    """The help of the command that these words name."""
    from difflib import get_close_matches

    root = ctx.find_root()
    command, context = root.command, root
    for word in words:
        inner = command.get_command(context, word) if isinstance(command, click.Group) else None
        if inner is None:
            names = [*TOPICS, *(root.command.list_commands(root) if isinstance(root.command, click.Group) else [])]
            near = get_close_matches(words[0], names, n=1) if command is root.command else []
            hint = f"did you mean '{near[0]}'?" if near else f"topics: {', '.join(TOPICS)}"
            raise UnknownTopic(f"there is no help on '{' '.join(words)}'; {hint}")
        command, context = inner, click.Context(inner, info_name=word, parent=context)
    return command.get_help(context)


def _states() -> str:
    return "\n".join(["A job is", "", *table_lines(("STATE", ""), STATES.items())[1:]])


def _exit_codes() -> str:
    rows = table_lines(("CODE", ""), EXIT_CODES.items())[1:]
    return "\n".join(["A command exits with", "", *rows, "", "`holdfast run` exits with the code of its command."])


def _environment() -> str:
    # Imported here: no other topic needs the settings.
    from holdfast.config.keys import KEYS

    keys = KEYS.values()
    rows = {key.variable: key.meaning for key in keys if key.variable}
    rows |= {key.file_variable: f"a file with {key.variable} in it" for key in keys if key.file_variable}
    rows |= {
        "HOLDFAST_COMPLETION_WAIT": "seconds that completion may ask the store; 0.1 if not set",
        "HOLDFAST_LOG_FORMAT": "how a worker logs: text, or json",
        "NO_COLOR": "no colour, if it is not empty",
        "FORCE_COLOR": "colour also where no terminal is",
        "COLUMNS": "how wide tables may be",
        "XDG_STATE_HOME": "jobs outside of any project are below it",
        "XDG_CONFIG_HOME": "settings outside of any project are below it",
    }
    lines = table_lines(("VARIABLE", ""), sorted(rows.items()))[1:]
    return "\n".join(["A variable wins over the settings file, an option over both.", "", *lines])


TOPICS: Final[dict[str, tuple[str, Callable[[], str]]]] = {
    "states": ("what the states of a job mean", _states),
    "search": ("how jobs are searched for", lambda: SEARCH),
    "exit-codes": ("what a command's exit code means", _exit_codes),
    "environment": ("which variables are read", _environment),
    "durations": ("how times and spans are written", lambda: DURATIONS),
}
