"""The program of an executor process: imports the application and runs the jobs that the worker sends.

Started as `python -P -m holdfast.executor SETUP SOCKET [SESSION]`: `SETUP` is JSON, the others are numbers of inherited
descriptors. The session file stays open as long as this process lives; no program that a job starts inherits it.
"""

import gc
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.app import Holdfast
from holdfast.deployment import DEFAULT
from holdfast.errors import HoldfastError
from holdfast.loading import load_app
from holdfast.logs import log_to_stderr
from holdfast.worker.executors.child import Limits, serve
from holdfast.worker.executors.frames import Broken, Ready, packed


class Setup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of an executor: the application, the command-line options that change it, and its limits.

    `url` is a URL or the name of one of the application's backends; `backend` is the one whose jobs run here.
    """

    app: str | None = None
    url: str | None = None
    backend: str = DEFAULT
    allow: tuple[str, ...] = ()
    slots: int = 1
    max_jobs: int = 0
    max_memory_bytes: int = 0
    nice: int = 0
    log_level: str = "warning"

    def __repr__(self) -> str:
        return f"Setup({self.app!r}, {self.backend!r})"  # the URL may contain a password

    def application(self) -> Holdfast:
        """The application with the options of the command line. Everything that its settings name is loaded."""
        hf = load_app(self.app) if self.app else Holdfast()
        if self.url and self.url not in hf.deployment.urls:
            hf.engines.move_to(hf.deployment.with_default(self.url))
        hf.commands.allowed |= frozenset(self.allow)
        hf.workers.prepare()
        return hf


def lower_priority(nice: int) -> None:
    """Let the worker have the CPU first: it needs little, and must renew leases even if jobs keep every core busy.

    The kernel compares priorities only within one scheduling group, such as a container or a systemd service.
    """
    if not nice:
        return
    os.nice(nice)
    # On desktops, the kernel creates a scheduling group per session, and the priority of that group matters.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))
    # As batch processes, executors that become runnable do not interrupt the worker.
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> int:
    setup = msgspec.json.decode(sys.argv[1], type=Setup)
    lower_priority(setup.nice)
    connection = socket.socket(fileno=int(sys.argv[2]))
    for descriptor in map(int, sys.argv[2:]):
        os.set_inheritable(descriptor, False)
    os.dup2(2, 1)  # a program may read the worker's stdout, so what jobs write to descriptor 1 goes to stderr
    try:
        hf = setup.application()
    except HoldfastError as problem:
        connection.sendall(packed(Broken(str(problem))))
        return 1
    log_to_stderr(setup.log_level)
    gc.freeze()  # imported modules stay in memory: the collector need not traverse them
    connection.sendall(packed(Ready()))
    serve(
        connection,
        hf.registry,
        slots=setup.slots,
        limits=Limits(setup.max_jobs, setup.max_memory_bytes),
        # An executor opens the engine only for a handler that asks for a transaction or for the results of its parents.
        transactions=lambda job_id, delivery: hf.backend(setup.backend).transaction(job_id, delivery),
        read=lambda job_id: hf.backend(setup.backend).get(job_id),
        middleware=hf.extensions.middleware,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
