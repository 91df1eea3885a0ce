"""The path of a newcomer, with nothing but the README: `python tests/surface/newcomer.py` clones, walks and times it.

Everything is as printed there: a fresh clone of what is committed here, in it a fresh environment that `./holdfast`
sets up, packages downloaded anew, no delay shortened. What a command prints is compared as in the tests. Any Python
from 3.11 on can run it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.surface.pages import README, ROOT, Site, Step, Walk

# Where the path leads past, in this order; the test holds the README to it.
STATIONS = {
    "a first job is kept": "./holdfast run ",
    "an own function is a job, with a result": "python app.py",
    "a dead letter is looked at": "holdfast dlq show ",
    "and retried": "holdfast dlq retry ",
    "until it is done": "holdfast wait ",
}


def walk(place: Path) -> list[Step]:
    """Clone, and do what the README says: every step with its time."""
    clone, began = place / "holdfast", time.monotonic()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    steps = [Step("", "git clone", time.monotonic() - began)]
    site = Site(place, environment={"HOME": os.environ["HOME"], "PIP_NO_CACHE_DIR": "1"})
    site.at(clone, _path_of_a_stranger())
    try:
        Walk(site, is_quick=False, on_step=steps.append, timeout=600).through(README)
    finally:
        site.abort()
    return steps


def _path_of_a_stranger() -> str:
    """PATH without the environments of this checkout or of whoever runs this."""
    places = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(place for place in places if not (Path(place).parent / "pyvenv.cfg").exists())


def steps_table(steps: list[Step]) -> str:
    """The steps as Markdown, with a line for each section."""
    lines = ["| Step | Seconds |", "|---|---|"]
    for section, group in groupby(steps, lambda step: step.section):
        inside = list(group)
        if section:
            lines.append(f"| **{section}** | **{sum(step.seconds for step in inside):.1f}** |")
        lines += [f"| `{step.what}` | {step.seconds:.1f} |" for step in inside]
    return "\n".join([*lines, f"| all of it | {sum(step.seconds for step in steps):.1f} |"])


def main() -> None:
    place = Path(tempfile.mkdtemp(prefix="newcomer-"))
    try:
        print(steps_table(walk(place)))
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
