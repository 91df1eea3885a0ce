"""`OpenEngines`: the engines of an application, each opened when it is first used."""

import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from holdfast.deployment import DEFAULT, Deployment, Opened
from holdfast.queues.addresses import kind_of
from holdfast.queues.contract import Engine
from holdfast.queues.signing import Signer
from holdfast.worker_factory import WorkerFactory


class OpenEngines:
    """The open engines of a deployment, by the names of their backends. Safe to use from several threads."""

    def __init__(self, deployment: Deployment, workers: WorkerFactory) -> None:
        self.deployment = deployment
        self._workers = workers
        self._lock = threading.Lock()
        self._opened: dict[str, Opened] = {}
        self._inline_workers = ExitStack()
        self._substitute: Opened | None = None

    def get(self, name: str = DEFAULT) -> Opened:
        """The engine of a backend and its keys."""
        found = self._opened.get(name)
        if found is None:
            with self._lock:
                found = self._opened.get(name)
                if found is None:
                    found = self._opened[name] = self._open(name)
        return found

    def _open(self, name: str) -> Opened:
        url = self.deployment.url(name)
        if self._substitute is not None:
            return self._substitute
        opened = self.deployment.open(name)
        if kind_of(url).runs_inline:
            from holdfast.queues.engines.memory.sync import SyncEngine

            if isinstance(opened.engine, SyncEngine):
                worker = self._inline_workers.enter_context(self._workers.worker(opened))
                opened.engine.attach(worker.process_once)
        return opened

    def move_to(self, deployment: Deployment) -> None:
        """Close all engines and use this deployment from now on."""
        self.close()
        self.deployment = deployment

    @contextmanager
    def replaced_by(self, engine: Engine, signer: Signer) -> Generator[None]:
        """Use this engine for every backend inside the `with` block, even after a `close()`.

        Engines that were open before stay open and are used again afterwards.
        """
        with self._lock:
            before = self._opened, self._substitute, self._inline_workers
            self._opened, self._substitute, self._inline_workers = {}, Opened(engine, signer), ExitStack()
        try:
            yield
        finally:
            with self._lock:
                self._opened, self._substitute, self._inline_workers = before

    def close(self) -> None:
        """Close every engine. An engine that is used again is reopened."""
        with self._lock:
            opened, self._opened = list(self._opened.values()), {}
        try:
            self._inline_workers.close()
        finally:
            for one in opened:
                one.engine.close()
