"""What tests of several folders share: the place where their jobs are kept."""

from collections.abc import Iterator

import pytest

from .servers.places import Place, Servers, place_on


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
