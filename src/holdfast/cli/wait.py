"""`holdfast wait`: until jobs have ended, however they end."""

import click

from holdfast.cli.completion import complete_job_ids
from holdfast.cli.options import Span, existing, json_option, url_option
from holdfast.cli.output import note_location
from holdfast.cli.selecting import STDIN, ids_from_stdin
from holdfast.errors import UnknownJob


@click.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_job_ids)
@click.option("--timeout", "limit_s", type=Span(), default=0.0, metavar="SPAN", help="Give up after that; 0 = never.")
@click.option("--any", "is_any", is_flag=True, help="Until the first of them has ended.")
@url_option
@json_option
def wait(job_ids: tuple[str, ...], limit_s: float, is_any: bool, url: str | None, as_json: bool) -> int:
    """Wait until jobs have ended; print the result of a single one, or how many ended how.

    The ids may come from stdin, one on each line, if ID is -. Exits with 7 if a job is dead or cancelled in the end,
    with 6 if the time is up.

    \b
    Examples:
      holdfast wait job1 --timeout 5m
      holdfast wait job1 job2 --any
    """
    from holdfast.cli.endings import Shape, await_any, await_job, await_jobs

    named = [job_id for word in job_ids for job_id in (ids_from_stdin() if word == STDIN else [word])]
    ids = list(dict.fromkeys(named))
    with existing(url, job=next(iter(job_ids), None)) as site:
        note_location(site.location)
        engine = site.engine
        if not ids:
            return 0
        if unknown := next((job_id for job_id in ids if engine.get(job_id) is None), None):
            raise UnknownJob(unknown)
        shape = Shape.JSON if as_json else Shape.RESULT
        if len(ids) == 1:
            return await_job(engine, ids[0], limit_s, shape)
        if is_any:
            return await_any(engine, ids, limit_s, as_json=as_json)
        return await_jobs(engine, ids, limit_s, shape)
