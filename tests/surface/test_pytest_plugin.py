"""The pytest plugin in projects of users: their own pytest, in a process of its own."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.testing import plugin
from holdfast.testing.drained import Drained

ROOT = Path(__file__).parents[2]
SHOP = """
from holdfast import Holdfast

hf = Holdfast("sqlite:///real.db")
sent = []

@hf.job(queue="mail")
def send(to: str) -> None:
    sent.append(to)

def sign_up(name: str) -> None:
    send.enqueue(to=f"{name}@example.org")
"""
TESTS = """
import asyncio
import shop

def test_manual(holdfast):
    shop.sign_up("ada")
    holdfast.assert_enqueued(shop.send, {"to": "ada@example.org"}, queue="mail", count=1)
    assert shop.sent == []
    assert holdfast.drain() == {"succeeded": 1}
    assert shop.sent.pop() == "ada@example.org"

def test_fresh(holdfast):
    holdfast.refute_enqueued()
    assert holdfast.app is shop.hf

def test_inline(holdfast_inline):
    shop.sign_up("bob")
    assert shop.sent.pop() == "bob@example.org"

def test_async(holdfast):
    async def main():
        await holdfast.perform_async(shop.send, "eve")
    asyncio.run(main())
    assert shop.sent.pop() == "eve"

def test_restored():
    assert shop.hf.deployment.url() == "sqlite:///real.db"
"""
SETTING = "[pytest]\nholdfast_app = shop:hf\npythonpath = .\n"


class Project:
    """A user's project. Only plugins it names are loaded, so that it is the same wherever these tests run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, **files: str) -> None:
        for name, text in files.items():
            suffix = "ini" if name == "pytest" else "py"
            (self.directory / f"{name}.{suffix}").write_text(text)

    def python(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT / "src"),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=300,
        )
        return done.returncode, done.stdout

    def pytest(self, *arguments: str) -> tuple[int, str]:
        return self.python("-m", "pytest", "-p", "no:cacheprovider", "-p", "holdfast.testing.plugin", *arguments)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert declared["pytest11"] == {"holdfast": plugin.__name__}


@pytest.mark.parametrize("parallel", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["alone", "xdist"])
def test_the_application_of_a_module_is_on_memory_for_one_test(project: Project, parallel: tuple[str, ...]) -> None:
    project.write(shop=SHOP, test_shop=TESTS, pytest=SETTING)
    code, output = project.pytest("-q", "-W", "error", *parallel)
    assert (code, "5 passed" in output) == (0, True), output
    assert sorted(path.name for path in project.directory.iterdir()) == ["pytest.ini", "shop.py", "test_shop.py"]


def test_counts_that_differ_are_shown_with_what_the_runs_failed_with() -> None:
    ended = Drained(["dead"])
    ended.errors = ["send: OSError: no answer", "send: OSError: no answer"]
    said = plugin.pytest_assertrepr_compare("==", ended, {"succeeded": 1})
    assert said == ["{'dead': 1} == {'succeeded': 1}", "  send: OSError: no answer"]
    assert plugin.pytest_assertrepr_compare("==", {}, {"succeeded": 1}) is None
    assert plugin.pytest_assertrepr_compare("in", ended, {}) is None


def test_the_application_can_come_from_a_fixture(project: Project) -> None:
    conftest = "import pytest, shop\n@pytest.fixture(scope='session')\ndef holdfast_app():\n    return shop.hf\n"
    project.write(shop=SHOP, test_shop=TESTS, conftest=conftest)
    code, output = project.pytest("-q")
    assert (code, "5 passed" in output) == (0, True), output


def test_without_an_application_there_is_a_new_one(project: Project) -> None:
    tests = """
def test_one(holdfast):
    @holdfast.app.job
    def double(number: int) -> int:
        return number * 2
    assert holdfast.perform(double, 2) == 4
    assert double.enqueue(3).status() == "pending"

def test_other(holdfast):
    assert holdfast.app.registry.keys() == ("command",)
    holdfast.refute_enqueued()
"""
    project.write(test_jobs=tests)
    code, output = project.pytest("-q")
    assert (code, "2 passed" in output) == (0, True), output


def test_a_failed_assertion_is_shown_at_the_tests_own_line(project: Project) -> None:
    tests = """
import shop

def test_it(holdfast):
    shop.sign_up("bob")
    holdfast.assert_enqueued(shop.send, {"to": "ada@example.org"})
"""
    project.write(shop=SHOP, test_shop=tests, pytest=SETTING)
    code, output = project.pytest("-q")
    assert code == 1
    assert "args.to is 'bob@example.org', not 'ada@example.org'" in output
    assert "test_shop.py:6: AssertionError" in output
    assert "kit.py" not in output


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("shop", "holdfast_app = shop: write MODULE:NAME, such as shop:hf for hf in shop.py"),
        ("shopp:hf", "holdfast_app = shopp:hf: no module named 'shopp'; add its directory to the setting pythonpath"),
        ("shop:app", "holdfast_app = shop:app: it does not exist"),
        ("shop:sign_up", "holdfast_app = shop:sign_up: it is a function, not a Holdfast application"),
    ],
)
def test_a_wrong_setting_is_explained(
    project: Project, monkeypatch: pytest.MonkeyPatch, setting: str, problem: str
) -> None:
    project.write(shop=SHOP)
    monkeypatch.setattr(sys, "path", [str(project.directory), *sys.path])
    with pytest.raises(pytest.UsageError, match=f"^{re.escape(problem)}$"):
        plugin.application(setting)


def test_an_error_of_the_module_itself_is_not_hidden(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write(broken_shop="import a_package_that_is_missing")
    monkeypatch.setattr(sys, "path", [str(project.directory), *sys.path])
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_missing"):
        plugin.application("broken_shop:hf")


def test_a_project_that_does_not_use_it_pays_nothing(project: Project) -> None:
    tests = """
import sys

def test_it():
    ours = {name for name in sys.modules if name.startswith("holdfast")}
    assert ours == {"holdfast", "holdfast.testing", "holdfast.testing.plugin"}
    assert not {"msgspec", "hypothesis", "click"} & set(sys.modules)
"""
    project.write(test_none=tests)
    code, output = project.pytest("-q")
    assert code == 0, output


def test_the_kit_needs_neither_pytest_nor_hypothesis(project: Project) -> None:
    program = """
import sys
sys.modules["pytest"] = sys.modules["hypothesis"] = None

from holdfast import Holdfast
from holdfast.testing import JobKit

hf = Holdfast("sqlite:///real.db")

@hf.job
def double(number: int) -> int:
    return number * 2

with JobKit(hf) as kit:
    double.enqueue(2)
    print(kit.assert_enqueued(double)[0], kit.perform(double, 3), kit.drain())

try:
    from holdfast.testing import EngineConformance
except ImportError as problem:
    print(problem)
"""
    project.write(program=program)
    code, output = project.python("program.py")
    assert code == 0, output
    first, second = output.splitlines()
    assert first == "double(number=2) 6 {'succeeded': 1}"
    assert second.endswith("pip install 'pytest>=8' 'hypothesis>=6.100'")
