"""The backend: tasks become jobs, a worker runs them, and results say what became of them."""

import asyncio
import logging
import signal
import sys
import threading
import types
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import django
import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import override_settings
from django.utils import timezone

from jqueue import Discard, Retry, SyncQueue
from jqueue.django.api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from jqueue.django.backend import JQueueBackend
from jqueue.django.worker import worker_of
from jqueue.runtime import file_lock
from tests.worker.scenes import LONG, SECRET, NoThreads

try:
    from django.tasks import task
    from django.tasks.exceptions import TaskResultMismatch
except ImportError:
    from django_tasks import task
    from django_tasks.exceptions import TaskResultMismatch

READY, RUNNING, FAILED, SUCCESSFUL = TaskResultStatus

calls: list[Any] = []


class Refused(Exception):
    """An error of a task."""


@task
def send(*args, **kwargs):
    calls.append((args, kwargs, threading.current_thread()))
    return [*args, kwargs]


@task
async def asend(value):
    await asyncio.sleep(0)
    calls.append((value, threading.current_thread()))
    return value


@task(takes_context=True)
def attempt(context, *, succeeds_at):
    result = context.task_result
    calls.append((result.id, result.status, list(result.worker_ids), len(result.errors), context.attempt))
    if context.attempt < succeeds_at:
        raise Refused(f"attempt {context.attempt} of {SECRET}")
    return context.attempt


@task
def give_up():
    raise Discard("no such order")


@task
def try_again():
    raise Retry(0, "not yet")


@task
async def hang():
    await asyncio.sleep(3600)


@task
def leave():
    raise SystemExit(3)


@task
def strange():
    return object()


@task
def not_a_number():
    return float("nan")


class Ended(BaseException):
    """An error that is no Exception."""


@task
def end():
    raise Ended


@task
async def aend():
    raise Ended


@task
async def select():
    cursor = await sync_to_async(lambda: connection.cursor().execute("SELECT 1"))()
    await released.wait()
    return await sync_to_async(cursor.fetchone)()


@task
async def release():
    released.set()


released = asyncio.Event()


def plain():
    """The function of a task of another backend."""


@task
def connect():
    connection.ensure_connection()
    calls.append(connection.connection and connections["default"])


@task
async def aconnect():
    await sync_to_async(connect.func)()


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()


@pytest.fixture
def signals():
    """Every signal of a task: its name, its sender, and the status of the result."""
    seen = []

    def receiver(name):
        def receive(sender, task_result, **kwargs):
            seen.append((name, sender, task_result.status))

        return receive

    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = {name: receiver(name) for name in signals}
    for name, each in signals.items():
        each.connect(receivers[name])
    yield seen
    for name, each in signals.items():
        each.disconnect(receivers[name])


def retry_now(site, result):
    """End the wait of a task for its next attempt."""
    with SyncQueue(site.url) as queue:
        queue.reschedule(result.id, delay=0)


# Enqueueing


def test_an_enqueued_task_is_ready_and_in_the_queue_and_its_signal_is_sent(site, signals):
    result = send.using(priority=7, queue_name="mail").enqueue(1, b"two", (3,), four=None)
    assert (READY, [], [], 0) == (result.status, result.errors, result.worker_ids, result.attempts)
    assert ([1, "two", [3]], {"four": None}) == (result.args, result.kwargs)
    assert 0 < len(result.id) < 64
    assert None is result.started_at is result.finished_at is result.last_attempted_at
    assert timezone.now() - result.enqueued_at < timedelta(minutes=1)
    assert send.using(priority=7, queue_name="mail") == result.task
    with SyncQueue(site.url) as queue:
        [job] = queue.read_state().jobs
    assert (result.id, f"mail:{__name__}.send", -7) == (job.id, job.entrypoint, job.priority)
    assert [("enqueued", type(task_backends["default"]), READY)] == signals


@pytest.mark.parametrize(
    ("value", "error"), [(object(), TypeError), ({1, 2}, TypeError), (float("nan"), ValueError), ("\ud800", ValueError)]
)
def test_arguments_that_are_not_json_are_refused_and_nothing_is_enqueued(site, value, error):
    with pytest.raises(error):
        send.enqueue(value)
    assert not (site.folder / "queue.json").exists()


