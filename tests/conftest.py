"""What tests of several folders share: the place where their jobs are kept, and imports that end with a test."""

import signal
import sys
from collections.abc import Iterator

import pytest

from .servers.places import Place, Servers, place_on


@pytest.fixture(scope="session", autouse=True)
def heard_signals() -> Iterator[None]:
    """A shell that runs the tests in the background makes them ignore Ctrl-C, and their children would inherit that."""
    ignored = [number for number in (signal.SIGINT, signal.SIGQUIT) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


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
