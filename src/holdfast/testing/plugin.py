"""The pytest plugin: fixtures that hold an application's jobs in memory during a test.

pytest loads this module at every start, even in projects that do not use the fixtures, so it imports nothing else.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.testing.kit import JobKit

SETTING = "holdfast_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SETTING, "the Holdfast application under test, as MODULE:NAME", default="")


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """If counts differ, also show the errors of the failed runs, one per line."""
    if "holdfast.testing.drained" not in sys.modules:
        return None  # nothing was drained
    from holdfast.testing.drained import Drained

    if op != "==" or not (isinstance(left, Drained) or isinstance(right, Drained)):
        return None
    sides = [repr(dict(side)) if isinstance(side, Drained) else repr(side) for side in (left, right)]
    errors = [f"  {line}" for side in (left, right) if isinstance(side, Drained) for line in dict.fromkeys(side.errors)]
    return [f"{sides[0]} == {sides[1]}", *errors]


@pytest.fixture
def holdfast_app(pytestconfig: pytest.Config) -> "Holdfast":
    """The application under test: the one named by the setting `holdfast_app`, or else a new one without jobs.

    Override this fixture in your conftest.py to create the application in another way.
    """
    from holdfast.app import Holdfast

    reference = str(pytestconfig.getini(SETTING))
    return application(reference) if reference else Holdfast("memory://")


@pytest.fixture
def holdfast(holdfast_app: "Holdfast") -> Iterator["JobKit"]:
    """The application's jobs, held in memory during this test. They wait for `drain`."""
    from holdfast.testing.kit import JobKit

    with JobKit(holdfast_app) as kit:
        yield kit


@pytest.fixture
def holdfast_inline(holdfast: "JobKit") -> Iterator["JobKit"]:
    """The same in inline mode: a job runs before `enqueue` returns."""
    with holdfast.inline():
        yield holdfast


def application(reference: str) -> "Holdfast":
    """The application at MODULE:NAME, imported with the path of the tests."""
    from holdfast.app import Holdfast

    module_name, _, attribute = reference.partition(":")
    if not attribute:
        raise pytest.UsageError(f"{SETTING} = {reference}: write MODULE:NAME, such as shop:hf for hf in shop.py")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{module_name}.".startswith(f"{problem.name}."):
            raise
        raise pytest.UsageError(
            f"{SETTING} = {reference}: no module named '{problem.name}'; add its directory to the setting pythonpath"
        ) from None
    found = getattr(module, attribute, None)
    if not isinstance(found, Holdfast):
        what = f"is a {type(found).__name__}, not a Holdfast application" if found is not None else "does not exist"
        raise pytest.UsageError(f"{SETTING} = {reference}: it {what}")
    return found