async def test_code_on_an_event_loop_awaits_and_is_told_to(site, signals):
    asyncio.get_running_loop().set_default_executor(NoThreads())
    with pytest.raises(SynchronousOnlyOperation, match="aenqueue"):
        send.enqueue()
    result = await asend.aenqueue("value")
    assert [("enqueued", type(task_backends["default"]), READY)] == signals
    with pytest.raises(SynchronousOnlyOperation, match="aget_result"):
        asend.get_result(result.id)
    assert result.id == (await asend.aget_result(result.id)).id
    await result.arefresh()
    assert READY == result.status


def test_an_unfinished_task_with_the_same_unique_key_is_returned_in_place_of_a_second_one(site, signals):
    once = send.using(unique_key="daily")
    first, second = once.enqueue("first" * 100_000), once.enqueue("second")
    assert (first.id, first.args) == (second.id, second.args)
    assert ["enqueued"] == [name for name, _, _ in signals]
    site.work()
    assert first.id != once.enqueue("third").id
    assert 1 == len(calls)


class Late(JQueueBackend):
    """A backend that finds no task any more when it looks for one, as if each had finished at that moment."""

    def get_result(self, result_id):
        raise TaskResultDoesNotExist(result_id)

    _look_up = get_result


def test_a_task_with_a_taken_unique_key_is_answered_without_another_look_for_the_task_that_has_it(site):
    once = send.using(unique_key="daily")
    with site.settings(backend=f"{__name__}.Late", keep_result=None):
        assert once.enqueue("first").id == once.enqueue("second").id


# Running


def test_a_task_runs_in_a_thread_and_an_async_one_on_the_event_loop_and_results_say_when(site, signals):
    results = [send.enqueue("a", b=[1]), asend.enqueue({"c": 2})]
    assert 0 == site.work(name="tidy")
    for result in results:
        result.refresh()
        assert (SUCCESSFUL, True, 1, []) == (result.status, result.is_finished, result.attempts, result.errors)
        assert result.worker_ids[0].startswith("tidy@")
        assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert [["a", {"b": [1]}], {"c": 2}] == [result.return_value for result in results]
    threads = {len(call): call[-1] for call in calls}
    assert threads[3] is not threading.main_thread()
    assert threads[2] is threading.main_thread()
    sender = type(task_backends["default"])
    assert [("started", sender, RUNNING)] * 2 == [each for each in signals if each[0] == "started"]
    assert [("finished", sender, SUCCESSFUL)] * 2 == [each for each in signals if each[0] == "finished"]


def test_a_task_that_raises_has_failed_by_default_and_its_error_is_kept(site, signals, caplog):
    caplog.set_level(logging.DEBUG)
    result = attempt.enqueue(succeeds_at=2)
    assert 1 == site.work()
    result.refresh()
    assert (FAILED, 1, 1) == (result.status, result.attempts, len(result.worker_ids))
    assert result.started_at <= result.finished_at
    [error] = result.errors
    assert Refused is error.exception_class
    assert f"{__name__}.Refused" == error.exception_class_path
    assert "tests/django/test_backend.py:" in error.traceback
    assert " in attempt\n" in error.traceback
    assert f"attempt 1 of {SECRET}" in error.traceback
    assert "jqueue/" not in error.traceback
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018
    assert ["enqueued", "started", "finished"] == [name for name, _, _ in signals]
    assert FAILED == signals[-1][2]
    assert SECRET not in caplog.text


def test_between_its_attempts_a_task_is_ready_and_shows_its_errors_so_far(site, signals):
    with site.settings(max_attempts=3, backoff=LONG):
        result = attempt.enqueue(succeeds_at=2)
        assert 0 == site.work(name="first")
        result.refresh()
        assert (READY, 1, 1, None) == (result.status, result.attempts, len(result.errors), result.finished_at)
        started = result.started_at
        retry_now(site, result)
        assert 0 == site.work(name="second")
        result.refresh()
    assert (SUCCESSFUL, 2, 2, 1) == (result.status, result.return_value, result.attempts, len(result.errors))
    assert ["first", "second"] == [worker.partition("@")[0] for worker in result.worker_ids]
    assert started == result.started_at < result.last_attempted_at
    assert [(result.id, RUNNING, result.worker_ids[:n], n - 1, n) for n in (1, 2)] == calls
    assert 1 == [name for name, _, _ in signals].count("finished")


