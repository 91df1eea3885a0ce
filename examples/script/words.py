"""One file and one process: define a job, enqueue it, work it, read the result.

    python words.py

Jobs are usually enqueued by one process and worked by another (`holdfast worker start words:hf`); nothing in the
definition of the job changes with that.
"""

from contextlib import closing

from holdfast import Holdfast

hf = Holdfast()


@hf.job(max_retries=2, timeout=30)
def count_words(text: str) -> int:
    return len(text.split())


def main() -> None:
    with hf, closing(hf.worker()) as worker:
        # From here on the job is on disk: killing this program would not lose it.
        handle = count_words.enqueue("a job is held until it is done")
        print(f"kept as {handle.id}: {handle.status()}")

        # A burst ends when nothing is due any more; without it the loop waits for jobs until it is stopped.
        hf.loop(worker, burst=True).run()
        print(f"{handle.status()}: {handle.result()} words")


if __name__ == "__main__":
    main()
