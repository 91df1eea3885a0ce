"""One file and one process: define a job, enqueue it, run it, read the result.

    python words.py

Usually one process enqueues jobs and another one runs them (`holdfast worker start words:hf`). The definition of the
job stays the same.
"""

from contextlib import closing

from holdfast import Holdfast

hf = Holdfast()


@hf.job(max_retries=2, timeout=30)
def count_words(text: str) -> int:
    return len(text.split())


def main() -> None:
    with hf, closing(hf.worker()) as worker:
        # Once enqueued, the job is on disk. It would survive if this program were killed now.
        handle = count_words.enqueue("a job is held until it is done")
        print(f"stored as {handle.id}: {handle.status()}")

        # With burst=True the loop returns when no job is due; otherwise it waits for jobs until it is stopped.
        hf.loop(worker, burst=True).run()
        print(f"{handle.status()}: {handle.result()} words")


if __name__ == "__main__":
    main()
