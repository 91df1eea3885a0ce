"""Several backends in one application: each queue is in one of them, and nothing is promised across two."""

import asyncio
import re
from pathlib import Path

import pytest

from holdfast import Holdfast, JobState
from holdfast.config import Settings
from holdfast.definition import JobDefinition
from holdfast.errors import ConfigError, DefinitionError, UnknownJob
from holdfast.middleware import Middleware
from holdfast.state.facts import Facts
from holdfast.testing import JobKit


@pytest.fixture
def hf(tmp_path: Path) -> Holdfast:
    return Holdfast(
        f"sqlite:///{tmp_path}/shop.db",
        directory=tmp_path,
        settings=Settings(),
        backends={"reports": f"sqlite:///{tmp_path}/reports.db"},
        routes={"nightly": "reports", "weekly": "reports"},
    )


def states(hf: Holdfast, name: str = "default") -> dict[str, dict[JobState, int]]:
    return hf.backend(name).counts()


def test_a_job_goes_where_its_queue_is(hf: Holdfast) -> None:
    with hf:

        @hf.job
        def mail() -> str:
            return "sent"

        @hf.job(queue="nightly")
        def report() -> int:
            return 7

        sent, made = mail.enqueue(), report.enqueue()
        later = asyncio.run(mail.options(queue="weekly").enqueue_async())
        assert states(hf) == {"default": {JobState.PENDING: 1}}
        assert states(hf, "reports") == {"nightly": {JobState.PENDING: 1}, "weekly": {JobState.PENDING: 1}}
        with hf.worker() as worker, hf.worker(backend="reports") as other:
            worker.process_once("default")
            other.process_once("nightly")
            other.process_once("weekly")
        # Each handle asks the engine its job is in.
        assert (sent.result(0), made.result(0), asyncio.run(later.result(0))) == ("sent", 7, "sent")
        assert report.handle(made.id).result(0) == 7
        assert hf.handle(made.id, queue="weekly").status() is JobState.COMPLETED
        with pytest.raises(UnknownJob):
            hf.handle(made.id).status()


def test_a_batch_is_in_one_backend_or_not_at_all(hf: Holdfast) -> None:
    with hf:
        nightly, weekly, mail = (hf.define("work").queue(queue).definition() for queue in ("nightly", "weekly", "mail"))
        assert len(hf.enqueue_many([nightly, weekly])) == 2
        with pytest.raises(DefinitionError, match=r"'nightly' is in backend 'reports' and queue 'mail' in .*'default'"):
            hf.enqueue_many([nightly, mail])
        assert states(hf) == {}
        assert hf.enqueue_many([]) == []


def test_what_a_hook_makes_of_the_queue_decides(tmp_path: Path) -> None:
    class ToReports(Middleware):
        def before_enqueue(self, definition: JobDefinition) -> JobDefinition:
            return definition.with_options(queue="nightly")

    with Holdfast(
        "memory://",
        directory=tmp_path,
        settings=Settings(),
        backends={"reports": "memory://"},
        routes={"nightly": "reports"},
        middleware=[ToReports()],
    ) as hf:
        hf.define("work").dispatch()
        assert states(hf) == {}
        assert states(hf, "reports") == {"nightly": {JobState.PENDING: 1}}


def test_commands_are_allowed_by_the_workers_of_their_own_backend(hf: Holdfast) -> None:
    with hf:
        Facts(hf.backend("reports").state).add("allowed-command", ["sleep"])
        sleeping = hf.define("command", {"argv": ["sleep", "1"]})
        assert sleeping.queue("nightly").dispatch()
        with pytest.raises(DefinitionError, match="sleep"):
            hf.define("command", {"argv": ["sleep", "1"]}).dispatch()


def test_a_worker_takes_from_one_backend(hf: Holdfast) -> None:
    assert hf.deployment.name_for_all(["nightly", "weekly"]) == "reports"
    assert hf.deployment.name_for_all(["mail"]) == "default"
    with pytest.raises(ConfigError, match="handle the queues of each backend separately"):
        hf.deployment.name_for_all(["nightly", "mail"])


