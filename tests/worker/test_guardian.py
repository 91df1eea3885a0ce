"""A guarded program: when its exit is reported, none of its processes is left, and it never outlives its parent."""

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from holdfast.worker.executors import guardian
from holdfast.worker.executors.guarded_program import (
    GUARDIAN_DIED,
    UNKILLABLE,
    ExitStatus,
    GuardedProgram,
    Inherited,
    describe,
)

from ..faults.processes import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

PRELUDE = """
import os, signal, sys, time

def note(name, text=""):
    with open(f"{os.environ['NOTES']}/.{name}", "w") as file:
        file.write(text)
    os.rename(f"{os.environ['NOTES']}/.{name}", f"{os.environ['NOTES']}/{name}")

def rest():
    time.sleep(100)
    os._exit(0)

"""

# What a program leaves running; the last process of each line of descent prints "ready".
FAMILIES = {
    "a grandchild": """
if os.fork() == 0:
    note("ready"); rest()
""",
    "a grandchild whose parent is gone": """
if os.fork() == 0:
    if os.fork() == 0:
        note("ready"); rest()
    os._exit(0)
""",
    "a daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setpgid(0, 0); note("ready"); rest()
    os._exit(0)
""",
    "one that ignores signals": """
if os.fork() == 0:
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    note("ready"); rest()
""",
    "one that is stopped": """
if os.fork() == 0:
    note("ready"); os.kill(os.getpid(), signal.SIGSTOP); rest()
""",
    "a family with a name like a status line": """
if os.fork() == 0:
    os.setsid()
    with open("/proc/self/comm", "w") as comm:
        comm.write(") S 1 (1) 1 1")
    if os.fork() == 0:
        os.setsid(); note("ready"); rest()
    rest()
""",
    "one in the guardian's own group": """
if os.fork() == 0:
    os.setpgid(0, os.getsid(0)); note("ready"); rest()
""",
    "one that forks and ends, over and over": """
if os.fork() == 0:
    for number in range(100_000):
        if os.fork():
            os._exit(0)
        if number == 20:
            note("ready")
    os._exit(0)
""",
}

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


class Pen:
    """Starts programs and knows every process that came of them, by a mark in the environment, until it ends them."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self._mark = f"PEN={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self.environment = {**os.environ, "LC_ALL": "C.UTF-8", "NOTES": str(notes), name: value}
        self._guarded: list[GuardedProgram] = []
        self._askers: list[subprocess.Popen[bytes]] = []

    def guarded(self, argv: Sequence[str], *inherited: Inherited) -> GuardedProgram:
        started = GuardedProgram(argv, environment=self.environment, inherited=inherited)
        self._guarded.append(started)
        return started

    def program(self, code: str, *inherited: Inherited) -> GuardedProgram:
        """Start a program of a few lines of Python."""
        return self.guarded([sys.executable, "-I", "-S", "-c", PRELUDE + code], *inherited)

    def asker(self, code: str) -> subprocess.Popen[bytes]:
        """Start a process that uses `GuardedProgram` itself, for the program in its `program`."""
        names = "from holdfast.worker.executors.guarded_program import *\nimport subprocess\n"
        given = "program = [sys.executable, '-I', '-S', '-c', sys.argv[1]]\n"
        family = PRELUDE + FAMILIES["a family with a name like a status line"] + "rest()"
        asker = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + names + given + code, family],
            env=self.environment,
            start_new_session=True,
        )
        self._askers.append(asker)
        return asker

    def living(self) -> set[int]:
        """Whoever carries the mark; the dead have no environment."""
        found: set[int] = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self._mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.add(int(pid))
            except OSError:
                continue
        return found

    def noted(self, name: str) -> str:
        """What a program has noted under this name, waited for."""
        note = self.notes / name
        until(note.exists, f"the note {name!r}")
        return note.read_text()

    def end_all(self) -> None:
        for asker in self._askers:
            asker.kill()
            asker.wait()
        for started in self._guarded:
            started.close()

        def is_empty() -> bool:
            survivors = self.living()
            for pid in survivors:
                guardian.kill([pid])
            return not survivors

        until(is_empty, "the end of every process of this test")


