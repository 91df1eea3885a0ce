"""Reading the pages of the documentation, and trying out what they say. Nothing but the standard library is needed.

Every ```console or ```sh block with lines that begin with `$ ` is run, page by page, in a fresh project directory; the
lines below a command are what it prints, stderr included. Comments before a block steer that:

    <!-- test: skip (why) -->         this block is not run
    <!-- test: exit 4 -->             its last command ends with that code instead of 0
    <!-- test: env NAME=VALUE -->     its commands see this variable, to be quick
    <!-- test: file app.py -->        this block is written to that file
    <!-- test: run -->                this Python block is run; a ```text block right behind it is what it prints
    <!-- test: wire NAME -->          a part of the worked example of docs/wire.md

Ids, times, spans, versions and the project's directory may differ, and so may the width of columns. `…` stands for any
text in a line, or, alone in a line, for any number of lines. A command that ends with `&` runs beside the others and
has to end by itself. What a command does to the directory or to PATH holds for those behind it.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
BIN = Path(sys.executable).parent
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
SHOWN_PLACE = "/srv"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_MARK = re.compile(r"<!-- test: (\w+) ?(.*?) -->\n\Z")
_MOVING = (
    (re.compile(r"^holdfast: (setting up \.venv|installing) .*\n", re.MULTILINE), ""),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"), "<time>"),
    (re.compile(r"^\d\d:\d\d:\d\d (?=[A-Z]+ )", re.MULTILINE), "<time> "),
    (re.compile(r"(?<![\w.])\d+(\.\d+)?(e[+-]?\d+)? (µs|ms|s|m|h|d)\b"), "<span>"),
    (re.compile(r"\b(holdfast|python|sqlite) \d+(\.\w+)+"), r"\1 <version>"),
    (re.compile(r"\brun-[0-9a-f]{12}\b"), "run-…"),
    (re.compile(r"[ \t]+"), " "),
)
# Runs the command where the one before it has left off, and notes where this one does.
_STEP = """\
cd "$(cat "$0/directory")"
PATH=$(cat "$0/path")
eval "$1"
code=$?
pwd >"$0/directory"
printf '%s\\n' "$PATH" >"$0/path"
exit $code
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with what the comment before it says."""

    page: Path
    line: int
    section: str
    language: str
    text: str
    mark: str
    detail: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language in ("console", "sh") and self.mark != "skip" and self.text.startswith("$ ")

    @property
    def is_step(self) -> bool:
        return self.is_shell or self.mark in ("file", "run")

    def commands(self) -> Iterator[tuple[str, str]]:
        """Each command with the lines that it is said to print."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    section, read_to = "", 0
    for fence in FENCE.finditer(text):
        section = next(reversed(HEADING.findall(text, read_to, fence.start())), section)
        read_to = fence.end()
        mark = _MARK.search(text, max(0, fence.start() - 200), fence.start())
        found.append(
            Block(
                page=page,
                line=text.count("\n", 0, fence.start()) + 1,
                section=section,
                language=fence[1],
                text=fence[2],
                mark=mark[1] if mark else "",
                detail=mark[2] if mark else "",
            )
        )
    return found