def test_a_task_chooses_by_jqueues_own_errors_what_becomes_of_it(site):
    with site.settings(max_attempts=3):
        results = [give_up.enqueue(), try_again.enqueue()]
        assert 1 == site.work()
        for result in results:
            result.refresh()
    assert [(FAILED, 1), (FAILED, 3)] == [(result.status, result.attempts) for result in results]
    assert [[Discard], [Retry] * 3] == [[each.exception_class for each in result.errors] for result in results]


@pytest.mark.parametrize(
    ("wrong", "kind", "timeout"),
    [
        (leave, SystemExit, None),
        (strange, TypeError, None),
        (hang, TimeoutError, 0.05),
        (end, Ended, None),
        (aend, Ended, None),
    ],
)
def test_a_task_that_exits_or_hangs_or_returns_no_json_has_failed_and_the_worker_goes_on(site, wrong, kind, timeout):
    with site.settings(timeout=timeout):
        result = wrong.enqueue()
        assert 1 == site.work()
        result.refresh()
        [error] = result.errors
        assert (FAILED, f"{kind.__module__}.{kind.__name__}") == (result.status, error.exception_class_path)
        assert kind is error.exception_class


def test_a_task_whose_return_value_cannot_be_kept_is_successful_without_it_and_a_warning_says_why(
    site, signals, caplog
):
    with site.settings(max_attempts=3):
        result = not_a_number.enqueue()
        assert 0 == site.work()
        result.refresh()
    assert (SUCCESSFUL, 1, None) == (result.status, result.attempts, result.return_value)
    assert [("started", RUNNING), ("finished", SUCCESSFUL)] == [(name, status) for name, _, status in signals[1:]]
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"job {result.id} (default:{not_a_number.module_path}, attempt 1) is SUCCESSFUL, but its")
    assert "a result must be JSON" in warning


def test_a_task_runs_although_an_operator_gave_it_a_priority_and_the_settings_no_longer_have_its_queue(site):
    with site.settings(queues=["a:b"]):
        result = send.using(queue_name="a:b").enqueue()
    with SyncQueue(site.url) as queue:
        queue.reprioritise(result.id, -1000)
    assert 0 == site.work(queue=["a:b"])
    result = send.get_result(result.id)
    assert (SUCCESSFUL, 1000, "a:b") == (result.status, result.task.priority, result.task.queue_name)


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_task_with_run_after_waits_until_then(site, use_tz):
    with override_settings(USE_TZ=use_tz), timezone.override("Pacific/Kiritimati"):
        now = datetime.now(UTC) if use_tz else datetime.now(timezone.get_default_timezone()).replace(tzinfo=None)
        later = now + timedelta(hours=12)
        result = send.using(run_after=later).enqueue()
        assert abs(result.enqueued_at - now) < timedelta(minutes=1)
        site.work()
        result.refresh()
        assert READY == result.status
        assert abs(send.get_result(result.id).task.run_after - later) < timedelta(seconds=1)
        retry_now(site, result)
        site.work()
        result.refresh()
        assert later > result.finished_at >= result.enqueued_at


def test_a_worker_of_some_queues_leaves_the_tasks_of_the_others(site):
    with site.settings(queues=()):
        results = [send.using(queue_name=name).enqueue() for name in ("default", "mail", "print")]
        site.work(queue=["mail, print", "mail"])
        for result in results:
            result.refresh()
        assert [READY, SUCCESSFUL, SUCCESSFUL] == [result.status for result in results]
        site.work(queue=["*"])
        assert SUCCESSFUL == send.get_result(results[0].id).status


@pytest.mark.parametrize("kind", [connect, aconnect])
def test_a_connection_to_the_database_is_closed_after_the_task_if_it_is_too_old(site, kind, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "NAME", site.folder / "db.sqlite3")
    kind.enqueue()
    assert 0 == site.work()
    assert [None] == [each.connection for each in calls]


