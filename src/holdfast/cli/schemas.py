"""The documents that `--json` prints, by name, and `holdfast schema`, which prints their JSON Schemas.

A name ends with a version. Adding members keeps the version; any other change increases it. Each schema is derived from
the type that encodes the document, so that the two always agree.
"""

from importlib import import_module
from typing import Any, Final

import click
import msgspec

from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.output import write_json
from holdfast.cli.style import print_table
from holdfast.spelling import did_you_mean

# The type of each document, and the commands that print it: alone, in an array, or one per line.
DOCUMENTS: Final = {
    "holdfast.backend/1": ("holdfast.cli.backend_info:EngineDocument", "backend info"),
    "holdfast.config.check/1": ("holdfast.cli.config:CheckDocument", "config check"),
    "holdfast.config.path/1": ("holdfast.cli.config:PathDocument", "config path"),
    "holdfast.config.set/1": ("holdfast.cli.config:SetDocument", "config set"),
    "holdfast.config.setting/1": ("holdfast.cli.config:SettingDocument", "config get, config list"),
    "holdfast.config.unset/1": ("holdfast.cli.config:UnsetDocument", "config unset"),
    "holdfast.cronjob/1": ("holdfast.cli.cronjob.documents:CronjobDocument", "cronjob list, cronjob show"),
    "holdfast.cronjob.add/1": ("holdfast.cli.cronjob.documents:SavedDocument", "cronjob add"),
    "holdfast.cronjob.entry/1": ("holdfast.cli.cronjob.documents:EntryDocument", "cronjob history"),
    "holdfast.cronjob.instant/1": ("holdfast.cli.cronjob.documents:InstantDocument", "cronjob next"),
    "holdfast.cronjob.remove/1": ("holdfast.cli.cronjob.documents:RemovedDocument", "cronjob remove"),
    "holdfast.cronjob.run/1": ("holdfast.cli.cronjob.documents:RunDocument", "cronjob run"),
    "holdfast.cronjob.switch/1": (
        "holdfast.cli.cronjob.documents:SwitchedDocument",
        "cronjob enable, cronjob disable",
    ),
    "holdfast.doctor/1": ("holdfast.cli.doctor:Diagnosis", "doctor"),
    "holdfast.error/1": ("holdfast.cli.documents:ErrorDocument", "every command that fails, on stderr"),
    "holdfast.graph/1": ("holdfast.cli.documents:GraphDocument", "graph"),
    "holdfast.health/1": ("holdfast.cli.health:Health", "health"),
    "holdfast.job/1": ("holdfast.cli.documents:JobDocument", "list, dlq list"),
    "holdfast.breaker/1": ("holdfast.cli.documents:BreakerDocument", "breaker list, breaker show"),
    "holdfast.breaker.reset/1": ("holdfast.cli.documents:BreakerResetDocument", "breaker reset"),
    "holdfast.breaker.trip/1": ("holdfast.cli.documents:BreakerTrippedDocument", "breaker trip"),
    "holdfast.job.cancel/1": ("holdfast.cli.documents:CancelDocument", "cancel"),
    "holdfast.job.count/1": ("holdfast.cli.documents:CountDocument", "list --count, dlq list --count"),
    "holdfast.job.delete/1": ("holdfast.cli.documents:DeleteDocument", "delete"),
    "holdfast.job.discard/1": ("holdfast.cli.documents:DiscardDocument", "dlq discard"),
    "holdfast.job.enqueue/1": ("holdfast.cli.documents:EnqueuedDocument", "enqueue"),
    "holdfast.job.history/1": ("holdfast.cli.documents:HistoryDocument", "run, wait, enqueue --wait"),
    "holdfast.job.log/1": ("holdfast.cli.documents:LogDocument", "logs, enqueue --follow --jsonl"),
    "holdfast.job.plan/1": ("holdfast.cli.documents:PlannedDocument", "enqueue --dry-run"),
    "holdfast.job.rehearsal/1": ("holdfast.cli.documents:RehearsalDocument", "cancel, retry, delete, dlq: --dry-run"),
    "holdfast.job.retry/1": ("holdfast.cli.documents:RetryDocument", "retry, dlq retry"),
    "holdfast.job.shown/1": ("holdfast.cli.documents:ShownDocument", "show, dlq show"),
    "holdfast.lock/1": ("holdfast.cli.documents:LockDocument", "lock list, lock show"),
    "holdfast.migrate/1": ("holdfast.cli.migrate:MigrateDocument", "migrate"),
    "holdfast.migrate.sql/1": ("holdfast.cli.migrate:SqlDocument", "migrate --sql"),
    "holdfast.queue/1": ("holdfast.cli.documents:QueueDocument", "queue list, queue show"),
    "holdfast.queue.limit/1": ("holdfast.cli.documents:QueueLimitDocument", "queue limit"),
    "holdfast.queue.pause/1": ("holdfast.cli.documents:PausedDocument", "queue pause"),
    "holdfast.queue.purge/1": ("holdfast.cli.documents:PurgeDocument", "queue purge"),
    "holdfast.queue.reap/1": ("holdfast.cli.documents:ReapDocument", "queue reap"),
    "holdfast.queue.resume/1": ("holdfast.cli.documents:ResumedDocument", "queue resume"),
    "holdfast.status/1": ("holdfast.cli.status:Status", "status, top"),
    "holdfast.worker/1": ("holdfast.cli.worker.views:WorkerDocument", "worker list, worker show"),
    "holdfast.worker.result/1": (
        "holdfast.cli.worker.running:ResultDocument",
        "worker start, queue work: one for each run",
    ),
    "holdfast.worker.stop/1": ("holdfast.cli.worker.stop:StopDocument", "worker stop"),
}
# The schema of the configuration file is derived from the table of settings.
CONFIGURATION: Final = "config"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class UnknownSchema(click.ClickException):
    """There is no document of that name."""

    exit_code = NOT_FOUND


@click.command()
@click.argument("name", required=False)
def schema(name: str | None) -> None:
    """Print the JSON Schema of a document that --json prints. Without a NAME, list the schemas.

    `config` is the schema of the configuration file, which editors can use for completion and validation.

    \b
    Examples:
      holdfast schema
      holdfast schema holdfast.health/1
      holdfast schema config > holdfast.schema.json
    """
    from holdfast.config.schema import settings_schema

    if name == CONFIGURATION:
        write_json(settings_schema(), is_indented=True)
    elif name is not None:
        write_json(schema_of(name))
    else:
        print_table(("NAME", "PRINTED BY"), [(each, commands) for each, (_, commands) in DOCUMENTS.items()])


def document(name: str) -> tuple[str, Any]:
    """The full name of a document and its type; default: its newest version."""
    full = name if name.startswith("holdfast.") else f"holdfast.{name}"
    whole = max((each for each in DOCUMENTS if each.partition("/")[0] == full), default=full)
    if whole not in DOCUMENTS:
        hint = did_you_mean(name, (CONFIGURATION,)) or did_you_mean(whole, DOCUMENTS) or "see  holdfast schema"
        raise UnknownSchema(f"there is no schema '{name}'; {hint}")
    module, _, attribute = DOCUMENTS[whole][0].partition(":")
    return whole, getattr(import_module(module), attribute)


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a document."""
    whole, kind = document(name)
    [described], components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    # Every member is always printed, even where the type has a default.
    members = components[kind.__name__]["properties"]
    components[kind.__name__]["required"] = list(members)
    for member in members.values():
        member.pop("default", None)
    return {"$schema": DIALECT, "$id": whole, **described, "$defs": components}
