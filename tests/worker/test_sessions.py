"""Session files: a free lock proves a death, and nothing else does."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.queues import addresses
from holdfast.queues.contract import new_session
from holdfast.worker.sessions import SessionFile, Unsupported

from ..faults.processes import stop, until

DATABASE = "0123456789abcdef0123456789abcdef"
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

# Holds a session, and with a second argument has a child that holds it as well; both wait for stdin to end.
HOLDER = """
import os, subprocess, sys
from pathlib import Path
from holdfast.worker.sessions import SessionFile
file = SessionFile(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]))
file.publish(sys.argv[3])
if len(sys.argv) > 4:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=[file.fileno()])
    print(child.pid, flush=True)
else:
    print("ready", flush=True)
sys.stdin.read()
"""

# Runs in a new PID namespace, where it alone decides which process gets which id. A holder with a child is killed, and
# an unrelated process gets its id; then the child is killed as well. Prints whether the holder is dead after each step.
REUSER = """
import os, signal, subprocess, sys
from pathlib import Path
from holdfast.queues.contract import new_session
from holdfast.worker.sessions import SessionFile
directory, database, program = sys.argv[1:]
ours = SessionFile(Path(directory), new_session())
ours.publish(database)
session = new_session()
words = [sys.executable, "-c", program, directory, session.hex(), database, "child"]
holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child = int(holder.stdout.readline())
holder.kill()
holder.wait()
Path("/proc/sys/kernel/ns_last_pid").write_text(str(holder.pid - 1))
other = os.fork()
if other == 0:
    signal.pause()
assert other == holder.pid, f"{other} instead of {holder.pid}"
print(ours.dead_neighbours() == [session], flush=True)
os.kill(child, signal.SIGKILL)
while os.waitpid(-1, 0)[0] != child:  # it is ours now: this is process 1
    pass