def test_an_async_task_keeps_its_connection_to_the_database_while_another_one_ends(site, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "NAME", site.folder / "db.sqlite3")
    result = select.enqueue()
    aconnect.enqueue()
    release.enqueue()
    assert 0 == site.work(concurrency=2)
    result.refresh()
    assert [1] == result.return_value


def test_a_task_has_options_of_its_own_before_those_of_the_backend(site):
    result = try_again.using(max_attempts=2).enqueue()
    assert 1 == site.work()
    result.refresh()
    assert (FAILED, 2) == (result.status, result.attempts)
    with pytest.raises(InvalidTask, match="max_attempts must be"):
        try_again.using(max_attempts=0)
    with pytest.raises(InvalidTask, match="a worker takes the timeout of a task from its module"):
        try_again.using(timeout=1).enqueue()


@pytest.mark.skipif((6, 0) <= django.VERSION < (6, 1), reason="the decorator of Django 6.0 takes no further options")
def test_the_decorator_takes_the_options_of_a_task(site):
    decorated = task(max_attempts=4, unique_key="one")(send.func)
    assert (4, "one") == (decorated.max_attempts, decorated.unique_key)
    with pytest.raises(InvalidTask, match="timeout"):
        task(timeout=-1)(send.func)


def test_a_worker_knows_the_tasks_of_apps_whose_own_backend_is_another(site, monkeypatch):
    module = types.ModuleType("jqueue.django.tasks")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    immediate = f"{BaseTaskBackend.__module__.removesuffix('.base')}.immediate.ImmediateBackend"
    with override_settings(TASKS={"default": task_backends.settings["default"], "now": {"BACKEND": immediate}}):
        vars(module)["plain"] = task(backend="now")(plain)
        assert f"mail:{__name__}.plain" in worker_of(task_backends["default"]).handlers


def test_the_worker_logs_although_the_settings_have_disabled_earlier_loggers(site, monkeypatch):
    logger = logging.getLogger("jqueue.worker")
    monkeypatch.setattr(logger, "disabled", True)
    site.work()
    assert not logger.disabled


# Safety


def test_nothing_that_the_queue_names_is_imported_and_an_unknown_task_is_left(site, caplog):
    caplog.set_level(logging.INFO)
    with SyncQueue(site.url) as queue:
        job = queue.enqueue("default:this.zen", b'{"args": ["SECRET"], "kwargs": {}}')
    assert 0 == site.work()
    with pytest.raises(TaskResultDoesNotExist, match=r"knows no task 'this.zen'"):
        task_backends["default"].get_result(job.id)
    assert "no handler for the ready jobs of default:this.zen" in caplog.text
    assert "SECRET" not in caplog.text
    assert "this" not in sys.modules


def test_the_class_of_an_error_is_looked_up_and_never_imported(site):
    result = attempt.enqueue(succeeds_at=2)
    with SyncQueue(site.url) as queue:
        [job] = queue.dequeue()
        queue.nack(job, error="this.Zen: is it?", dead=True)
    result.refresh()
    [error] = result.errors
    assert "this.Zen" == error.exception_class_path
    with pytest.raises(ValueError, match=r"this\.Zen"):
        error.exception_class  # noqa: B018
    assert "this" not in sys.modules


@pytest.mark.parametrize("payload", [b"SECRET", b'["SECRET"]', b'{"args": "SECRET", "kwargs": {}}'])
def test_a_job_that_is_no_call_of_a_task_is_dead_and_has_no_result(site, payload, caplog):
    with SyncQueue(site.url) as queue:
        job = queue.enqueue(f"default:{__name__}.send", payload)
        assert 1 == site.work()
        [dead] = queue.read_state().jobs
    assert "the payload is no call of a task: enqueue it by its task" == dead.error
    with pytest.raises(TaskResultDoesNotExist, match="no call of a task"):
        send.get_result(job.id)
    assert [] == calls
    assert "SECRET" not in caplog.text


# Results


