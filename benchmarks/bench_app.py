"""The application that the benchmarks' workers run; `--url` names the backend."""

from bench_job import note_start
from holdfast import Holdfast

hf = Holdfast()


@hf.job
def noop(number: int, address: str, text: str) -> None:
    note_start(number)
