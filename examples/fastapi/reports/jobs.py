"""The jobs: what is asked for, what comes back, and the session that a run works in."""

import os
import sqlite3
from collections.abc import Iterator

from pydantic import BaseModel

from holdfast import Depends, Holdfast, JobContext

hf = Holdfast()


class Order(BaseModel):
    """What is asked for; it is checked by FastAPI when it comes in, and by Holdfast when it is enqueued and run."""

    title: str
    amounts: list[float]


class Report(BaseModel):
    title: str
    lines: int
    total: float


def session() -> Iterator[sqlite3.Connection]:
    """A connection in a transaction that ends with the run: committed if it succeeds, else rolled back."""
    connection = sqlite3.connect(os.environ.get("REPORTS_DB", "reports.db"))
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS lines (report TEXT, amount REAL)")
        yield connection
        connection.commit()
    finally:
        connection.close()  # what was not committed is gone


@hf.job(queue="reports", timeout=60)
def build(context: JobContext, order: Order, database: sqlite3.Connection = Depends(session)) -> Report:
    """Write a line for each amount. A run that fails half way leaves no lines."""
    context.progress(0, len(order.amounts), order.title)
    # A run may be repeated after all was written and before that was noted; it begins again then.
    database.execute("DELETE FROM lines WHERE report = ?", (context.id,))
    for number, amount in enumerate(order.amounts, start=1):
        database.execute("INSERT INTO lines VALUES (?, ?)", (context.id, amount))
        if amount < 0:
            raise ValueError(f"line {number}: {amount:g} is less than nothing")
        context.progress(number, len(order.amounts), order.title)
    return Report(title=order.title, lines=len(order.amounts), total=sum(order.amounts))