def test_names_that_lead_nowhere_are_errors_where_they_are_written(hf: Holdfast, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no backend 'report'; did you mean 'reports'"):
        hf.backend("report")
    with pytest.raises(ConfigError, match="the route of queue 'mail': there is no backend 'elsewhere'"):
        Holdfast("memory://", directory=tmp_path, settings=Settings(), routes={"mail": "elsewhere"})
    with pytest.raises(ConfigError, match="backend 'other': 'ftp://host' does not name an engine"):
        Holdfast("memory://", directory=tmp_path, settings=Settings(), backends={"other": "ftp://host"})
    with pytest.raises(ConfigError, match="is not a valid backend name"):
        Holdfast("memory://", directory=tmp_path, settings=Settings(), backends={"a b": "memory://"})


def test_the_default_is_named_by_the_url_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the backend named default is set with url"):
        Holdfast("memory://", directory=tmp_path, settings=Settings(), backends={"default": "sync://"})


def test_a_variable_comes_before_the_file_that_another_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BACKEND_MAIL", "memory://")
    monkeypatch.setenv("HOLDFAST_BACKEND_MAIL_FILE", str(tmp_path / "missing"))
    assert Holdfast("memory://", directory=tmp_path).deployment.urls["mail"] == "memory://"


def test_the_schema_is_made_in_all_of_them(hf: Holdfast, tmp_path: Path) -> None:
    hf.create_schema()
    assert (tmp_path / "shop.db").exists()
    assert (tmp_path / "reports.db").exists()


def test_the_kit_stands_in_for_all_of_them(hf: Holdfast, tmp_path: Path) -> None:
    @hf.job(queue="nightly")
    def report() -> None: ...

    with JobKit(hf) as kit:
        report.enqueue()
        kit.assert_enqueued(report, queue="nightly")
        assert kit.drain() == {"succeeded": 1}
    assert not list(tmp_path.glob("*.db"))


def test_the_settings_name_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holdfast.toml").write_text(
        'url = "sqlite:///shop.db"\n'
        "[backends]\nreports = 'sqlite:///reports.db'\nlong-name = 'sqlite:///long.db'\n"
        "[routes]\nnightly = 'reports'\n"
    )
    monkeypatch.setenv("HOLDFAST_BACKEND_LONG_NAME", "memory://")
    monkeypatch.setenv("HOLDFAST_BACKEND_MAIL", "sync://")
    with Holdfast(directory=tmp_path) as hf:
        assert hf.deployment.urls == {
            "default": f"sqlite:///{tmp_path}/shop.db",
            "reports": f"sqlite:///{tmp_path}/reports.db",
            "long-name": "memory://",
            "mail": "sync://",
        }
        hf.define("work").queue("nightly").dispatch()
    assert (tmp_path / "reports.db").exists()
    assert not (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[routes]\nnightly = 'reports'\n", "there is no backend 'reports' for nightly; known backends: default"),
        ("[backends]\nreports = 'ftp://x'\n", "reports: 'ftp://x' does not name an engine"),
        ("[backends]\ndefault = 'memory://'\n", "default is the backend in url; set url instead"),
        ("backends = 'memory://'\n", "must be a table of names and strings"),
        ("[engines]\nsqlite = 'acme:Backend'\n", "is one of Holdfast's own engines"),
        ("[engines]\n'no scheme' = 'acme:Backend'\n", "is not a valid URL scheme"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "holdfast.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(problem)):
        Holdfast(directory=tmp_path)


def test_a_password_in_a_backend_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("redis://:hunter2@db/0\n")
    secret.chmod(0o600)
    monkeypatch.setenv("HOLDFAST_BACKEND_CACHE_FILE", str(secret))
    with Holdfast("memory://", directory=tmp_path) as hf:
        assert hf.deployment.urls["cache"] == "redis://:hunter2@db/0"
        assert hf.deployment.location("cache") == "redis://:…@db/0"
        assert "hunter2" not in repr(hf.settings) + repr(hf.deployment)
