"""The jobs, their input and output, and the database session of a run."""

import os
import sqlite3
from collections.abc import Iterator

from pydantic import BaseModel

from holdfast import Depends, Holdfast, JobContext

hf = Holdfast()


class Order(BaseModel):
    """The input: FastAPI validates it in a request, and Holdfast when the job is enqueued and run."""

    title: str
    amounts: list[float]


class Report(BaseModel):
    title: str
    lines: int
    total: float


def session() -> Iterator[sqlite3.Connection]:
    """A connection with a transaction that is committed if the run succeeds, and otherwise rolled back."""
    connection = sqlite3.connect(os.environ.get("REPORTS_DB", "reports.db"))
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS lines (report TEXT, amount REAL)")
        yield connection
        connection.commit()
    finally:
        connection.close()  # rolls back if nothing was committed


@hf.job(queue="reports", timeout=60)
def build(context: JobContext, order: Order, database: sqlite3.Connection = Depends(session)) -> Report:
    """Write a line for each amount. A run that fails half way leaves no lines."""
    context.progress(0, len(order.amounts), order.title)
    # A worker can die after the commit and before the job is settled. The job then runs again, so start clean.
    database.execute("DELETE FROM lines WHERE report = ?", (context.id,))
    for number, amount in enumerate(order.amounts, start=1):
        database.execute("INSERT INTO lines VALUES (?, ?)", (context.id, amount))
        if amount < 0:
            raise ValueError(f"line {number}: {amount:g} is negative")
        context.progress(number, len(order.amounts), order.title)
    return Report(title=order.title, lines=len(order.amounts), total=sum(order.amounts))
