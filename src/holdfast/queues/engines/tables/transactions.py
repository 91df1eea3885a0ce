"""Transactions that are not the engine's: of a caller that enqueues, and of a handler that commits with its job.

A caller may pass the driver's connection, or an object of SQLAlchemy or Django that wraps one. Neither is imported
here: a caller that passes such an object has already imported its package.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import LeaseLost, TransactionRefused
from holdfast.queues.contract import EngineTransaction
from holdfast.queues.engines.tables.rows import Row, text
from holdfast.values import Ack, AttemptRecord, CellWrite, JobEnvelope, JobLease

_ASYNC = "asyncio connections are not supported: pass the driver's synchronous connection, or enqueue after the commit"


def driver_connection(tx: object) -> Any:
    """The DB-API connection of a caller's transaction: the object itself, or the one that it wraps."""
    module = type(tx).__module__.partition(".")[0]
    if module == "django" or hasattr(tx, "ensure_connection"):
        return _below_django(tx)
    if module == "sqlalchemy":
        return _below_sqlalchemy(tx)
    if hasattr(tx, "fetchone"):
        raise TransactionRefused(f"tx is a cursor ({type(tx).__module__}.{type(tx).__qualname__}): pass its connection")
    return tx


def refused(tx: object, wanted: str) -> TransactionRefused:
    """The error for an object that is not a connection to this engine."""
    kind = f"{type(tx).__module__}.{type(tx).__qualname__}"
    if "async" in kind.lower():
        return TransactionRefused(f"tx is a {kind}: {_ASYNC}")
    return TransactionRefused(
        f"tx is a {kind}, but these jobs are in another engine: pass {wanted}, a SQLAlchemy connection or session on "
        "one, or Django's connection"
    )


def not_begun(how: str) -> TransactionRefused:
    """The error for a connection that would commit each statement by itself."""
    return TransactionRefused(
        f"tx is not in a transaction, so the job could be stored without your other writes: {how}"
    )


class HandlersTransaction(EngineTransaction):
    """The transaction of a handler. An engine opens it and implements its three steps."""

    def __init__(self, job_id: str, delivery: int) -> None:
        try:
            claim = self._claim(job_id, delivery)
        except BaseException:
            self.roll_back()
            raise
        if claim is None:
            self.roll_back()
            raise LeaseLost(job_id)
        self._lease = _lease_of_run(job_id, delivery, claim)

    def complete(
        self,
        record: AttemptRecord,
        *,
        leaves: Sequence[str] = (),
        writes: Sequence[CellWrite] = (),
        enqueues: Sequence[JobEnvelope] = (),
    ) -> None:
        lease = self._lease
        ack = Ack(lease=lease, record=record, leaves=tuple(leaves), writes=tuple(writes), enqueues=tuple(enqueues))
        try:
            if not self._is_open():
                raise TransactionRefused(
                    f"the handler of job '{lease.id}' committed or rolled back its transaction: Holdfast does that, "
                    "together with the job"
                )
            is_held = self._commit(ack)
        finally:
            self.roll_back()
        if not is_held:
            raise LeaseLost(lease.id)

    @abstractmethod
    def _claim(self, job_id: str, delivery: int) -> Row | None:
        """The claim of this delivery (number, token, queue); None if it no longer holds the job."""

    @abstractmethod
    def _is_open(self) -> bool:
        """Whether the handler left the transaction open."""

    @abstractmethod
    def _commit(self, ack: Ack) -> bool:
        """Settle, then commit. Returns whether the lease still held; if not, nothing is committed."""


def _lease_of_run(job_id: str, delivery: int, claim: Row) -> JobLease:
    """The part of a run's lease that settling needs; the engine knows when it expires."""
    seq, token, queue = claim
    return JobLease(
        id=job_id,
        queue=text(queue),
        wire=b"",
        token=seq,
        owner_token=bytes(token).hex(),
        ttl_s=0.0,
        claimed_at=from_us(0),
        fence_at=0.0,
        delivery=delivery,
    )


def _below_django(tx: Any) -> Any:
    tx.ensure_connection()
    if tx.get_autocommit():
        raise not_begun(f"enqueue inside  with transaction.atomic(using={tx.alias!r})")
    return tx.connection


def _below_sqlalchemy(tx: Any) -> Any:
    if type(tx).__module__.startswith("sqlalchemy.ext.asyncio"):
        raise refused(tx, "")
    if callable(getattr(tx, "connection", None)):  # a session
        tx = tx.connection()
    below = getattr(getattr(tx, "connection", None), "driver_connection", None)
    if below is None:
        raise TransactionRefused(
            f"tx is a SQLAlchemy {type(tx).__name__}, which has no connection: pass a Connection or a Session of "
            "SQLAlchemy 1.4.24 or newer"
        )
    # SQLAlchemy begins with the first statement that it executes itself; ours do not count.
    if not tx.in_transaction():
        tx.begin()
    return below
