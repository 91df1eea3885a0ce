"""`holdfast help`: the help of a command, and topics that concern several commands."""

from collections.abc import Callable
from typing import Final

import click

from holdfast.cli import with_globals
from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.output import write_lines
from holdfast.cli.style import WIDEST_TEXT, columns, definitions
from holdfast.spelling import did_you_mean
from holdfast.values import JobState

STATES: Final = {
    JobState.BLOCKED: "waiting for jobs that it depends on, for a key that another job holds, or for a circuit",
    JobState.SCHEDULED: "waiting for its due time",
    JobState.PENDING: "due, waiting for a worker",
    JobState.PROCESSING: "running: a worker holds its lease",
    JobState.FAILED: "failed, waiting for its retry",
    JobState.COMPLETED: "done; deleted after the time set in retain-completed",
    JobState.DEAD: "failed for good: a dead letter, until it is retried or discarded",
    JobState.CANCELLED: "cancelled, or expired before it started",
}

EXIT_CODES: Final = {
    "0": "success",
    "1": "failed, unhealthy, or you declined the prompt",
    "2": "invalid command line, setting or job description; nothing was done",
    "3": "no such job, worker or name",
    "4": "refused: not allowed, already taken, or not possible in the current state",
    "5": "the engine is unavailable, locked or read-only",
    "6": "timed out while waiting",
    "7": "the awaited job is dead or cancelled",
    "130": "interrupted",
}

# An example and the meaning of each field of a search.
TERMS: Final = {
    "state": ("state:failed,dead", "one of these states"),
    "id": ("id:import-*", "the id; * matches anything"),
    "queue": ("queue:mail", "the queue"),
    "job": ("job:send_*", "the handler"),
    "name": ('name:"nightly report"', "the name; in quotes, * is a literal asterisk"),
    "tag": ("tag:vip", "one of its tags"),
    "trace": ("trace:4bf92f35*", "the trace id"),
    "error": ("error:Timeout", "the last error contains this; case does not matter"),
    "reason": (
        "reason:crash-loop",
        "why the job is dead; a quoted value matches part of a cancellation reason",
    ),
    "attempts": ("attempts:>2", "failed runs; also <, >=, <=, 2..4"),
    "crashes": ("crashes:>0", "runs whose process or worker died"),
    "deliveries": ("deliveries:1", "number of times that a worker claimed it"),
    "priority": ("priority:7..9", "0 to 9"),
    "age": ("age:>1h", "time since it was accepted"),
    "accepted": ("accepted:today", "when it was accepted: a date, a time, or how long ago (2h)"),
    "due": ("due:<+2h", "when it is due; +2h is in two hours"),
    "finished": ("finished:2026-11-15", "when it finished; finished:<7d means more than 7 days ago"),
    "expires": ("expires:<now", "when it expires"),
    "args": ("args.user.id:42", 'a value in the arguments; 42 is a number or text, "42" only text'),
    "meta": ("meta.tenant:acme", "a value in the metadata"),
}


class UnknownTopic(click.ClickException):
    """There is no topic and no command of that name."""

    exit_code = NOT_FOUND


@click.command("help")
@click.argument("words", metavar="[TOPIC]...", nargs=-1)
@click.pass_context
def help_on(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain a command or a TOPIC: states, search or exit-codes. Without one, list the topics.

    \b
    Examples:
      holdfast help states
      holdfast help worker start
    """
    name = " ".join(words)
    text = TOPICS[name][1]() if name in TOPICS else _of_command(ctx, words) if words else _overview()
    write_lines(text.splitlines())


def _overview() -> str:
    return _page(
        definitions((name, meaning) for name, (meaning, _) in TOPICS.items()),
        _prose("Run `holdfast help TOPIC` or `holdfast help COMMAND`. `holdfast --help` lists the commands."),
    )


def _of_command(ctx: click.Context, words: tuple[str, ...]) -> str:
    """The help of the command that these words name."""
    root = ctx.find_root()
    command, context = root.command, root
    for word in words:
        inner = command.get_command(context, word) if isinstance(command, click.Group) else None
        if inner is None:
            names = [*TOPICS, *(root.command.list_commands(root) if isinstance(root.command, click.Group) else [])]
            near = did_you_mean(words[0], names) if command is root.command else ""
            hint = near or f"topics: {', '.join(TOPICS)}"
            raise UnknownTopic(f"there is no help for '{' '.join(words)}'; {hint}")
        command = with_globals(inner) if command is root.command else inner
        context = click.Context(command, info_name=word, parent=context)
    return command.get_help(context)


def _page(*parts: str) -> str:
    return "\n\n".join(parts)


def _prose(text: str) -> str:
    return click.wrap_text(text, width=min(columns() or WIDEST_TEXT, WIDEST_TEXT))


def _states() -> str:
    return _page("States of a job:", definitions((str(state), meaning) for state, meaning in STATES.items()))


def _exit_codes() -> str:
    last = _prose("`holdfast run` exits with the code of its command.")
    return _page("Exit codes:", definitions(EXIT_CODES.items()), last)


def _search() -> str:
    # No other topic needs the grammar.
    from holdfast.search.parsing import ALIASES, FIELDS

    also = ", ".join(f"{alias} = {field}" for alias, field in ALIASES.items())
    return _page(
        _prose("A search is a list of conditions. A job has to meet all of them:"),
        "  holdfast list --where 'state:dead error:Timeout args.user:42 age:>1h'",
        definitions(TERMS[field] for field in FIELDS),
        _prose(
            "A - or ! negates a condition: -tag:test. Values separated by commas are alternatives. A word without a "
            "field is searched for in the id, the handler, the name and the error. Quote values that contain spaces, "
            "commas or colons."
        ),
        _prose(f"Field aliases: {also}."),
    )


TOPICS: Final[dict[str, tuple[str, Callable[[], str]]]] = {
    "states": ("the states of a job", _states),
    "search": ("how to search for jobs with --where", _search),
    "exit-codes": ("the exit codes of commands", _exit_codes),
}
