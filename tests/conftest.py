"""What tests of several folders share: the place of their jobs, small control groups, imports that end with a test."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .faults.processes import until
from .servers.places import Place, Servers, place_on
from .servers.running import close_servers_of_session


@pytest.fixture(scope="session", autouse=True)
def heard_signals() -> Iterator[None]:
    """A shell that runs the tests in the background makes them ignore Ctrl-C, and their children would inherit that."""
    ignored = [number for number in (signal.SIGINT, signal.SIGQUIT) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def pytest_sessionfinish() -> None:
    close_servers_of_session()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Place]:
    """A file, unless the test asks for an engine (`every_engine`)."""
    engine: str = getattr(request, "param", "sqlite")
    with place_on(None if engine == "sqlite" else servers.running(engine)) as place:
        yield place


@pytest.fixture(autouse=True)
def own_imports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget what a test has imported from its directory: the next one may have a module of that name, too."""
    below = str(tmp_path_factory.getbasetemp())
    modules, path = set(sys.modules), set(sys.path)
    yield
    sys.path[:] = [place for place in sys.path if place in path or not place.startswith(below)]
    for name in sys.modules.keys() - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(below):
            del sys.modules[name]


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of processes that may have 64 MB together, where there may be one."""
    group = _make_group("memory", "memory.limit_in_bytes") or _make_group(".", "memory.max")
    if group is None:
        pytest.skip("a control group that limits memory can be made by root only, and not everywhere")
    yield group
    until(lambda: _is_removed(group), "the group to be empty")


def _make_group(controller: str, limit: str) -> Path | None:
    group = Path("/sys/fs/cgroup", controller, f"holdfast-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / limit).write_text(str(64 * 1024 * 1024))
    except OSError:
        _is_removed(group)
        return None
    return group


def _is_removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()