print(os.path.exists(f"/proc/{holder.pid}"), ours.dead_neighbours() == [session], flush=True)
os.kill(other, signal.SIGKILL)
"""
IN_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


class Holder:
    """A process that holds a session."""

    def __init__(self, directory: Path, *, with_child: bool = False) -> None:
        self.session = new_session()
        words = [str(directory), self.session.hex(), DATABASE, *(["child"] if with_child else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()
        assert self.said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
def ours(directory: Path) -> Generator[SessionFile]:
    file = SessionFile(directory, new_session())
    file.publish(DATABASE)
    yield file
    file.close(is_finished=True)


@pytest.fixture
def hold(directory: Path) -> Generator[Callable[..., Holder]]:
    with ExitStack() as stack:

        def start(**options: bool) -> Holder:
            holder = Holder(directory, **options)
            stack.callback(holder.close)
            return holder

        yield start


def planted(directory: Path, session: bytes, text: bytes | None = None) -> Path:
    """A file that nobody has locked; its text fits it unless another is given."""
    path = directory / DATABASE / session.hex()
    path.write_bytes(b"")
    found = path.stat()
    path.write_bytes(f"{session.hex()} {BOOT} {found.st_dev} {found.st_ino}\n".encode() if text is None else text)
    path.chmod(0o644)
    return path


def test_a_killed_worker_is_dead_at_once(ours: SessionFile, hold: Callable[..., Holder]) -> None:
    holder = hold()
    assert ours.dead_neighbours() == []
    holder.kill()
    assert ours.dead_neighbours() == [holder.session]
    ours.forget(holder.session)
    assert ours.dead_neighbours() == []


def test_a_worker_is_alive_while_one_of_its_processes_lives(ours: SessionFile, hold: Callable[..., Holder]) -> None:
    holder = hold(with_child=True)
    holder.kill()
    assert ours.dead_neighbours() == []
    os.kill(int(holder.said), signal.SIGKILL)
    until(lambda: ours.dead_neighbours() == [holder.session], "the kernel to release the lock")


def test_a_stopped_worker_is_alive(ours: SessionFile, hold: Callable[..., Holder]) -> None:
    holder = hold()
    stop(holder.process.pid)
    assert ours.dead_neighbours() == []


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(
        [*IN_NAMESPACE, "sh", "-c", "echo 100 >/proc/sys/kernel/ns_last_pid"], capture_output=True, check=False
    ).returncode
    != 0,
    reason="needs root, unshare and ns_last_pid: it gives a process the id of a dead one",
)
def test_a_process_with_the_id_of_a_dead_worker_changes_nothing(directory: Path) -> None:
    words = [sys.executable, "-c", REUSER, str(directory), DATABASE, HOLDER]
    done = subprocess.run([*IN_NAMESPACE, *words], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["False", "True", "True"], "")


def test_workers_of_another_database_are_not_judged(
    directory: Path, ours: SessionFile, hold: Callable[..., Holder]
) -> None:
    holder = hold()
    holder.kill()
    other = SessionFile(directory, new_session())
    other.publish("another")
    assert other.dead_neighbours() == []
    other.close(is_finished=True)
    assert ours.dead_neighbours() == [holder.session]


def test_a_planted_file_that_fits_is_believed_only_if_it_is_ours_alone(directory: Path, ours: SessionFile) -> None:
    session = new_session()
    path = planted(directory, session)
    assert ours.dead_neighbours() == [session]  # so each of these alone makes the difference
    path.chmod(0o664)
    assert ours.dead_neighbours() == []
    path.chmod(0o646)
    assert ours.dead_neighbours() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_believed(directory: Path, ours: SessionFile) -> None:
    path = planted(directory, new_session())
    os.chown(path, 65534, 65534)
    assert ours.dead_neighbours() == []


def test_a_directory_that_others_can_write_is_not_believed(directory: Path, ours: SessionFile) -> None:
    planted(directory, new_session())
    (directory / DATABASE).chmod(0o777)
    assert ours.dead_neighbours() == []


@pytest.mark.parametrize(
    "text", [b"", b"garbage", b"\xff" * 300, b"00000000-0000-0000-0000-000000000000 {device} {inode}\n"]
)
def test_a_file_of_another_boot_or_without_proof_is_not_believed(
    directory: Path, ours: SessionFile, text: bytes
) -> None:
    path = planted(directory, new_session(), text)
    found = path.stat()
    path.write_bytes(text.replace(b"{device}", b"%d" % found.st_dev).replace(b"{inode}", b"%d" % found.st_ino))
    assert ours.dead_neighbours() == []


def test_a_copied_or_restored_file_is_not_believed(
    directory: Path, ours: SessionFile, hold: Callable[..., Holder]
) -> None:
    """A backup of the directory, restored while the worker runs, must not rob it."""
    holder = hold()
    path = directory / DATABASE / holder.session.hex()
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").rename(path)
    assert ours.dead_neighbours() == []


def test_links_and_other_kinds_of_files_are_not_believed(directory: Path, ours: SessionFile) -> None:
    target = planted(directory, new_session())
    target.rename(directory / "elsewhere")
    (directory / DATABASE / new_session().hex()).symlink_to(directory / "elsewhere")
    os.mkfifo(directory / DATABASE / new_session().hex())
    (directory / DATABASE / new_session().hex()).mkdir()
    assert ours.dead_neighbours() == []


def test_a_fork_of_the_program_does_not_keep_the_session_alive(directory: Path, ours: SessionFile) -> None:
    session = new_session()
    file = SessionFile(directory, session)
    file.publish(DATABASE)
    (ready, is_ready), (over, is_over) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(is_over)
        os.write(is_ready, b"!")
        os.read(over, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        file.close(is_finished=False)
        assert ours.dead_neighbours() == [session]
    finally:
        os.close(is_over)
        os.waitpid(child, 0)
        for descriptor in (ready, is_ready, over):
            os.close(descriptor)


def test_a_finished_worker_leaves_no_file_and_an_unfinished_one_is_taken_over(
    directory: Path, ours: SessionFile
) -> None:
    for is_finished in (True, False):
        file = SessionFile(directory, new_session())
        file.publish(DATABASE)
        file.close(is_finished=is_finished)
        assert ours.dead_neighbours() == ([] if is_finished else [file.session])


def test_a_network_file_system_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mounted(path: Path) -> str:
        return "nfs4"

    monkeypatch.setattr(addresses, "file_system", mounted)
    with pytest.raises(Unsupported, match="is on nfs4"):
        SessionFile(directory, new_session())


def test_a_directory_of_others_is_refused(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(Unsupported, match="only this user can write to"):
        SessionFile(directory, new_session())


def test_the_file_of_a_dead_session_under_the_name_of_a_living_one_is_not_believed(
    directory: Path, ours: SessionFile, hold: Callable[..., Holder]
) -> None:
    living, dead = hold(), hold()
    dead.kill()
    (directory / DATABASE / dead.session.hex()).rename(directory / DATABASE / living.session.hex())
    assert ours.dead_neighbours() == []


def test_files_without_a_holder_are_removed(directory: Path, ours: SessionFile) -> None:
    """Copies, and files from before a reboot, would otherwise be probed forever."""
    path = planted(directory, new_session(), b"from another boot\n")
    assert ours.dead_neighbours() == []
    assert not path.exists()


def test_a_worker_that_has_just_finished_is_not_dead(
    directory: Path, ours: SessionFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes its file between the moment that the file is opened and the moment that it is locked."""
    path = planted(directory, new_session())
    flock = fcntl.flock

    def finishing(descriptor: int, operation: int) -> None:
        path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", finishing)
    assert ours.dead_neighbours() == []


def test_a_session_is_not_published_by_a_fork_of_its_process(directory: Path) -> None:
    file = SessionFile(directory, new_session())
    child = os.fork()
    if child == 0:
        try:
            file.publish(DATABASE)
        except Unsupported:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    file.close(is_finished=True)


def test_files_that_were_never_published_are_removed_once_they_are_old(directory: Path) -> None:
    for is_old in (True, False):
        file = SessionFile(directory, new_session())
        file.close(is_finished=False)
        [left] = [path for path in directory.iterdir() if path.is_file()]
        if is_old:
            os.utime(left, (0, 0))
        SessionFile(directory, new_session()).close(is_finished=True)
        assert left.exists() is not is_old


def test_a_session_never_has_the_descriptor_of_a_standard_stream(directory: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from holdfast.worker.sessions import SessionFile; "
        "directory = Path(sys.argv[1]); os.close(0); "
        "file = SessionFile(directory, bytes(8)); sys.exit(file.fileno())"
    )
    assert subprocess.run([sys.executable, "-c", script, str(directory)], check=False).returncode >= 3