@pytest.fixture
def pen(tmp_path: Path) -> Generator[Pen]:
    pen = Pen(tmp_path)
    try:
        yield pen
    finally:
        pen.end_all()


def end_of(guarded: GuardedProgram) -> ExitStatus:
    seen: list[ExitStatus] = []

    def look() -> bool:
        seen.extend(filter(None, [guarded.receive()]))
        return bool(seen)

    until(look, "the end of a program")
    return seen[0]


def pid_of(guarded: GuardedProgram) -> int:
    def look() -> int:
        assert guarded.receive() is None, "it should run on"
        return guarded.pid or 0

    return until(look, "the number of a program")


def children_of(parent: int) -> set[int]:
    return {pid for pid, process in guardian.processes().items() if process.parent == parent}


@pytest.mark.parametrize(
    ("code", "exit_code", "number", "words"),
    [
        ("sys.exit(0)", 0, None, "exit code 0"),
        ("sys.exit(3)", 3, None, "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGTERM)", None, signal.SIGTERM, "killed by SIGTERM"),
        (
            "os.kill(os.getpid(), signal.SIGRTMIN + 3)",
            None,
            signal.SIGRTMIN + 3,
            f"killed by signal {signal.SIGRTMIN + 3}",
        ),
        ("os.kill(0, signal.SIGKILL)", None, signal.SIGKILL, "killed by SIGKILL"),
        ("os.kill(0, signal.SIGSEGV)", None, signal.SIGSEGV, "killed by SIGSEGV"),
    ],
)
def test_it_tells_how_the_program_ended(
    pen: Pen, code: str, exit_code: int | None, number: int | None, words: str
) -> None:
    ended = end_of(pen.program("import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n" + code))

    assert (ended.exit_code, ended.signal, ended.left, ended.problem) == (exit_code, number, 0, "")
    assert describe(ended) == words


def test_it_tells_the_end_once(pen: Pen) -> None:
    guarded = pen.program("")
    end_of(guarded)

    assert guarded.receive() is None


def test_it_tells_how_much_memory_the_program_had(pen: Pen) -> None:
    size = 96 * 1024 * 1024

    assert size < end_of(pen.program(f"b'x' * {size}")).max_rss_bytes < 2 * size


def test_it_tells_the_number_of_the_program(pen: Pen) -> None:
    guarded = pen.program("note('pid', str(os.getpid())); rest()")

    assert pid_of(guarded) == int(pen.noted("pid"))


@pytest.mark.parametrize(
    ("program", "reason"),
    [("no-such-program", "No such file or directory"), ("/proc/version", "Permission denied")],
)
def test_it_tells_why_a_program_could_not_be_started(pen: Pen, program: str, reason: str) -> None:
    guarded = pen.guarded([program])
    ended = end_of(guarded)

    assert describe(ended) == f"could not be started: {reason}: {program!r}"
    assert guarded.pid is None


@every_family
def test_a_program_that_ends_leaves_nobody(pen: Pen, family: str) -> None:
    guarded = pen.program(family + "while not os.path.exists(os.environ['NOTES'] + '/ready'): time.sleep(0.005)")
    ended = end_of(guarded)

    assert pen.living() <= {guarded.guardian_pid}
    assert ended.exit_code == 0
    assert ended.left == 0


@every_family
def test_a_kill_leaves_nobody(pen: Pen, family: str) -> None:
    guarded = pen.program(family + "rest()")
    pen.noted("ready")
    guarded.kill()
    ended = end_of(guarded)

    assert pen.living() <= {guarded.guardian_pid}
    assert ended.signal == signal.SIGKILL
    assert ended.left == 0


@every_family
def test_closing_leaves_nobody(pen: Pen, family: str) -> None:
    guarded = pen.program(family + "rest()")
    pen.noted("ready")
    guarded.close()

    assert not pen.living()
    guarded.close()


def test_a_killed_asker_leaves_nobody(pen: Pen) -> None:
    asker = pen.asker("guarded = GuardedProgram(program, environment=os.environ)\nrest()")
    pen.noted("ready")
    asker.kill()

    until(lambda: not pen.living(), "the end of everything the killed process had asked for")


