"""What a backend of Django's tasks owes, stated as tests; run in a process of its own, where Django is set up."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone
from django_tasks import TaskResult, TaskResultStatus, default_task_backend, task, task_backends
from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist, TaskResultMismatch
from django_tasks.signals import task_enqueued, task_finished, task_started
from tests.contrib.site import settings, tasks
from tests.contrib.site.elsewhere import wander

from holdfast.contrib.django import HoldfastBackend
from holdfast.contrib.django.backend import backend_of, priority_of
from holdfast.contrib.django.management.commands.holdfast import with_app
from holdfast.contrib.django.place import place_of, url_of_database
from holdfast.contrib.django.worker import application
from holdfast.errors import JobCancelled

QUEUES = ("default", "mail")


def work(alias: str = "default") -> None:
    """Run what is due, as a worker of that backend does."""
    app = application(alias)
    with app.worker() as worker:
        app.loop(worker, QUEUES, burst=True).run()


def kept(alias: str = "default") -> int:
    """How many jobs are kept there."""
    return sum(sum(states.values()) for states in application(alias).backend().counts().values())


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    tasks.ran.clear()
    yield
    work()


@pytest.fixture
def heard() -> "Iterator[list[tuple[str, TaskResult[Any], str]]]":
    """What the signals tell: which one, of which task, and its status then."""
    told: list[tuple[str, TaskResult[Any], str]] = []
    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers: list[Any] = []
    for name, signal in signals.items():

        def receive(sender: Any, task_result: "TaskResult[Any]", name: str = name, **_: Any) -> None:
            assert sender is HoldfastBackend
            told.append((name, task_result, str(task_result.status)))

        receivers.append(receive)
        signal.connect(receive)
    yield told
    for signal, receive in zip(signals.values(), receivers, strict=True):
        signal.disconnect(receive)


def test_it_can_do_everything_that_a_backend_can() -> None:
    backend = default_task_backend
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_a_task_waits_is_run_and_tells_its_value() -> None:
    before = timezone.now()
    result = tasks.add.enqueue(2, b=3)
    assert result.status == TaskResultStatus.READY
    assert (result.args, result.kwargs, result.attempts, result.is_finished) == ([2], {"b": 3}, 0, False)
    assert 0 < len(result.id) <= 64
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    assert tasks.add.get_result(result.id) == result

    work()
    assert not result.is_finished
    result.refresh()
    assert str(result.status) == "SUCCESSFUL"
    assert result.return_value == 5
    assert (result.attempts, result.errors, len(result.worker_ids)) == (1, [], 1)
    assert result.enqueued_at is not None
    assert result.started_at is not None
    assert result.finished_at is not None
    assert before <= result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at


def test_everything_can_be_awaited() -> None:
    async def enqueue_and_ask() -> "TaskResult[int]":
        result = await tasks.add.aenqueue(1, 1)
        assert (await tasks.add.aget_result(result.id)).id == result.id
        return result

    result = asyncio.run(enqueue_and_ask())
    work()
    asyncio.run(result.arefresh())
    assert result.return_value == 2


def test_a_coroutine_runs_and_may_ask_the_database() -> None:
    asked, failed = tasks.asks_the_database.enqueue(), tasks.fails_async.enqueue()
    work()
    assert default_task_backend.get_result(asked.id).return_value == 42
    shown = tasks.fails_async.get_result(failed.id)
    assert shown.status == TaskResultStatus.FAILED
    assert [error.exception_class for error in shown.errors] == [LookupError] * 2


def test_a_failing_task_is_tried_again_and_tells_every_error() -> None:
    result = tasks.fail.enqueue("no server")
    work()
    result.refresh()
    assert tasks.ran == ["no server"] * 2
    assert result.status == TaskResultStatus.FAILED
    assert result.attempts == 2
    assert [error.exception_class for error in result.errors] == [ValueError] * 2
    assert "no server" in result.errors[0].traceback
    assert "holdfast" not in result.errors[0].traceback
    assert result.started_at is not None
    assert result.last_attempted_at is not None
    assert result.started_at < result.last_attempted_at
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_a_task_has_options_of_its_own() -> None:
    once, twice = tasks.fail_once.enqueue(), tasks.fail_once.using(max_retries=1).enqueue()  # type: ignore[call-arg]
    work()
    assert tasks.fail_once.get_result(once.id).attempts == 1
    again = tasks.fail_once.get_result(twice.id)
    assert again.attempts == 2
    assert again.task == twice.task
    job = application("default").handle(once.id).view()
    assert (job.max_retries, job.timeout) == (0, 5)


def test_a_task_that_takes_too_long_is_stopped(heard: list[Any]) -> None:
    ids = {tasks.takes_too_long.enqueue().id, tasks.awaits_too_long.enqueue().id}
    work()
    for result in map(default_task_backend.get_result, ids):
        assert result.status == TaskResultStatus.FAILED
        assert [error.exception_class for error in result.errors] == [TimeoutError]
    assert {result.id for name, result, status in heard if (name, status) == ("finished", "FAILED")} == ids


def test_what_cannot_be_written_is_a_failure_that_is_not_repeated() -> None:
    result, shaped = tasks.unwritable.enqueue(), tasks.shapes.enqueue()
    work()
    result.refresh()
    shaped.refresh()
    assert tasks.ran == ["unwritable"]
    assert result.status == TaskResultStatus.FAILED
    assert issubclass(result.errors[0].exception_class, TypeError)
    assert shaped.return_value == {"tuple": [1, 2], "bytes": "text", "none": None}
    before = kept()
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.add.enqueue(object())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    assert kept() == before


def test_a_value_that_is_too_large_to_be_kept_is_not_taken_for_none() -> None:
    result = tasks.large.enqueue()
    work()
    result.refresh()
    for told in (result, tasks.large.get_result(result.id), tasks.large.using(backend="here").enqueue()):
        assert told.status == TaskResultStatus.SUCCESSFUL
        with pytest.raises(
            ValueError, match="succeeded, but the result was not stored: it has 70,002 bytes, and the limit is 65,536"
        ):
            _ = told.return_value


def test_the_context_tells_the_attempt_and_the_result() -> None:
    result = tasks.told.enqueue(1)
    work()
    result.refresh()
    assert tasks.ran == [(1, result.id, "RUNNING"), (2, result.id, "RUNNING")]
    assert result.return_value == [2, "told"]
    assert result.attempts == 2


def test_a_task_can_snooze_and_cancel(heard: list[Any]) -> None:
    snoozed, raised, returned = tasks.snooze.enqueue(), tasks.cancel.enqueue(), tasks.return_cancel.enqueue()
    work()
    assert tasks.snooze.get_result(snoozed.id).return_value == "awake"
    for cancelled in (raised.id, returned.id):
        shown = default_task_backend.get_result(cancelled)
        assert shown.status == TaskResultStatus.FAILED
        assert shown.errors[-1].exception_class is JobCancelled
        assert "nobody wants it" in shown.errors[-1].traceback
    finished = [(result.id, status) for name, result, status in heard if name == "finished"]
    assert sorted(finished) == sorted([(snoozed.id, "SUCCESSFUL"), (raised.id, "FAILED"), (returned.id, "FAILED")])


def test_priorities_keep_their_order_and_zero_is_the_middle() -> None:
    ours = [priority_of(priority) for priority in range(-100, 101)]
    assert ours == sorted(ours)
    assert set(ours) == set(range(10))
    assert priority_of(-1) < priority_of(0) == 5 < priority_of(1)
    for priority in (-100, 0, 1, 100):
        tasks.add.using(priority=priority).enqueue(priority)
    work()
    assert tasks.ran == [(100, 0), (1, 0), (0, 0), (-100, 0)]


def test_a_deferred_task_waits_for_its_time() -> None:
    due = timezone.now() + timedelta(days=1)
    later, now = tasks.add.using(run_after=due).enqueue(1), tasks.add.using(run_after=timezone.now()).enqueue(2)
    work()
    assert tasks.ran == [(2, 0)]
    shown = tasks.add.get_result(later.id)
    assert shown.status == TaskResultStatus.READY
    assert shown.task.run_after == due
    assert tasks.add.get_result(now.id).is_finished
    application("default").handle(later.id).cancel()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue_name": "unheard-of"}, "Queue 'unheard-of' is not valid"),
        ({"priority": 101}, "priority"),
        ({"run_after": datetime(2030, 1, 1)}, "aware"),
        ({"max_retries": -1}, r"tasks\.add: max_retries must be between"),
        ({"timeout": "soon"}, "timeout 'soon': must be a number of seconds"),
    ],
)
def test_wrong_options_are_refused_where_they_are_written(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTaskError, match=message):
        tasks.add.using(**options)


def test_a_function_that_no_worker_could_find_is_no_task() -> None:
    def local() -> None: ...

    with pytest.raises(InvalidTaskError, match="module level"):
        task()(local)


def test_results_are_of_their_own_task_only() -> None:
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add.get_result("unheard-of")
    with pytest.raises(TaskResultMismatch):
        tasks.add.get_result(tasks.mail.enqueue("ada").id)
    foreign = application("default").define("orders.charge", {"order": 7}).delay(3600).dispatch()
    with pytest.raises(TaskResultDoesNotExist, match="which is not a known task"):
        default_task_backend.get_result(foreign)


def test_a_task_and_the_rest_of_a_transaction_are_one(heard: list[Any]) -> None:
    before = kept()
    with transaction.atomic():
        tasks.add.enqueue(1)
        transaction.set_rollback(True)
    assert (kept(), heard) == (before, [])

    with transaction.atomic():
        first = tasks.add.enqueue(1)
        with transaction.atomic():
            tasks.add.enqueue(2)
            transaction.set_rollback(True)
        assert kept() == before
        assert heard == []
    assert kept() == before + 1
    assert [(name, result.id) for name, result, _ in heard] == [("enqueued", first.id)]


def test_elsewhere_a_task_is_enqueued_after_the_commit(heard: list[Any]) -> None:
    there = tasks.add.using(backend="other")
    with transaction.atomic():
        there.enqueue(1)
        transaction.set_rollback(True)
    with transaction.atomic():
        result = there.enqueue(2)
        assert result.enqueued_at is None
        assert kept("other") == 0
    assert kept("other") == 1
    assert result.enqueued_at is not None
    assert len(heard) == 1
    work("other")
    assert there.get_result(result.id).return_value == 2
    assert tasks.ran == [(2, 0)]


def test_whoever_wants_it_at_once_gets_it_at_once() -> None:
    with transaction.atomic():
        tasks.add.using(backend="at_once").enqueue(7)
        transaction.set_rollback(True)
    work("at_once")
    assert tasks.ran == [(7, 0)]


def test_signals_tell_the_life_of_a_task_once(heard: list[Any]) -> None:
    good, bad = tasks.add.enqueue(1), tasks.fail.enqueue("no")
    work()
    told = {good.id: list[Any](), bad.id: list[Any]()}
    for name, result, status in heard:
        told[result.id].append((name, status))
    assert told[good.id] == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
    assert told[bad.id] == [
        ("enqueued", "READY"),
        ("started", "RUNNING"),
        ("started", "RUNNING"),
        ("finished", "FAILED"),
    ]
    finished = [result for name, result, _ in heard if name == "finished"]
    assert [result.return_value for result in finished if result.status == "SUCCESSFUL"] == [1]
    assert [error.exception_class for result in finished for error in result.errors] == [ValueError]


def test_a_receiver_that_fails_changes_nothing_of_what_has_happened() -> None:
    def fail(**_: Any) -> None:
        raise ArithmeticError

    task_enqueued.connect(fail)
    task_finished.connect(fail)
    try:
        result = tasks.add.enqueue(8)
        work()
    finally:
        task_enqueued.disconnect(fail)
        task_finished.disconnect(fail)
    result.refresh()
    assert (result.return_value, result.attempts) == (8, 1)


def test_a_url_that_leads_to_the_database_joins_its_transactions() -> None:
    there = {"BACKEND": "holdfast.contrib.django.HoldfastBackend", "OPTIONS": {"url": url_of_database("default")}}
    with override_settings(TASKS={"default": there}):
        assert backend_of("default").place.database == "default"


def test_connections_end_with_the_task() -> None:
    result = tasks.query.enqueue()
    work()
    assert connection.connection is None
    assert tasks.query.get_result(result.id).return_value is True


def test_any_task_can_be_sent_to_any_backend_of_ours() -> None:
    application("default").registry.resolve(wander.module_path)  # a worker has to find it by itself
    result = wander.using(backend="default").enqueue(3)
    work()
    assert default_task_backend.get_result(result.id).return_value == 3


def test_the_engine_that_runs_at_once_tells_at_once() -> None:
    assert tasks.add.using(backend="here").enqueue(1, 2).return_value == 3
    failed = tasks.fail.using(backend="here").enqueue("no")
    assert failed.status == TaskResultStatus.FAILED
    assert len(failed.errors) == 2


def test_old_secret_keys_still_open_what_they_signed() -> None:
    result = tasks.add.enqueue(4)
    with override_settings(
        SECRET_KEY="another", SECRET_KEY_FALLBACKS=[settings.SECRET_KEY], TASKS={"default": settings.TASKS["default"]}
    ):
        work()
        assert tasks.add.get_result(result.id).return_value == 4


def test_django_databases_have_urls() -> None:
    directory = settings.BASE_DIR
    assert url_of_database("file") == f"sqlite:///{directory}/db.sqlite3"
    assert url_of_database("postgres") == "postgresql://ada:a%2Fb%40c@db.example:6432/shop?sslmode=require"
    assert url_of_database("socket") == "postgresql:///shop?host=%2Frun%2Fpostgresql"
    assert url_of_database("mysql") == "mysql://ada@[::1]/shop"
    assert url_of_database("memory") == "memory://"


def found_by_checks(params: dict[str, Any], **other: Any) -> list[str]:
    """The ids and messages of the checks with this backend alone."""
    configured = {"default": {"BACKEND": "holdfast.contrib.django.HoldfastBackend", **params}}
    with override_settings(TASKS=configured, **other):
        return [f"{found.id} {found.msg}" for found in checks.run_checks() if (found.id or "").startswith("holdfast")]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, None),
        ({"OPTIONS": {"max_retrys": 1}}, "E001 there is no setting 'max_retrys' (in TASKS['default']['OPTIONS'])"),
        ({"OPTIONS": {"max_retries": "often"}}, "E001 max-retries = 'often' in TASKS['default']['OPTIONS']"),
        ({"OPTIONS": {"url": "mongo://x"}}, "E001"),
        (
            {"OPTIONS": {"url": "memory://", "database": "default"}},
            "E001 TASKS['default']['OPTIONS'] has both a url and",
        ),
        ({"OPTIONS": {"routes": {"mail": "slow"}}}, "E001 TASKS['default']['OPTIONS'] has routes; with Django, give"),
        ({"OPTIONS": {"database": "unheard-of"}}, "E001 there is no database 'unheard-of'"),
        ({"QUEUES": ["Mail"]}, "E002 QUEUES: 'Mail' is not a valid queue name"),
        (
            {"QUEUES": ["default", "mial"], "OPTIONS": {"queues": ["default", "mail"]}},
            "E002 QUEUES: queue 'mial' is not declared; did you mean 'mail'?",
        ),
        ({"OPTIONS": {"modules": ["shop.nowhere"]}}, "E003 OPTIONS, modules: No module named"),
        ({"OPTIONS": {"url": "memory://"}}, "W002 jobs in memory:// are lost"),
        ({"OPTIONS": {"database": "memory"}}, "W002"),
        ({"OPTIONS": {"database": "hurried"}}, "W003 a transaction that reads before it enqueues"),
    ],
)
def test_checks_tell_what_is_wrong(params: dict[str, Any], expected: str | None) -> None:
    found = found_by_checks(params)
    if expected is None:
        assert found == []
    else:
        (message,) = found
        assert message.startswith(f"holdfast.{expected}")


def test_the_default_queue_is_djangos_unless_the_options_name_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEFAULT_QUEUE", "mail")
    assert place_of("default", {}).settings.default_queue == "default"
    assert place_of("default", {"default_queue": "mail"}).settings.default_queue == "mail"


def test_checks_miss_the_application() -> None:
    (message,) = found_by_checks({}, INSTALLED_APPS=["django_tasks"])
    assert message.startswith("holdfast.W001 Holdfast is not in INSTALLED_APPS")


def test_what_is_wrong_is_told_to_whoever_enqueues() -> None:
    wrong = {"BACKEND": "holdfast.contrib.django.HoldfastBackend", "OPTIONS": {"database": "unheard-of"}}
    with (
        override_settings(TASKS={"default": wrong}),
        pytest.raises(ImproperlyConfigured, match="there is no database 'unheard-of' in DATABASES; use default"),
    ):
        tasks.add.enqueue(1)
    for alias in ("immediate", "unheard-of"):
        with pytest.raises(
            ImproperlyConfigured, match="is not a Holdfast backend; Holdfast backends: 'default', 'other'"
        ):
            backend_of(alias)


def test_a_place_shows_neither_its_password_nor_its_key() -> None:
    there = {"url": "postgresql://ada:hunter2@db.example/shop", "signing_key": "k" * 32}
    shown = repr(place_of("default", there))
    assert "ada:…@db.example/shop" in shown
    assert "hunter2" not in shown
    assert "kkk" not in shown


def test_every_thread_has_the_same_application() -> None:
    backend = task_backends["default"]
    assert isinstance(backend, HoldfastBackend)
    there = asyncio.run(asyncio.to_thread(lambda: task_backends["default"]))
    assert isinstance(there, HoldfastBackend)
    assert there is not backend
    assert there.app is backend.app


def test_the_command_is_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr("sys.argv", ["manage.py"])
    result = tasks.add.enqueue(1)
    with pytest.raises(SystemExit) as ended:
        call_command("holdfast", "show", result.id)
    assert ended.value.code == 0
    assert "tests.contrib.site.tasks.add" in capsys.readouterr().out
    with pytest.raises(CommandError, match="is not a Holdfast backend"):
        call_command("holdfast", "--backend", "immediate", "list")


def test_generated_files_start_the_command_of_the_project(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr("sys.argv", ["/srv/shop/manage.py"])
    with pytest.raises(SystemExit) as ended:
        call_command("holdfast", "--backend", "slow", "generate", "docker")
    assert ended.value.code == 0
    made = capsys.readouterr().out
    assert "PYTHONPATH=/app DJANGO_SETTINGS_MODULE=tests.contrib.site.settings\n" in made
    assert 'CMD ["python", "manage.py", "holdfast", "--backend", "slow", "worker", "start", "--queue"' in made


def test_a_worker_leaves_the_other_backends_where_they_are() -> None:
    passed = tasks.pass_on.enqueue(5)
    start = ["holdfast", "--backend", "slow", "worker", "start", "--burst", "--quiet"]
    worked = subprocess.run([sys.executable, "-m", "django", *start], capture_output=True, text=True, check=False)
    assert worked.returncode == 0, worked.stderr
    there = tasks.pass_on.get_result(passed.id)
    assert there.status == TaskResultStatus.SUCCESSFUL
    work()
    assert tasks.add.get_result(str(there.return_value)).return_value == 5
    assert kept("slow") == 1


def test_a_task_is_run_at_its_times() -> None:
    cron = [sys.executable, "-m", "django", "holdfast", "--backend", "scheduled", "cron"]
    subprocess.run([*cron, "run", "--due"], capture_output=True, check=True)
    listed = subprocess.run([*cron, "list", "--quiet"], capture_output=True, text=True, check=True)
    assert listed.stdout == "tick\n"
    app = application("scheduled")
    job_id = app.cron_runner().run_now("tick")["tick"]
    with app.worker() as worker:
        app.loop(worker, ["default"], burst=True).run()
    assert task_backends["scheduled"].get_result(job_id).return_value == 42


def test_commands_that_want_an_application_are_told_it() -> None:
    assert with_app(["worker", "start", "--burst"], "m:a") == ["worker", "start", "m:a", "--burst"]
    assert with_app(["queue", "work", "mail"], "m:a") == ["queue", "work", "mail", "--app", "m:a"]
    assert with_app(["doctor"], "m:a") == ["doctor", "--app", "m:a"]
    assert with_app(["worker", "list"], "m:a") == ["worker", "list"]
    assert with_app(["cronjob", "daemon"], "m:a") == ["cronjob", "daemon", "m:a"]
    assert with_app(["cronjob", "run", "--due"], "m:a") == ["cronjob", "run", "--due", "--app", "m:a"]
    assert with_app(["cronjob", "run", "tick"], "m:a") == ["cronjob", "run", "tick"]
    assert with_app([], "m:a") == []


def test_a_task_can_be_enqueued_by_its_path() -> None:
    job_id = (
        application("default").define("tests.contrib.site.tasks.add", {"args": [20], "kwargs": {"b": 2}}).dispatch()
    )
    bare = application("default").define("tests.contrib.site.tasks.shapes", {}).dispatch()
    wrong = application("default").define("tests.contrib.site.tasks.add", ["Ada"]).dispatch()
    work()
    assert default_task_backend.get_result(wrong).status == TaskResultStatus.FAILED
    assert default_task_backend.get_result(job_id).return_value == 22
    assert default_task_backend.get_result(bare).status == TaskResultStatus.SUCCESSFUL
