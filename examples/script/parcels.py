"""A handler class: a typed payload, hooks around each run, and the ways a run can end.

    python parcels.py

The `sync` engine runs a job where it is enqueued. Its time is virtual: snoozing for half an hour takes no time. With
any other URL, `holdfast worker start parcels:hf --queue parcels` runs the same handler.
"""

from dataclasses import dataclass
from datetime import timedelta

from holdfast import Cancel, ExecutionResult, Handler, Holdfast, JobContext, Snooze
from holdfast.errors import JobError

hf = Holdfast("sync://")


@dataclass(frozen=True)
class Parcel:
    """The payload. A job whose payload does not match becomes a dead letter and is not run."""

    order: int
    address: str
    weight_kg: float = 1.0


class AddressUnknown(Exception):
    """A retry would not help."""


@hf.handler("parcels.send")
class SendParcel(Handler):
    payload_type = Parcel
    no_retry = (AddressUnknown,)

    def __init__(self) -> None:
        self._has_asked = False

    def before_run(self, context: JobContext) -> None:
        """Runs before each attempt; an exception fails the attempt."""
        context.write(f"attempt {context.attempt} of {context.id}\n")

    def handle(self, context: JobContext) -> object:
        parcel: Parcel = context.payload
        if parcel.weight_kg > 30:
            return Cancel(f"{parcel.weight_kg:g} kg is too heavy to send")
        if not parcel.address:
            raise AddressUnknown(f"order {parcel.order} has no address")
        if not self._depot_is_open():
            return Snooze(timedelta(minutes=30))
        # The id of a job is the same in every run, so it can serve as an idempotency key.
        return {"tracking": f"HF-{parcel.order}", "request": context.id}

    def after_run(self, context: JobContext, result: ExecutionResult) -> None:
        """Runs after each attempt, whatever its outcome; it cannot change the verdict."""
        context.write(f"{result.outcome} after {result.duration_s:.3f} s\n")

    def _depot_is_open(self) -> bool:
        """Return False on the first call, so that the job snoozes once."""
        was_asked, self._has_asked = self._has_asked, True
        return was_asked


def send(job_id: str, parcel: Parcel) -> None:
    try:
        hf.define("parcels.send", parcel).queue("parcels").id(job_id).dispatch()
        print(hf.handle(job_id).result())
    except JobError as problem:
        print(problem)
    history = hf.backend().get(job_id)
    for past in history.attempts if history else ():
        print(f"  {past.record.outcome}: {past.record.output.splitlines()}")


def main() -> None:
    send("order-1", Parcel(order=1, address="12 St James's Square"))
    send("order-2", Parcel(order=2, address=""))
    send("order-3", Parcel(order=3, address="12 St James's Square", weight_kg=80))


if __name__ == "__main__":
    main()
