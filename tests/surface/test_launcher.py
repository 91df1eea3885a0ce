"""`./holdfast` and `./test` from a bare checkout: what they find, set up, say and survive.

Most tests put a stand-in for Python on an otherwise empty PATH. It answers what the set-up asks, notes each call, and
can be made to fail, or to wait at a gate, where a real Python would be slow and obedient. One test is all real.
"""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast import __version__

ROOT = Path(__file__).parents[2]
TOOLS = ("cat", "cp", "date", "ln", "mkdir", "mv", "readlink", "rm", "rmdir", "sed", "sh", "sleep", "tail", "uname")

STAND_IN = f"""\
#!/bin/sh
note() {{
    echo "$1" >>"$CALLS"
    [ "${{GATE_AT:-}}" != "$1" ] || cat "$GATE"
}}
trap 'exit 1' INT  # as pip ends when it is interrupted
case $1 in
    -c) case $2 in *print*) echo 3.11.9 ;; esac ;;
    -) exec "{sys.executable}" "$@" ;;
    -P) shift && echo "ran $*" && echo program >>"$CALLS" ;;
    -m)
        if [ "$2" = venv ]; then
            note venv
            mkdir -p "$3/bin"
            cp "$0" "$3/bin/python"
            for tool in ruff lint-imports mypy pyright pytest; do cp "$TOOL" "$3/bin/$tool"; done
        else
            case "$*" in *" -e "*) note pip-editable ;; *" -r "*) note pip-tools ;; esac
            if [ -n "${{PIP_BREAKS:-}}" ]; then
                for n in $(cat "$PIP_BREAKS"); do echo "pip line $n"; done
                exit 1
            fi
        fi
        ;;
esac
"""

STAND_IN_TOOL = """\
#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
[ "${BROKEN_TOOL:-}" != "${0##*/}" ]
"""