def test_a_killed_asker_leaves_nobody_though_a_fork_of_it_keeps_the_socket_open(pen: Pen) -> None:
    asker = pen.asker("""
guarded = GuardedProgram(program, environment=os.environ)
if os.fork() == 0:
    note("fork", str(os.getpid())); rest()
rest()
""")
    pen.noted("ready")
    fork = int(pen.noted("fork"))
    asker.kill()

    until(lambda: pen.living() == {fork}, "the end of everything but the fork")


def test_an_interrupt_from_the_terminal_does_not_reach_the_program(pen: Pen) -> None:
    asker = pen.asker("""
import signal
signal.signal(signal.SIGINT, lambda number, frame: note("heard"))
code = sys.argv[1].partition("if os.fork()")[0] + '''
signal.signal(signal.SIGINT, lambda number, frame: note("interrupted"))
signal.signal(signal.SIGUSR1, lambda number, frame: note("asked"))
note("pid", str(os.getpid()))
rest()
'''
guarded = GuardedProgram([*program[:-1], code], environment=os.environ)
while True:
    time.sleep(1)
""")
    program = int(pen.noted("pid"))
    os.killpg(asker.pid, signal.SIGINT)
    pen.noted("heard")

    # Python runs the handlers of waiting signals in the order of their numbers.
    os.kill(program, signal.SIGUSR1)
    pen.noted("asked")
    assert not (pen.notes / "interrupted").exists()


def test_a_guardian_is_deaf_to_signals_that_ask_it_to_leave(pen: Pen) -> None:
    guarded = pen.program("rest()")
    pid_of(guarded)
    for number in guardian.IGNORED_SIGNALS:
        os.kill(guarded.guardian_pid, number)
    guarded.kill()

    assert describe(end_of(guarded)) == "killed by SIGKILL"


def test_a_program_dies_with_its_guardian_though_nobody_looks(pen: Pen) -> None:
    guarded = pen.program("rest()")
    pid_of(guarded)
    os.kill(guarded.guardian_pid, signal.SIGKILL)

    until(lambda: not pen.living(), "the end of the program")


def test_a_killed_guardian_takes_the_program_and_its_session_along(pen: Pen) -> None:
    guarded = pen.program(FAMILIES["a grandchild whose parent is gone"] + "rest()")
    pen.noted("ready")
    os.kill(guarded.guardian_pid, signal.SIGKILL)

    ended = end_of(guarded)
    assert not pen.living()
    assert (ended.problem, ended.left) == (GUARDIAN_DIED, 0)
    assert describe(ended) == "its guardian died"


def test_who_adopts_orphans_can_kill_what_a_killed_guardian_left(pen: Pen) -> None:
    asker = pen.asker("""
from holdfast.worker.executors import guardian
adopting = orphans_adopted()
assert adopting.__enter__()
rests = [sys.executable, "-c", "import time; time.sleep(100)"]
known = subprocess.Popen(rests)
other = GuardedProgram(rests, environment=os.environ)
while other.pid is None:
    assert other.receive() is None
    time.sleep(0.005)
failing = GuardedProgram(["no-such-program"], environment=os.environ)
while not failing.receive():
    time.sleep(0.005)
failing.close()
note("none-found", str(kill_strays([known.pid]) == 0))
guarded = GuardedProgram(program, environment=os.environ)
while not os.path.exists(os.environ["NOTES"] + "/ready"):
    time.sleep(0.005)
below = guardian.descendants(guarded.guardian_pid, guardian.processes())
os.kill(guarded.guardian_pid, signal.SIGKILL)
while not guarded.receive():
    time.sleep(0.005)
guarded.close()
found = [kill_strays([known.pid])]
# Everything below a stray is killed by the same call.
while any(pid in below and not process.is_zombie for pid, process in guardian.processes().items()):
    time.sleep(0.005)
while found[-1]:
    time.sleep(0.005)
    found.append(kill_strays([known.pid]))
mine = {pid for pid, process in guardian.processes().items() if process.parent == os.getpid()}
note("found", str(max(found) > 0))
note("mine", str(mine == {known.pid, other.guardian_pid}))
note("living", str(known.poll() is None and other.receive() is None))
note("pids", f"{os.getpid()} {known.pid} {other.guardian_pid} {other.pid}")
rest()
""")
    living = {int(pid) for pid in pen.noted("pids").split()}

    assert [pen.noted(name) for name in ("none-found", "found", "mine", "living")] == ["True"] * 4
    assert pen.living() == living
    assert asker.poll() is None


