"""What others bring along: handlers, retry policies, metrics collectors and engines, by settings and entry points."""

import sys
from pathlib import Path

import pytest

from holdfast import Holdfast, JobState
from holdfast.config import Settings, find_project, read_settings
from holdfast.config.checking import check_settings
from holdfast.errors import ConfigError
from holdfast.loading import load_app
from holdfast.queues.addresses import kind_of
from holdfast.queues.opening import EngineFactory, register_engine
from holdfast.queues.signing import Keyring, SigningKey

THEIRS = """
from holdfast import Handler, Holdfast
from holdfast.queues.engines.memory.engine import MemoryEngine

opened = []


def shout(text: str) -> str:
    return text.upper()


class Whisper(Handler):
    def handle(self, context):
        return "…"


class Patient:
    def delay(self, attempt, error):
        return 77.0


class Counting:
    def __init__(self):
        self.seen = []

    def count(self, name, value=1, *, queue):
        self.seen.append(name)


class Needy:
    def __init__(self, something): ...


def carrier(url, envelopes, *, policy, clock, prefix):
    opened.append((url, prefix))
    return MemoryEngine(envelopes, policy=policy, clock=clock)


class Failing:
    def __init__(self):
        raise OSError("the disk is full")


nothing = 7
picky = Holdfast("memory://").job(no_retry=[ValueError], key="picky")(shout)
theirs = Holdfast("memory://").job(shout)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "theirs.py").write_text(THEIRS)
    (tmp_path / "holdfast.toml").touch()
    package = tmp_path / "their_package-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    groups = {
        "handlers": "shout = theirs:shout",
        "retry_policies": "patient = theirs:Patient",
        "metrics": "counting = theirs:Counting",
        "engines": "parcel = theirs:carrier",
    }
    text = "".join(f"[holdfast.{group}]\n{line}\n" for group, line in groups.items())
    (package / "entry_points.txt").write_text(text)
    sys.path.append(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("named", "key"),
    [
        ("theirs:shout", "shout"),
        ("shout", "shout"),
        ("loud=theirs:shout", "loud"),
        ("loud=shout", "loud"),
        ("theirs:theirs", "theirs"),
    ],
)
def test_a_handler_that_the_settings_name_runs(project: Path, named: str, key: str) -> None:
    with Holdfast("memory://", directory=project, settings=Settings(handlers=(named,))) as hf, hf.worker() as worker:
        job_id = hf.define(key, {"text": "hello"}).dispatch()
        worker.process_once("default")
        assert hf.handle(job_id).result(0) == "HELLO"


def test_a_job_keeps_what_it_is_not_retried_after(project: Path) -> None:
    with Holdfast("memory://", directory=project, settings=Settings(handlers=("mine=theirs:picky",))) as hf:
        hf.workers.prepare()
        assert hf.registry.resolve("mine").no_retry == (ValueError,)


def test_a_job_of_the_application_itself_is_known_already(project: Path) -> None:
    (project / "holdfast.toml").write_text('handlers = ["ours:own"]\n')
    lines = ("from holdfast import Holdfast", "hf = Holdfast('memory://')", "@hf.job", "def own(): ...")
    (project / "ours.py").write_text("\n".join(lines))
    hf = load_app("ours:hf")
    hf.settings = Settings(handlers=("ours:own",))
    hf.workers.prepare()
    assert "own" in hf.registry.keys()  # noqa: SIM118 - not a dict


def test_a_handler_class_is_one_too(project: Path) -> None:
    settings = Settings(handlers=("theirs:Whisper",))
    with Holdfast("memory://", directory=project, settings=settings) as hf, hf.worker() as worker:
        job_id = hf.define("Whisper").dispatch()
        worker.process_once("default")
        assert hf.handle(job_id).result(0) == "…"


@pytest.mark.parametrize("named", ["theirs:Patient", "patient"])
def test_a_retry_policy_that_the_settings_name_decides(project: Path, named: str) -> None:
    with Holdfast("memory://", directory=project, settings=Settings(retry_policy=named)) as hf:

        @hf.job
        def fail() -> None:
            raise OSError

        with hf.worker() as worker:
            handle = fail.enqueue()
            result = worker.process_once("default")
        assert result is not None
        assert result.retry_in == 77.0
        assert handle.status() is JobState.FAILED


@pytest.mark.parametrize("named", ["theirs:Counting", "counting"])
def test_a_collector_that_the_settings_name_counts(project: Path, named: str) -> None:
    with Holdfast("memory://", directory=project, settings=Settings(metrics=named)) as hf:

        @hf.job
        def work() -> None: ...

        with hf.worker() as worker:
            work.enqueue()
            worker.process_once("default")
        assert getattr(hf.metrics, "seen", [])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (Settings(handlers=("theirs:nothing",)), "handler 'theirs:nothing' must be a function or a Handler"),
        (Settings(handlers=("shoot",)), "there is no handler 'shoot'; did you mean 'shout'?"),
        (Settings(handlers=("nowhere:x",)), "cannot load the handler 'nowhere:x': ModuleNotFoundError"),
        (Settings(retry_policy="theirs:nothing"), "is not a retry policy; it needs a method  delay"),
        (Settings(retry_policy="theirs:Needy"), "cannot create the retry policy 'theirs:Needy' without arguments"),
        (
            Settings(metrics="theirs:Failing"),
            "cannot create the metrics collector 'theirs:Failing': OSError: the disk",
        ),
        (Settings(metrics="theirs:Patient"), "is not a metrics collector; it needs a method  count"),
        (Settings(metrics="statsd"), "write MODULE:NAME or one of the installed ones: counting, memory, prometheus"),
    ],
)
def test_a_name_that_leads_nowhere_is_an_error_before_any_job_is_taken(
    project: Path, settings: Settings, problem: str
) -> None:
    with Holdfast("memory://", directory=project, settings=settings) as hf:
        with pytest.raises(ConfigError) as caught:
            hf.workers.prepare()
        assert problem in str(caught.value)


def test_given_in_code_they_come_before_the_settings(project: Path) -> None:
    class Once:
        def delay(self, attempt: int, error: object) -> float:
            return 1.0

    mine = Once()
    settings = Settings(retry_policy="patient")
    assert (
        Holdfast("memory://", directory=project, settings=settings, retry_policy=mine).extensions.retry_policy is mine
    )


def test_a_url_of_others_opens_their_engine(project: Path) -> None:
    (project / "holdfast.toml").write_text(
        'url = "carrier://depot"\ntable-prefix = "shop_"\n[engines]\ncarrier = "theirs:carrier"\n'
    )
    for url, scheme in ((None, "carrier"), ("parcel://depot?a=b", "parcel")):
        with Holdfast(url, directory=project, signing_key="ab" * 32) as hf:
            assert hf.define("work").dispatch()
            assert kind_of(hf.deployment.url()).scheme == scheme
    assert sys.modules["theirs"].opened == [("carrier://depot", "shop_"), ("parcel://depot?a=b", "shop_")]


def test_an_engine_of_others_needs_a_key_like_any_that_is_shared(project: Path) -> None:
    with Holdfast("parcel://depot", directory=project) as hf, pytest.raises(ConfigError, match="HOLDFAST_SIGNING_KEY"):
        hf.backend()


def test_an_engine_is_registered_in_code(project: Path) -> None:
    register_engine("cart", "theirs:carrier", project)
    register_engine("broken", "theirs:nothing", project)
    factory = EngineFactory(Keyring([SigningKey.generate()]))
    assert factory.open("cart://x")[0].counts() == {}
    with pytest.raises(ConfigError, match="cannot create engines for broken: URLs"):
        factory.open("broken://x")
    with pytest.raises(ConfigError, match="is one of Holdfast's own engines"):
        register_engine("postgres", "theirs:carrier")


def test_what_is_not_installed_is_found_by_checking(project: Path) -> None:
    settings = ('middleware = ["otel", "theirs:x"]', 'handlers = ["shoot"]', 'metrics = "statsd"')
    (project / "holdfast.toml").write_text("\n".join(settings))
    problems = [problem.message for problem in check_settings(read_settings(find_project(project), environment={}), {})]
    assert len(problems) == 2
    assert any("did you mean 'shout'?" in problem for problem in problems)
    assert any("there is no metrics collector 'statsd'" in problem for problem in problems)