class Checkout:
    """A copy of the checkout whose path has a space in it, with a PATH of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp = tmp_path
        self.root = tmp_path / "a check out"
        self.venv = self.root / ".venv"
        self.bin = tmp_path / "bin"
        self.gate = tmp_path / "gate"
        self._calls = tmp_path / "calls"
        self._started: list[subprocess.Popen[str]] = []
        (self.root / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        os.mkfifo(self.gate)
        for name in ("pyproject.toml", "holdfast", "test", "scripts/setup-venv"):
            shutil.copy(ROOT / name, self.root / name)
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST"))}
        self.env = kept | {
            "PATH": str(self.bin),
            "CALLS": str(self._calls),
            "GATE": str(self.gate),
            "TOOL": str(self.script("tool", STAND_IN_TOOL)),
        }

    def script(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def stand_in(self, name: str = "python3") -> None:
        self.script(name, STAND_IN)

    def start(self, *args: str, program: str = "holdfast", **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self.root / program, *args],
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Leave nothing running behind a test that failed."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def run(self, *args: str, program: str = "holdfast", **env: str) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        return ended(self.start(*args, program=program, **env))

    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    @contextmanager
    def at_the_gate(self) -> Generator[None]:
        """Inside, the stand-in is known to stand at the gate; afterwards it goes on."""
        with self.gate.open("w"):  # opening a FIFO waits for its reader
            yield


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def pid_of_the_dead() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    with closing(Checkout(tmp_path)) as checkout:
        yield checkout


def test_the_first_real_run_sets_up_and_a_later_one_only_runs(checkout: Checkout) -> None:
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout.root / name)
    shutil.copytree(ROOT / "src", checkout.root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    python = checkout.script("python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')

    code, first, said = checkout.run("version")
    assert code == 0, said
    assert first.startswith(f"holdfast {__version__} ")
    assert "setting up .venv" in said

    # From here on neither a Python to make a .venv with nor a pip that works can be found.
    python.unlink()
    (pip,) = checkout.venv.glob("lib/python*/site-packages/pip/__init__.py")
    pip.write_text("raise SystemExit('pip was called')\n")
    assert checkout.run("version") == (0, first, "")

    elsewhere = checkout.tmp / "else where"
    elsewhere.mkdir()
    (elsewhere / "link to it").symlink_to(checkout.root / "holdfast")
    (elsewhere / "click.py").write_text("raise SystemExit('imported from the current directory')\n")
    linked = subprocess.run(
        ["./link to it", "version"], cwd=elsewhere, env=checkout.env, capture_output=True, text=True, check=False
    )
    assert (linked.returncode, linked.stdout, linked.stderr) == (0, first, "")


def test_a_later_run_starts_no_python_but_the_program(checkout: Checkout) -> None:
    checkout.stand_in()
    assert checkout.run("one", "two words")[:2] == (0, "ran -m holdfast one two words\n")
    assert checkout.calls() == ["venv", "pip-editable", "program"]
    assert checkout.run() == (0, "ran -m holdfast\n", "")
    assert checkout.calls() == ["venv", "pip-editable", "program", "program"]


def test_too_old_pythons_are_listed_with_what_to_install(checkout: Checkout) -> None:
    checkout.script("python3", "#!/bin/sh\necho 3.8.18\n")
    checkout.script("python", "#!/bin/sh\necho 3.10.13\n")
    checkout.script("python3.12", "#!/bin/sh\nexit 127\n")
    code, stdout, said = checkout.run("version")
    assert (code, stdout) == (1, "")
    assert "needs Python 3.11 or newer" in said
    assert f"{checkout.bin}/python3 (3.8.18)" in said
    assert f"{checkout.bin}/python (3.10.13)" in said
    assert f"{checkout.bin}/python3.12 (does not run)" in said
    assert "apt install python3" in said
    assert not (checkout.venv / ".holdfast-lock").is_symlink()


def test_without_any_python_it_says_so(checkout: Checkout) -> None:
    code, stdout, said = checkout.run("version")
    assert (code, stdout) == (1, "")
    assert "found no Python" in said


def test_a_newer_python_behind_an_old_one_is_found(checkout: Checkout) -> None:
    checkout.script("python3", "#!/bin/sh\necho 3.8.18\n")
    checkout.stand_in("python3.13")
    code, _, said = checkout.run()
    assert code == 0
    assert "bin/python3.13" in said


def test_the_python_named_by_the_user_is_used_or_refused(checkout: Checkout) -> None:
    checkout.stand_in("mine")
    old = checkout.script("old", "#!/bin/sh\necho 3.8.18\n")
    code, _, said = checkout.run(HOLDFAST_PYTHON=str(old))
    assert code == 1
    assert f"HOLDFAST_PYTHON is '{old}' (3.8.18)" in said
    code, _, said = checkout.run(HOLDFAST_PYTHON="nowhere")
    assert code == 1
    assert "HOLDFAST_PYTHON is 'nowhere', which is not a program" in said
    assert checkout.run(HOLDFAST_PYTHON="mine")[:2] == (0, "ran -m holdfast\n")


def test_a_python_without_ensurepip_names_the_package_to_install(checkout: Checkout) -> None:
    lacking = checkout.tmp / "lacking"
    lacking.mkdir()
    (lacking / "ensurepip.py").write_text("raise ModuleNotFoundError('as on a bare Debian')\n")
    checkout.script("python3", f'#!/bin/sh\nPYTHONPATH="{lacking}" exec "{sys.executable}" "$@"\n')
    code, stdout, said = checkout.run("version")
    assert (code, stdout) == (1, "")
    assert f"apt install python3.{sys.version_info.minor}-venv" in said

    checkout.stand_in("python3.12")
    assert checkout.run()[:2] == (0, "ran -m holdfast\n")


def test_a_failing_venv_module_is_shown_and_tried_again(checkout: Checkout) -> None:
    checkout.script(
        "python3",
        "#!/bin/sh\n"
        'case "$*" in\n'
        "    *print*) echo 3.12.3 ;;\n"
        '    "-m venv"*) echo "The virtual environment was not created successfully"; exit 1 ;;\n'
        "esac\n",
    )
    code, stdout, said = checkout.run("version")
    assert (code, stdout) == (1, "")
    assert "  | The virtual environment was not created successfully" in said
    assert "apt install python3.12-venv" in said
    checkout.stand_in()
    assert checkout.run()[:2] == (0, "ran -m holdfast\n")


def test_a_failing_pip_shows_its_last_lines_and_is_tried_again(checkout: Checkout) -> None:
    checkout.stand_in()
    lines = checkout.tmp / "lines"
    lines.write_text("\n".join(str(n) for n in range(1, 41)))
    code, stdout, said = checkout.run(PIP_BREAKS=str(lines))
    assert (code, stdout) == (1, "")
    assert "  | pip line 40\n" in said
    assert "  | pip line 5\n" not in said
    assert "HTTPS_PROXY" in said
    assert not (checkout.venv / ".holdfast-run").exists()
    assert not (checkout.venv / ".holdfast-lock").is_symlink()
    assert checkout.run()[:2] == (0, "ran -m holdfast\n")
    assert checkout.calls() == ["venv", "pip-editable", "venv", "pip-editable", "program"]


def test_changed_dependencies_are_installed_and_a_failed_update_breaks_nothing(checkout: Checkout) -> None:
    checkout.stand_in()
    checkout.run()
    project = checkout.root / "pyproject.toml"
    before = project.read_text()
    project.write_text(before + "\n# a change\n")
    (lines := checkout.tmp / "lines").write_text("1")
    assert checkout.run(PIP_BREAKS=str(lines))[0] == 1
    project.write_text(before)
    assert checkout.run() == (0, "ran -m holdfast\n", "")
    project.write_text(before + "\n# a change\n")
    assert checkout.run()[0] == 0
    assert checkout.calls() == [
        *("venv", "pip-editable", "program"),
        *("pip-editable", "program"),
        *("pip-editable", "program"),
    ]


def test_a_checkout_that_cannot_be_written_says_where(checkout: Checkout) -> None:
    checkout.stand_in()
    checkout.venv.write_text("in the way, also of root\n")
    code, stdout, said = checkout.run()
    assert (code, stdout) == (1, "")
    assert f"cannot write to {checkout.venv}" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_checkout_says_what_to_do(checkout: Checkout) -> None:
    checkout.stand_in()
    checkout.root.chmod(stat.S_IRUSR | stat.S_IXUSR)
    code, _, said = checkout.run()
    checkout.root.chmod(stat.S_IRWXU)
    assert code == 1
    assert "owner of the checkout" in said


def test_a_moved_checkout_is_set_up_anew(checkout: Checkout) -> None:
    checkout.stand_in()
    checkout.run()
    checkout.root = checkout.root.rename(checkout.tmp / "moved")
    assert checkout.run()[:2] == (0, "ran -m holdfast\n")
    assert checkout.calls() == ["venv", "pip-editable", "program"] * 2


def test_a_venv_made_by_somebody_else_is_kept(checkout: Checkout) -> None:
    (checkout.venv / "bin").mkdir(parents=True)
    (checkout.venv / "bin" / "theirs").touch()
    checkout.stand_in()
    shutil.copy(checkout.bin / "python3", checkout.venv / "bin" / "python")
    assert checkout.run()[:2] == (0, "ran -m holdfast\n")
    assert checkout.calls() == ["pip-editable", "program"]
    assert (checkout.venv / "bin" / "theirs").exists()


def test_a_second_first_run_waits_for_the_first(checkout: Checkout) -> None:
    checkout.stand_in()
    first = checkout.start(GATE_AT="venv")
    with checkout.at_the_gate():
        second = checkout.start(GATE_AT="venv")
        assert second.stderr is not None
        assert f"waiting for another set-up of .venv (process {_lock_owner(checkout)}@" in second.stderr.readline()
    assert ended(first)[:2] == (0, "ran -m holdfast\n")
    assert ended(second) == (0, "ran -m holdfast\n", "")
    assert checkout.calls() == ["venv", "pip-editable", "program", "program"]


@pytest.mark.parametrize("stale", [False, True], ids=["no lock", "the lock of a dead process"])
def test_many_first_runs_at_once_set_up_once(checkout: Checkout, stale: bool) -> None:
    checkout.stand_in()
    if stale:
        _leave_lock(checkout, pid_of_the_dead())
    running = [checkout.start() for _ in range(8)]
    for process in running:
        code, stdout, said = ended(process)
        assert (code, stdout) == (0, "ran -m holdfast\n"), said
    assert sorted(checkout.calls()) == ["pip-editable", *["program"] * 8, "venv"]
    assert not list(checkout.venv.glob(".holdfast-lock*"))


def test_the_lock_of_a_dead_process_is_taken_over(checkout: Checkout) -> None:
    checkout.stand_in()
    _leave_lock(checkout, pid_of_the_dead())
    assert checkout.run()[:2] == (0, "ran -m holdfast\n")
    assert not (checkout.venv / ".holdfast-lock").is_symlink()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_set_up_is_redone_from_the_start(checkout: Checkout, how: signal.Signals) -> None:
    checkout.stand_in()
    process = checkout.start(GATE_AT="pip-editable")
    with checkout.at_the_gate():
        os.killpg(process.pid, how)
        assert ended(process)[0] != 0
    assert not (checkout.venv / ".holdfast-run").exists()
    assert checkout.run()[:2] == (0, "ran -m holdfast\n")
    assert checkout.calls() == ["venv", "pip-editable", "venv", "pip-editable", "program"]


def test_an_interrupted_update_is_not_taken_for_one_that_failed(checkout: Checkout) -> None:
    checkout.stand_in()
    checkout.run()
    with (checkout.root / "pyproject.toml").open("a") as project:
        project.write("\n# a change\n")
    process = checkout.start(GATE_AT="pip-editable")
    with checkout.at_the_gate():
        os.killpg(process.pid, signal.SIGINT)
        assert ended(process)[0] != 0
    assert checkout.run()[:2] == (0, "ran -m holdfast\n")
    assert checkout.calls()[3:] == ["pip-editable", "venv", "pip-editable", "program"]


def test_a_set_up_whose_shell_was_killed_is_waited_for_while_its_pip_runs(checkout: Checkout) -> None:
    checkout.stand_in()
    process = checkout.start(GATE_AT="pip-editable")
    with checkout.at_the_gate():
        os.kill(_lock_owner(checkout), signal.SIGKILL)
        second = checkout.start()
        assert second.stderr is not None
        assert "waiting for another set-up" in second.stderr.readline()
    assert ended(second)[:2] == (0, "ran -m holdfast\n")
    assert ended(process)[0] != 0
    assert checkout.calls() == ["venv", "pip-editable", "venv", "pip-editable", "program"]


def test_the_tests_add_their_tools_to_the_same_venv(checkout: Checkout) -> None:
    checkout.stand_in()
    checkout.run()
    assert checkout.run("tests/unit", "-k", "a name", program="test")[0] == 0
    assert checkout.run("-x", program="test") == (0, "", "")
    assert checkout.run() == (0, "ran -m holdfast\n", "")
    assert checkout.calls() == [
        *("venv", "pip-editable", "program"),
        *("pip-tools", "pytest tests/unit -k a name"),
        *("pytest -x", "program"),
    ]
    tools = (checkout.venv / ".holdfast-tools.txt").read_text().splitlines()
    assert tools == tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]


CHECKERS = ["ruff check", "ruff format --check", "lint-imports ", "mypy ", "pyright "]


@pytest.mark.parametrize(("args", "ran"), [((), [*CHECKERS, "pytest -n 2"]), (("lint",), CHECKERS)])
def test_every_check_runs_although_one_fails(checkout: Checkout, args: tuple[str, ...], ran: list[str]) -> None:
    checkout.stand_in()
    code, stdout, _ = checkout.run(*args, program="test")
    assert code == 0
    assert stdout.endswith("all passed\n")
    assert checkout.calls()[3:] == ran

    code, stdout, _ = checkout.run(*args, program="test", BROKEN_TOOL="mypy")
    assert code == 1
    assert "mypy           FAILED" in stdout
    assert "pyright        ok" in stdout
    assert stdout.endswith("\n1 failed\n")
    assert checkout.calls()[3:] == [*ran, *ran]


def _leave_lock(checkout: Checkout, pid: int) -> None:
    checkout.venv.mkdir()
    (checkout.venv / ".holdfast-lock").symlink_to(f"{pid}@{os.uname().nodename}")


def _lock_owner(checkout: Checkout) -> int:
    return int((checkout.venv / ".holdfast-lock").readlink().name.partition("@")[0])