def test_orphans_that_end_are_reaped_while_the_program_runs(pen: Pen) -> None:
    guarded = pen.program("""
for number in range(20):
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            os.setsid()
            note(f"orphan-{number}", str(os.getpid()))
        os._exit(0)
    os.waitpid(child, 0)
note("ready")
rest()
""")
    pen.noted("ready")
    orphans = {int(pen.noted(f"orphan-{number}")) for number in range(20)}

    until(lambda: orphans.isdisjoint(guardian.processes()), "no orphan, not even a dead one")
    assert children_of(guarded.guardian_pid) == {pid_of(guarded)}


def test_what_survives_sigkill_is_counted_and_killed_as_soon_as_it_can_be(
    pen: Pen, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = pen.notes / "weak_guardian.py"
    weak.write_text(f"""
import os, sys
sys.path.insert(0, {str(Path(guardian.__file__).parent)!r})
import guardian
kill = guardian.kill
guardian.kill = lambda targets: kill(targets) if os.path.exists({str(pen.notes / "strong")!r}) else None
guardian.PATIENCE_S = guardian.LOOK_ON_EVERY_S = 0.05
guardian.main()
""")
    monkeypatch.setattr(guardian, "__file__", str(weak))
    guarded = pen.program(FAMILIES["a daemon"] + "rest()")
    pen.noted("ready")
    guarded.kill()
    ended = end_of(guarded)

    assert (ended.left, ended.problem) == (2, UNKILLABLE)
    assert describe(ended) == "it was killed and did not exit (2 of its processes could not be killed yet)"
    assert len(pen.living()) == 3

    (pen.notes / "strong").touch()
    until(lambda: not pen.living(), "the end of everything")


def test_the_program_has_its_own_descriptors_and_no_others(pen: Pen) -> None:
    ours, theirs = socket.socketpair()
    readable, writable = os.pipe()
    os.set_inheritable(writable, True)
    number = theirs.fileno()
    guarded = pen.program(
        f"""
seen = sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name))
note("fds", repr(seen))
note("stdin", repr(os.read(0, 1)))
os.write({number}, b"hello")
os.close({number})
rest()
""",
        theirs,
    )
    try:
        assert pen.noted("fds") == repr([0, 1, 2, number])
        assert pen.noted("stdin") == repr(b"")
        assert theirs.fileno() == -1
        ours.settimeout(20)
        assert ours.recv(5) == b"hello"
        # Neither this process nor the guardian may keep a copy open, or the end of the file would not be noticed.
        assert ours.recv(5) == b""
        pid_of(guarded)
    finally:
        ours.close()
        os.close(readable)
        os.close(writable)


def test_the_program_starts_with_default_signals_whatever_the_asker_ignores(pen: Pen) -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
    try:
        guarded = pen.guarded(["sh", "-c", 'exec grep -E "^Sig(Ign|Blk)" /proc/self/status > "$NOTES/signals"'])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR2, before)
    end_of(guarded)

    assert [line.split() for line in pen.noted("signals").splitlines()] == [
        ["SigBlk:", "0" * 16],
        ["SigIgn:", "0" * 16],
    ]


def test_the_program_has_the_environment_it_was_given(pen: Pen) -> None:
    code = "import os; print(repr(dict(os.environ)), file=open(os.environ['NOTES'] + '/environment', 'w'))"
    end_of(pen.guarded([sys.executable, "-I", "-S", "-c", code]))

    assert pen.noted("environment").strip() == repr(pen.environment)


def test_starting_and_ending_leaks_no_descriptor_and_no_zombie(pen: Pen) -> None:
    def descriptors() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    before = descriptors(), children_of(os.getpid())
    for number in range(50):
        ours, theirs = socket.socketpair()
        guarded = pen.guarded(["true" if number % 2 else "no-such-program"], theirs)
        end_of(guarded)
        guarded.close()
        ours.close()

    assert (descriptors(), children_of(os.getpid())) == before
