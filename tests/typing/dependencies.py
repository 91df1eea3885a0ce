"""What the type checkers say of dependencies. Nothing here is run: they fail on an expected error that is none."""

from collections.abc import AsyncGenerator, Generator
from typing import Annotated, assert_type

from holdfast import Depends, Holdfast, JobContext, JobHandle

hf = Holdfast("memory://")


class Session: ...


def make() -> Session:
    return Session()


async def make_async() -> Session:
    return Session()


def opened() -> Generator[Session]:
    yield Session()


async def opened_async() -> AsyncGenerator[Session]:
    yield Session()


def text(context: JobContext, size: int = 3) -> str:
    return context.id * size


SessionOfRun = Annotated[Session, Depends(opened)]

# The default has the type of what the factory makes, whatever kind of factory it is.
assert_type(Depends(make), Session)
assert_type(Depends(make_async), Session)
assert_type(Depends(opened), Session)
assert_type(Depends(opened_async), Session)
assert_type(Depends(Session), Session)


@hf.job
def pay(order: int, session: Session = Depends(opened), label: str = Depends(text)) -> str:
    return f"{order} {session} {label}"


@hf.job
def wrong(order: int, session: Session = Depends(text)) -> None:  # type: ignore[assignment] # pyright: ignore[reportArgumentType]
    ...


@hf.job
def aliased(order: int, session: SessionOfRun = Depends()) -> None: ...


@hf.job
def bare(order: int, session: SessionOfRun) -> None: ...


def producer(session: Session) -> None:
    # Nobody is asked for what a run is given.
    assert_type(pay.enqueue(7), JobHandle[str])
    aliased.enqueue(7)
    pay.enqueue("7")  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]

    # A plain call passes it.
    assert_type(pay(7, session=session, label="x"), str)
    pay(7, session="no")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    # What cannot be said: an annotation alone does not make a parameter optional, so the checkers ask for it; and a
    # dependency that is passed to `enqueue` is refused when the call is made, not by them.
    bare.enqueue(7)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
    pay.enqueue(7, session=session)
