"""`Backends`: the engines of one application by their names, and which queue is kept in which."""

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from typing import Final, NamedTuple, TypeAlias

from holdfast.config.keys import DEFAULT_BACKEND
from holdfast.errors import ConfigError
from holdfast.queues.addresses import check_url
from holdfast.queues.contract import Engine
from holdfast.queues.signing import Signer

DEFAULT: Final = DEFAULT_BACKEND


class Opened(NamedTuple):
    """An open engine, the keys of its messages, and what has to be closed before it is."""

    engine: Engine
    signer: Signer
    around: ExitStack


Opener: TypeAlias = Callable[[str], Opened]


class Backends:
    """Engines by name, each opened when it is first needed, by whichever thread comes first.

    `default` keeps every queue that no route sends elsewhere.
    """

    def __init__(self, urls: Mapping[str, str], routes: Mapping[str, str], opener: Opener) -> None:
        self.urls = dict(urls)
        self._routes = dict(routes)
        self._opener = opener
        self._opening = threading.Lock()
        self._opened: dict[str, Opened] = {}
        self._stand_in: Opened | None = None
        for name, url in self.urls.items():
            if name != DEFAULT:  # that one is only opened, or not: most errors in it are told with what was asked for
                _check_place(name, url)
        for queue, name in self._routes.items():
            named(name, self.urls, f"the route of queue '{queue}': ")

    def relocate(self, place: str, *, alone: bool) -> None:
        """Let the default be at that URL, or where the backend of that name is; `alone`, it keeps every queue."""
        self.urls[DEFAULT] = self.urls.get(place, place)
        if alone:
            self._routes.clear()

    def name_for(self, queue: str) -> str:
        """The backend that a queue is in."""
        return self._routes.get(queue, DEFAULT)

    def name_for_all(self, queues: Iterable[str]) -> str:
        """The one backend that all of these queues are in."""
        names = {self.name_for(queue): queue for queue in queues}
        if len(names) > 1:
            (one, queue), (other, another), *_ = names.items()
            raise ConfigError(
                f"queue '{queue}' is in backend '{one}' and queue '{another}' in backend '{other}'; "
                "take those of each by themselves"
            )
        return next(iter(names), DEFAULT)

    def opened(self, name: str = DEFAULT) -> Opened:
        """The engine of that name and its keys."""
        found = self._opened.get(name)
        if found is None:
            with self._opening:
                found = self._opened.get(name)
                if found is None:
                    found = self._opened[name] = self._open(name)
        return found

    def _open(self, name: str) -> Opened:
        url = named(name, self.urls)
        return self._opener(url) if self._stand_in is None else self._stand_in

    @contextmanager
    def standing_in(self, engine: Engine, signer: Signer) -> Generator[None]:
        """Keep all jobs in this engine while the block runs, also after a `close()`; then all is as it was before.

        What was open before stays open and is not touched. For tests: `holdfast.testing` builds on it.
        """
        with self._opening:
            before = self.urls, self._stand_in, self._opened
            self.urls, self._opened = dict.fromkeys(self.urls, "memory://"), {}
            self._stand_in = Opened(engine, signer, ExitStack())
        try:
            yield
        finally:
            with self._opening:
                self.urls, self._stand_in, self._opened = before

    def close(self) -> None:
        """Let go of every engine; whoever asks for one again opens it anew."""
        with self._opening:
            opened, self._opened = list(self._opened.values()), {}
        for one in opened:
            one.around.close()
            one.engine.close()


def named(name: str, urls: Mapping[str, str], where: str = "") -> str:
    """The URL of the backend of that name; `where` it is named is for the error."""
    if name not in urls:
        near = get_close_matches(name, urls, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(urls)}"
        raise ConfigError(f"{where}there is no backend '{name}'; {hint}")
    return urls[name]


def _check_place(name: str, url: str) -> None:
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"{name!r} cannot be the name of a backend: write letters, digits, dashes and underscores")
    try:
        check_url(url)
    except ConfigError as problem:
        raise ConfigError(f"backend '{name}': {problem}") from None