def test_a_result_that_is_not_there_does_not_exist(site):
    for wrong in ("unknown", "", None, "x" * 5000):
        with pytest.raises(TaskResultDoesNotExist):
            send.get_result(wrong)
    with site.settings(keep_result=None):
        result = send.enqueue()
        with pytest.raises(TaskResultDoesNotExist):
            send.get_result("unknown")
        site.work()
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()


def test_a_result_is_found_by_the_uuid_of_a_path_and_that_of_another_task_is_refused(site):
    result = send.enqueue()
    assert result.id == send.get_result(uuid.UUID(result.id)).id
    with pytest.raises(TaskResultMismatch):
        asend.get_result(result.id)


def test_attempts_that_the_queue_no_longer_remembers_are_counted(site):
    with site.settings(max_attempts=7):
        result = try_again.enqueue()
        site.work()
        result.refresh()
    assert (7, 5) == (result.attempts, len(result.errors))
    assert ["unknown"] * 2 == [worker for worker in result.worker_ids if "@" not in worker]


# The command in a program that goes on after it


def test_a_program_keeps_its_signals_when_it_has_called_the_command_in_any_thread(site):
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    with ThreadPoolExecutor() as threads:
        assert 0 == threads.submit(site.work).result()
    assert 0 == site.work()
    assert before == [signal.getsignal(number) for number in numbers]


def test_a_queue_that_cannot_be_used_is_an_error_of_the_command(site):
    (site.folder / "queue.json").write_text("this is no queue")
    with pytest.raises(CommandError, match="cannot be used"):
        site.work()


# Settings


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({}, []),
        ({"url": None}, ["E002"]),
        ({"url": "ftp://host/queue"}, ["E002"]),
        ({"url": "s3://user:SECRET@bucket"}, ["E002"]),
        ({"url": "/nowhere/at/all/queue.json"}, ["E002"]),
        ({"max_attempts": 0}, ["E002"]),
        ({"keep_result": "a day"}, ["E002"]),
        ({"deadline": -1}, ["E002"]),
        ({"max_retries": 3, "uri": "x"}, ["E001", "E001"]),
        ({"url": "textq:///tmp/queue.tq"}, ["E003"]),
        ({"url": "queue.json"}, ["W001"]),
        ({"url": "memory://x"}, ["W002"]),
    ],
)
def test_wrong_settings_are_found_by_the_system_check(site, options, problems):
    with site.settings(**options):
        found = list(task_backends["default"].check())
    assert [f"jqueue.{each}" for each in problems] == [each.id for each in found]
    assert all("TASKS['default']" in each.msg for each in found)
    assert "SECRET" not in str(found)


def test_a_missing_url_is_said_by_the_check_and_by_the_first_call(site):
    with override_settings(TASKS={"default": {"BACKEND": "jqueue.django.JQueueBackend"}}):
        [problem] = task_backends["default"].check()
        assert "has no URL" in problem.msg
        with pytest.raises(ImproperlyConfigured, match="has no URL"):
            send.enqueue()
        with pytest.raises(CommandError, match="has no URL"):
            call_command("jqueue_worker")


def test_a_queue_in_a_file_needs_locks_which_windows_lacks(site, monkeypatch):
    monkeypatch.setattr(file_lock, "fcntl", None)
    [problem] = task_backends["default"].check()
    assert "Windows" in problem.msg


def test_the_command_refuses_what_it_cannot_run(site):
    with pytest.raises(CommandError, match="--processes must be from 1"):
        site.work(processes=0)
    with site.settings(url="memory://"), pytest.raises(CommandError, match="--processes needs a file or a store"):
        site.work(processes=2)
    with pytest.raises(CommandError, match="concurrency"):
        site.work(concurrency=0)
    with pytest.raises(CommandError, match="QUEUES has no queue 'nope', only default, mail"):
        call_command("jqueue_worker", queue=["mail,nope"])
    with pytest.raises(CommandError, match="TASKS has no backend 'mail': it has default"):
        site.work(backend="mail")
    with (
        site.settings(backend=f"{BaseTaskBackend.__module__.removesuffix('.base')}.dummy.DummyBackend"),
        pytest.raises(CommandError, match="not a JQueueBackend"),
    ):
        site.work()
