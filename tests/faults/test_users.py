"""Workers of two users on one host: neither judges the other, so only leases decide between them.

The leases last an hour: a job that runs again was taken over, and by a worker of the same user.
"""

import os
import shutil

import pytest

from holdfast.values import JobState, Outcome

from .ledgers import append_line
from .processes import Program, lives, until
from .yard import Entry, Yard

LEASE_S = 3600
NOBODY = 65534
OFF = "dead-worker detection is off"
# Python itself may be in a directory that only root can enter: the other user may read every file, but write none.
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
UNDER = {"root": (), "nobody": AS_NOBODY}
# A server, because both users can use it; which one makes no difference here.
BOTH_WAYS = pytest.mark.parametrize(
    ("place", "user", "other"), [("redis", "root", "nobody"), ("redis", "nobody", "root")], indirect=["place"]
)

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv: it runs workers as another user",
)


class Host:
    """A directory for both users, and their workers."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        yard.directory.chmod(0o777)
        append_line(yard.directory / "ledger", "created", "-", 0, 0)
        (yard.directory / "ledger").chmod(0o666)

    def worker(self, user: str, sessions: str) -> Program:
        directory = str(self.yard.directory / sessions)
        return self.yard.worker(lease_s=LEASE_S, under=UNDER[user], HOLDFAST_SESSION_DIR=directory)

    def started(self, user: str, sessions: str) -> tuple[Program, Entry]:
        """A worker in the middle of a job."""
        [id] = self.yard.put("gated")
        worker = self.worker(user, sessions)
        return worker, self.yard.wait_for_entry("start", id, by=worker)

    def is_left_alone(self, start: Entry, by: Program) -> None:
        """Check that this worker does not touch that job, although it probes again and again."""
        self.yard.complete_slow_jobs(8, by=by)
        assert self.yard.state(start.id) is JobState.PROCESSING
        assert self.yard.entries("start", start.id) == [start]

    def session_files(self, sessions: str) -> list[os.stat_result]:
        return [path.stat() for path in (self.yard.directory / sessions).glob("*/*")]


@pytest.fixture
def host(yard: Yard) -> Host:
    return Host(yard)


@BOTH_WAYS
@pytest.mark.parametrize("is_common", [True, False], ids=["common directory", "own directories"])
def test_a_living_worker_of_another_user_is_not_robbed(host: Host, user: str, other: str, *, is_common: bool) -> None:
    living, first = host.started(user, "sessions")
    stranger = host.worker(other, "sessions" if is_common else "elsewhere")
    host.is_left_alone(first, by=stranger)
    host.yard.open_gate(first)
    until(lambda: host.yard.state(first.id) is JobState.COMPLETED, "the worker to complete its job")
    assert host.yard.outcomes(first.id) == [Outcome.SUCCEEDED]
    assert OFF not in living.complained
    assert (OFF in stranger.complained) is is_common


@BOTH_WAYS
@pytest.mark.parametrize("is_common", [True, False], ids=["common directory", "own directories"])
def test_a_dead_worker_is_taken_over_by_its_own_user_alone(
    host: Host, user: str, other: str, *, is_common: bool
) -> None:
    """The file proves the death all along, as the last worker shows; the other user does not believe it."""
    dead, first = host.started(user, "sessions")
    stranger = host.worker(other, "sessions" if is_common else "elsewhere")
    dead.kill()
    until(lambda: not lives(first.pid), "the job to be killed with its worker")
    host.is_left_alone(first, by=stranger)
    heir = host.worker(user, "sessions")
    until(lambda: len(host.yard.entries("start", first.id)) == 2, "the job to start again")
    heir.wait_for("died on this host while it held 1 job")
    assert "died on this host" not in stranger.complained


@BOTH_WAYS
def test_a_worker_does_not_leave_its_session_in_a_directory_of_another_user(host: Host, user: str, other: str) -> None:
    """Nor does it read the files there: without a session of its own, it is left to its lease when it dies."""
    owner, occupied = host.started(other, "sessions")
    until(lambda: host.session_files("sessions"), "the owner to publish its session")
    dead, first = host.started(user, "sessions")
    assert OFF in dead.complained
    [file] = host.session_files("sessions")
    assert file.st_uid == (0 if other == "root" else NOBODY)
    dead.kill()
    host.yard.open_gate(occupied)
    host.is_left_alone(first, by=owner)
    assert "died on this host" not in owner.complained
