"""`holdfast status`: how many jobs are where."""

from collections import Counter

import click

from holdfast.cli.options import existing, json_option, url_option
from holdfast.cli.output import print_json, print_table, say
from holdfast.cli.private_queue import SHOWN, is_private
from holdfast.values import JobState


@click.command()
@click.option("--queue", "-q", metavar="NAME", help="Only this queue.")
@url_option
@json_option
def status(queue: str | None, url: str | None, as_json: bool) -> None:
    """Show how many jobs are where."""
    with existing(url) as hf:
        counts = hf.backend().counts(queue)
        pauses = {pause.queue: pause for pause in hf.backend().pauses()}
        location = hf.location
    if as_json:
        queues = {
            name: {**{state: states.get(state, 0) for state in JobState}, "paused": name in pauses}
            for name, states in sorted(_folded(counts).items())
        }
        totals = {state: sum(states.get(state, 0) for states in counts.values()) for state in JobState}
        print_json({"location": location, "totals": totals, "queues": queues})
        return
    click.echo(location)
    if not counts:
        say("no jobs yet; add one:  holdfast enqueue -- COMMAND")
        return
    rows = [
        (f"{name} (paused)" if name in pauses else name, *(states.get(state, 0) or "–" for state in JobState))
        for name, states in sorted(_folded(counts).items())
    ]
    print_table(("QUEUE", *(state.upper() for state in JobState)), rows)


def _folded(counts: dict[str, dict[JobState, int]]) -> dict[str, Counter[JobState]]:
    """The private queues of `holdfast run` in one line: there is one for every run."""
    folded: dict[str, Counter[JobState]] = {}
    for name, states in counts.items():
        shown = SHOWN if is_private(name) else name
        folded.setdefault(shown, Counter()).update(states)
    return folded
