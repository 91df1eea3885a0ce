"""What to type next, where several commands advise the same."""

from holdfast.values import DEFAULT_QUEUE


def starting(queue: str = DEFAULT_QUEUE, *, app: str | None = None, job: str | None = None) -> str:
    """What starts a worker for the jobs of a queue; functions need their application, commands none."""
    from holdfast.handlers import COMMAND_KEY

    words = ["holdfast worker start"]
    if job != COMMAND_KEY:
        words.append(app or "APP")
    if queue != DEFAULT_QUEUE:
        words.append(f"--queue {queue}")
    return " ".join(words)
