"""The program of an executor child: imports the application and runs what the worker sends.

Started as `python -m holdfast.executor SETUP SOCKET`; `SETUP` is JSON, `SOCKET` the number of an inherited descriptor.
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
    """What a child has to know: the application, what the command line said about it, and its limits.

    `url` is a place for the jobs, or the name of one of the application's backends; `backend` is the one worked here.
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
        return f"Setup({self.app!r}, {self.backend!r})"  # the URL may hold a password

    def application(self) -> Holdfast:
        """The application as this process is to see it."""
        hf = load_app(self.app) if self.app else Holdfast()
        if self.url and self.url not in hf.deployment.urls:
            hf.move_to(hf.deployment.with_default(self.url))
        hf.commands.allowed |= frozenset(self.allow)
        hf.prepare()
        return hf


def lower_priority(nice: int) -> None:
    """Leave the processor to the worker when it wants it: it renews leases and feeds the others, and needs little.

    So jobs that are busy cannot keep it from that. What the priority means is asked within the group of processes
    that the kernel shares the processor with: in a container or under systemd, only there.
    """
    if not nice:
        return
    os.nice(nice)
    # Where the kernel makes a group of every session, as it does on desktops, the priority of the group counts.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))
    # The same share, but no haste: given work, they wait for the end of the worker's turn.
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> int:
    setup = msgspec.json.decode(sys.argv[1], type=Setup)
    lower_priority(setup.nice)
    connection = socket.socket(fileno=int(sys.argv[2]))
    os.set_inheritable(connection.fileno(), False)
    os.dup2(2, 1)  # what jobs write past `sys.stdout` is for people: the worker's stdout may be read by a program
    try:
        hf = setup.application()
    except HoldfastError as problem:
        connection.sendall(packed(Broken(str(problem))))
        return 1
    log_to_stderr(setup.log_level)
    gc.freeze()  # what was imported stays: the collector need not walk through it
    connection.sendall(packed(Ready()))
    serve(
        connection,
        hf.registry,
        slots=setup.slots,
        limits=Limits(setup.max_jobs, setup.max_memory_bytes),
        # A child opens the engine only for a handler that asks for a transaction.
        transactions=lambda job_id, delivery: hf.backend(setup.backend).transaction(job_id, delivery),
        middleware=hf.extensions.middleware,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