class Site:
    """A fresh place, in which a page is tried out: a project `shop`, and beside it what looks like a checkout."""

    def __init__(self, place: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.place = place
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HOLDFAST_", "XDG_", "PYTHON")) and name not in ("COLUMNS", "FORCE_COLOR")
        }
        self.environment = {**kept, "LC_ALL": "C.UTF-8", "TZ": "UTC", **(environment or {"HOME": str(place)})}
        self._state = place / ".state"
        self._state.mkdir()
        self._beside: list[tuple[str, subprocess.Popen[str]]] = []

    def in_a_project(self) -> "Site":
        """Begin in an empty project, with Holdfast installed."""
        shop = self.place / "shop"
        shop.mkdir()
        (shop / "holdfast.toml").touch()
        return self.at(shop, f"{BIN}:{os.environ['PATH']}")

    def in_a_checkout(self) -> "Site":
        """Begin in what looks like a checkout; its programs are this one's. test_launcher.py tries the real ones."""
        checkout = self.place / "holdfast"
        (checkout / ".venv" / "bin").mkdir(parents=True)
        (checkout / "holdfast.toml").touch()
        (checkout / ".venv" / "bin" / "activate").write_text(f'PATH="{BIN}:$PATH"\n')
        launcher = checkout / "holdfast"
        launcher.write_text(f'#!/bin/sh\nexec "{BIN}/holdfast" "$@"\n')
        launcher.chmod(0o755)
        return self.at(checkout, os.environ["PATH"])

    def at(self, directory: Path, path: str) -> "Site":
        (self._state / "directory").write_text(f"{directory}\n")
        (self._state / "path").write_text(f"{path}\n")
        return self

    @property
    def directory(self) -> Path:
        """Where the commands so far have led."""
        return Path((self._state / "directory").read_text().removesuffix("\n"))

    def run(self, command: str, extra: Mapping[str, str], *, timeout: float) -> tuple[int, str]:
        """Run a command of the page: its exit code and what it printed."""
        process = self._start(command, extra)
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output.replace(str(self.place), SHOWN_PLACE)

    def run_beside(self, command: str, extra: Mapping[str, str]) -> None:
        self._beside.append((command, self._start(command, extra)))

    def finish(self) -> None:
        """Wait for what runs beside."""
        for command, process in self._beside:
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, f"$ {command} &\n{output}"

    def abort(self) -> None:
        for _, process in self._beside:
            process.kill()
            process.communicate()

    def _start(self, command: str, extra: Mapping[str, str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", "-c", _STEP, str(self._state), command],
            env={**self.environment, **extra},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )


def still(text: str) -> str:
    """The text with everything that differs from run to run replaced."""
    for pattern, replacement in _MOVING:
        text = pattern.sub(replacement, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def fits(shown: str, printed: str) -> bool:
    lines = [
        r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in still(shown).split("\n")
    ]
    return re.fullmatch("".join(lines), still(printed) + "\n") is not None


@dataclass(frozen=True)
class Step:
    """Something a page asks for, done: how long it took."""

    section: str
    what: str
    seconds: float


@dataclass
class Walk:
    """A page tried out step by step, in a site. `is_quick` lets its marks shorten what takes long."""

    site: Site
    is_quick: bool = True
    on_step: Callable[[Step], None] = lambda _: None
    timeout: float = 300

    def through(self, page: Path) -> None:
        """Everything the page says, in its order; what differs is an AssertionError."""
        blocks = blocks_of(page)
        for block, behind in zip(blocks, [*blocks[1:], None], strict=True):
            if block.mark == "file":
                file = self.site.directory / block.detail
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
            elif block.mark == "run":
                self._python(block, behind)
            elif block.is_shell:
                self._shell(block)
        self.site.finish()

    def _shell(self, block: Block) -> None:
        extra = dict([block.detail.split("=", 1)]) if block.mark == "env" and self.is_quick else {}
        commands = list(block.commands())
        for number, (command, shown) in enumerate(commands, start=1):
            if command.endswith(" &"):
                self.site.run_beside(command.removesuffix(" &"), extra)
                continue
            code, printed = self._timed(block, command, extra)
            expected = int(block.detail) if block.mark == "exit" and number == len(commands) else 0
            said = f"{block.place}\n$ {command}\n{printed}"
            assert code == expected, f"{said}ended with {code}, not {expected}"
            assert fits(shown, printed), f"{said}\nis not what the page shows:\n{shown}"

    def _python(self, block: Block, behind: Block | None) -> None:
        (self.site.directory / "snippet.py").write_text(block.text, encoding="utf-8")
        code, printed = self._timed(block, "python snippet.py", {})
        assert code == 0, f"{block.place}\n{printed}"
        if behind is not None and behind.language == "text" and not behind.mark:
            assert fits(behind.text, printed), f"{block.place}\n{printed}\nis not what the page shows:\n{behind.text}"

    def _timed(self, block: Block, command: str, extra: Mapping[str, str]) -> tuple[int, str]:
        began = time.monotonic()
        answer = self.site.run(command, extra, timeout=self.timeout)
        self.on_step(Step(block.section, command, time.monotonic() - began))
        return answer
