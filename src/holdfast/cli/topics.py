"""`holdfast help`: what is not about one command, as topics; of a command, its own help."""

from collections.abc import Callable
from typing import Final

import click

from holdfast.cli import with_globals
from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.options import did_you_mean
from holdfast.cli.output import write_lines
from holdfast.cli.style import WIDEST_TEXT, columns, definitions
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

# One example of each field of a search, and what it asks for; `help search` shows them in the order of the grammar.
TERMS: Final = {
    "state": ("state:failed,dead", "one of these states"),
    "id": ("id:import-*", "the id; * stands for anything"),
    "queue": ("queue:mail", "the queue"),
    "job": ("job:send_*", "the handler"),
    "name": ('name:"nightly report"', "the name; in quotes * is only a star"),
    "tag": ("tag:vip", "one of its tags"),
    "trace": ("trace:4bf92f35*", "the trace id"),
    "error": ("error:Timeout", "the last error has this in it, in whatever case"),
    "reason": ("reason:crash-loop", "why a letter is dead; in quotes, a part of why a job was cancelled"),
    "attempts": ("attempts:>2", "failed runs; also <, >=, <=, 2..4"),
    "crashes": ("crashes:>0", "runs that ended without a verdict"),
    "deliveries": ("deliveries:1", "how often a worker took it"),
    "priority": ("priority:7..9", "0 to 9"),
    "age": ("age:>1h", "accepted longer ago than that"),
    "accepted": ("accepted:today", "when it was accepted: a day, a time, or a span that is over"),
    "due": ("due:<+2h", "when it is due; +2h is in two hours"),
    "finished": ("finished:2026-11-15", "when it ended"),
    "expires": ("expires:<now", "until when it may start"),
    "args": ("args.user.id:42", 'a value of the arguments; 42 is a number or a text, "42" only a text'),
    "meta": ("meta.tenant:acme", "a value of the meta data"),
}


class UnknownTopic(click.ClickException):
    """Neither a topic nor a command."""

    exit_code = NOT_FOUND


@click.command("help")
@click.argument("words", metavar="[TOPIC]...", nargs=-1)
@click.pass_context
def help_on(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain a TOPIC, or a command; without one, say which topics there are.

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
        _prose("holdfast help TOPIC, or holdfast help COMMAND; holdfast --help lists the commands"),
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
            raise UnknownTopic(f"there is no help on '{' '.join(words)}'; {hint}")
        command = with_globals(inner) if command is root.command else inner
        context = click.Context(command, info_name=word, parent=context)
    return command.get_help(context)


def _page(*parts: str) -> str:
    return "\n\n".join(parts)


def _prose(text: str) -> str:
    return click.wrap_text(text, width=min(columns() or WIDEST_TEXT, WIDEST_TEXT))


def _states() -> str:
    return _page("A job is", definitions((str(state), meaning) for state, meaning in STATES.items()))


def _exit_codes() -> str:
    last = _prose("`holdfast run` exits with the code of its command.")
    return _page("A command exits with", definitions(EXIT_CODES.items()), last)


def _search() -> str:
    # Imported here: no other topic needs the grammar.
    from holdfast.search.parsing import ALIASES, FIELDS

    also = ", ".join(f"{alias} for {field}" for alias, field in ALIASES.items())
    return _page(
        _prose("A search is a list of conditions, all of which have to hold:"),
        "  holdfast list --where 'state:dead error:Timeout args.user:42 age:>1h'",
        definitions(TERMS[field] for field in FIELDS),
        _prose(
            "A - or ! before a condition turns it round: -tag:test. Of several values, separated by commas, one has "
            "to fit. A word that names no field is looked for in the id, the job, its name and its error. What holds "
            "spaces, commas or colons is written in quotes."
        ),
        _prose(f"Also understood: {also}."),
    )


def _durations() -> str:
    return _page(
        _prose("A time span is a number of seconds, or a number with a unit:"),
        "  500ms   90s   15m   2h   3d   1w",
        _prose(
            "In JSON every span is a number of seconds, and every instant is RFC 3339 in UTC. What is printed for "
            "people is in local time, with its offset; with --utc in UTC."
        ),
    )


def _output() -> str:
    return _page(
        _prose("Data goes to stdout, remarks and errors to stderr."),
        definitions(
            {
                "--json": "one JSON document, of a list an array; its `schema` names what `holdfast schema` prints",
                "--jsonl": "of a list, a document on each line",
                "--fields a,b": "of jobs, only these members",
                "-q": "of a list, only ids or names, one on each line: | holdfast cancel -",
                "-o wide": "of jobs, more columns, none of them cut",
                "--csv": "of jobs, for spreadsheets",
                "--watch": "look again and again",
                "--color": "auto, always, never; NO_COLOR, FORCE_COLOR and TERM=dumb are heard, too",
                "--utc": "times in UTC",
                "--no-input": "never ask; what would have to be asked is refused",
            }.items()
        ),
        _prose(
            "A table is no wider than the terminal, or than COLUMNS says; in a pipe nothing is cut. In a locale that "
            "is not UTF-8 there are ASCII signs."
        ),
    )


def _environment() -> str:
    # Imported here: no other topic needs the settings.
    from holdfast.config.keys import KEYS

    keys = KEYS.values()
    rows = {key.variable: key.meaning for key in keys if key.variable}
    rows |= {key.file_variable: f"a file with {key.variable} in it" for key in keys if key.file_variable}
    rows |= {
        "HOLDFAST_LOG_FORMAT": "how a worker logs: text, or json",
        "NO_COLOR": "no colour, if it is not empty",
        "FORCE_COLOR": "colour also where no terminal is",
        "COLUMNS": "how wide tables may be",
        "LC_ALL, LC_CTYPE, LANG": "C or POSIX: ASCII signs only",
        "TERM": "dumb: no colour, and nothing is drawn over",
        "XDG_STATE_HOME": "jobs outside of any project are below it",
        "XDG_CONFIG_HOME": "settings outside of any project are below it",
    }
    return _page(
        _prose("A variable wins over the settings file, an option over both."), definitions(sorted(rows.items()))
    )


TOPICS: Final[dict[str, tuple[str, Callable[[], str]]]] = {
    "states": ("what the states of a job mean", _states),
    "search": ("how jobs are searched for", _search),
    "exit-codes": ("what a command's exit code means", _exit_codes),
    "environment": ("which variables are read", _environment),
    "durations": ("how times and spans are written", _durations),
    "output": ("what is printed where, and in which form", _output),
}
