"""`holdfast wait`: wait until jobs finish."""

import click

from holdfast.cli.completion import complete_job_ids
from holdfast.cli.options import Span, existing, json_option, url_option
from holdfast.cli.output import note_location
from holdfast.cli.selecting import ids_of
from holdfast.errors import UnknownJob


@click.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_job_ids)
@click.option(
    "--timeout", "limit_s", type=Span(), default=0.0, metavar="DURATION", help="Give up after this long; 0 = no limit."
)
@click.option("--any", "is_any", is_flag=True, help="Wait only until the first of the jobs finishes.")
@url_option
@json_option
def wait(job_ids: tuple[str, ...], limit_s: float, is_any: bool, url: str | None, as_json: bool) -> int:
    """Wait until jobs finish. Print the result of a single job, or the number of jobs in each state.

    Pass - as ID to read ids from stdin, one per line. The exit code is 7 if a job is dead or cancelled, and 6 if the
    wait times out.

    \b
    Examples:
      holdfast wait job1 --timeout 5m
      holdfast wait job1 job2 --any
    """
    from holdfast.cli.endings import Shape, await_any, await_job, await_jobs

    ids = ids_of(job_ids)
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
