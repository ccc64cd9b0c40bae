"""`jqueue stats`, `dead`, `redrive`, `purge`, `cancel`, `pause` and `resume` on a queue in a file, at 80 columns."""

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.testing import FakeClock

SECRET = "hunter2"
LONG = "the server said 451, and then it said more; " * 10

ON_A_QUEUE = [
    ("stats",),
    ("dead",),
    ("redrive", "--all"),
    ("purge", "--yes"),
    ("cancel", "some-id"),
    ("pause", "mail"),
    ("resume", "mail"),
    ("limit", "mail"),
    ("configure",),
    ("schedule", "nightly", "--cron", "0 2 * * *", "--entrypoint", "clean"),
    ("unschedule", "nightly"),
    ("run-now", "some-id"),
    ("requeue-stale", "--timeout", "5m"),
    ("reschedule", "some-id", "--delay", "60"),
    ("reprioritise", "--all", "--priority", "1"),
    ("edit", "--settings"),
    ("drop-segment", "name", "--yes"),
]
"""Each command with the arguments after its URL."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def queue(path):
    """A queue in the file whose verbs block: `queue.verb(...)`."""

    class Blocking:
        def __getattr__(self, verb):
            fresh = DirectQueue(LocalFileSystemStorage(path))
            return lambda *arguments, **options: asyncio.run(getattr(fresh, verb)(*arguments, **options))

    return Blocking()


def jqueue(command, *arguments):
    runner = CliRunner(env={"COLUMNS": "80"})
    return runner.invoke(app, [command, *map(str, arguments)], catch_exceptions=False)


def values(*arguments):
    result = jqueue(*arguments, "--json")
    assert (0, "") == (result.exit_code, result.stderr)
    assert SECRET not in result.stdout
    return json.loads(result.stdout)


def text(*arguments):
    result = jqueue(*arguments)
    assert (0, "") == (result.exit_code, result.stderr)
    assert SECRET not in result.stdout
    assert max(map(len, result.stdout.splitlines()[1:]), default=0) <= 80
    return " ".join(result.stdout.split())


class Timeless:
    """A file without a store time, so that its queue uses the clock that it is given."""

    def __init__(self, path):
        file = LocalFileSystemStorage(path)
        self.read, self.write = file.read, file.write


def kill(path, entrypoint, job_id, error, at=None):
    """Add a dead job to the queue in the file, dead since `at` if a moment is given."""

    async def die():
        queue = DirectQueue(Timeless(path)) if at is None else DirectQueue(Timeless(path), clock=FakeClock(at))
        await queue.enqueue(entrypoint, SECRET.encode(), job_id=job_id)
        [job] = await queue.dequeue(entrypoint)
        await queue.nack(job, error=error, dead=True)

    asyncio.run(die())


def test_stats_count_the_jobs_of_each_entrypoint(path, queue):
    for _ in range(3):
        queue.enqueue("mail", SECRET.encode())
    queue.enqueue("report", b"", delay=60, headers={"token": SECRET})
    [job] = queue.dequeue("mail")
    kill(path, "boom", "dead-1", "ValueError")
    queue.pause("boom")
    found = values("stats", path)
    assert (2, 1, 1, 1, 0) == tuple(found[name] for name in ("ready", "scheduled", "in_progress", "dead", "completed"))
    assert (str(path), path.stat().st_size, []) == (found["queue"], found["size"], found["warnings"])
    assert (2, 1, False) == tuple(found["entrypoints"]["mail"][name] for name in ("ready", "in_progress", "paused"))
    assert found["entrypoints"]["mail"]["oldest_ready_seconds"] >= 0
    assert (1, True) == tuple(found["entrypoints"]["boom"][name] for name in ("dead", "paused"))
    shown = text("stats", path)
    assert "boom (paused) 0 0 0 1 0" in shown
    assert "mail 2 0 1 0 0" in shown
    assert "all 2 1 1 1 0" in shown
    assert job.id not in shown


def test_stats_show_limits_cron_entries_and_settings(path, queue):
    queue.limit("fetch", running=5, rate=100, per=60)
    queue.schedule("nightly", "30 2 * * *", "clean", SECRET.encode(), timezone="Europe/Berlin")
    queue.configure(aging=30, dead_retention=30 * 86400)
    found = values("stats", path)
    assert (5, 100, 60) == tuple(found["entrypoints"]["fetch"][name] for name in ("max_running", "rate", "per"))
    [entry] = found["schedules"]
    assert {"name": "nightly", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "entrypoint": "clean"}.items() <= (
        entry.items()
    )
    [expected] = queue.schedules()
    assert expected.next_at == datetime.fromisoformat(entry["next_at"])
    assert (30, 30 * 86400) == (found["aging"], found["dead_retention"])
    shown = text("stats", path)
    assert "fetch 0 of 5 100 in 60 s" in shown
    assert "nightly clean 30 2 * * *" in shown
    assert f"{expected.next_at:%Y-%m-%d %H:%M:%S}" in shown
    assert "dead jobs are removed after 30 d" in shown


def test_stats_warn_about_unreadable_lines(path, queue):
    queue.enqueue("mail", b"", job_id="one")
    path.write_text(path.read_text().replace('"entrypoint": "mail"', '"entrypoint": 5'))
    assert values("stats", path)["warnings"]
    assert "warning: 1 line cannot be read as a job: " in text("stats", path)


def test_control_characters_in_names_are_escaped(path, queue):
    queue.enqueue("mail", b"")
    path.write_text(path.read_text().replace('"mail"', r'"\u001b[31m[bold]mail"'))
    shown = text("stats", path)
    assert r"\x1b[31m[bold]mail" in shown
    assert "\x1b" not in shown


def test_the_stats_of_an_empty_queue_show_no_jobs(path, queue):
    queue.cancel(queue.enqueue("mail", b"").id)
    assert "no jobs" in text("stats", path)
    assert 0 == values("stats", path)["entrypoints"]["mail"]["ready"]
    assert "no job is dead" == text("dead", path)
    assert [] == values("dead", path)["dead"]


def test_dead_jobs_are_listed_with_their_errors(path):
    kill(path, "mail", "mail-1", LONG)
    kill(path, "boom", "boom-1", "KeyError: 'x'\nsecond line", at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    first, last = values("dead", path)["dead"]
    assert ("boom-1", "boom", 1, "KeyError: 'x'\nsecond line") == tuple(
        first[name] for name in ("id", "entrypoint", "attempts", "error")
    )
    assert "2026-01-02T03:04:05+00:00" == first["dead_at"]
    assert ("mail-1", LONG) == (last["id"], last["error"])
    shown = text("dead", path)
    assert "boom-1" in shown
    assert "KeyError: 'x' second line" in shown
    assert "…" in shown
    assert len(LONG) > len(shown) - shown.index("mail-1")
    assert "2 jobs are dead" in shown


def test_a_dead_job_shows_the_limit_that_applied(path, queue):
    for job_id, most in (("own", 1), ("of-its-handler", None)):
        queue.enqueue("mail", job_id=job_id, max_attempts=most)
        queue.nack(queue.dequeue()[0].claim, dead=most is None)
    found = {job["id"]: (job["max_attempts"], job["given_up_by"]) for job in values("dead", path)["dead"]}
    assert {"own": (1, "limit"), "of-its-handler": (None, "worker")} == found


def test_dead_jobs_are_filtered_by_entrypoint(path):
    kill(path, "mail", "mail-1", "ValueError")
    kill(path, "boom", "boom-1", "ValueError")
    assert ["boom-1"] == [job["id"] for job in values("dead", path, "--entrypoint", "boom")["dead"]]
    assert "no job of this entrypoint is dead" == text("dead", path, "--entrypoint", "absent")


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (["mail-1"], {"mail-1"}),
        (["--entrypoint", "mail"], {"mail-1", "mail-2"}),
        (["--all"], {"mail-1", "mail-2", "x"}),
    ],
)
def test_redrive_queues_dead_jobs_again(path, queue, which, expected):
    for job_id, entrypoint in (("mail-1", "mail"), ("mail-2", "mail"), ("x", "other")):
        kill(path, entrypoint, job_id, "ValueError")
    said = text("redrive", path, *which)
    assert (f"{len(expected)} job" in said) or (said == "the job (mail) is queued again")
    assert expected == {job.id for job in queue.read_state().queued_jobs()}


def test_redrive_counts_the_jobs_that_stay_dead(path, queue):
    queue.enqueue("mail", b"", unique_key="k")
    [job] = queue.dequeue("mail")
    queue.nack(queue.read_state().find(job.id), dead=True)
    holder = queue.enqueue("mail", b"", unique_key="k")
    as_json = jqueue("redrive", path, "--entrypoint", "mail", "--json")
    numbers = {"matched": 1, "redriven": 0, "changed_meanwhile": 0, "refused": 1}
    assert {**numbers, "taken": {job.id: holder.id}} == json.loads(as_json.stdout)
    by_all = jqueue("redrive", path, "--all")
    assert "not redriven: 1 job: another job has taken the unique key" in by_all.stdout
    assert f"{job.id}: job {holder.id} has its unique key" in " ".join(by_all.stdout.split())
    assert (1, 1) == (as_json.exit_code, by_all.exit_code)
    result = jqueue("redrive", path, job.id)
    assert (2, 1) == (result.exit_code, result.stderr.count("\n"))
    assert "Unique key 'k' is taken" in result.stderr


@pytest.mark.parametrize("which", [[], ["an-id", "--all"], ["--all", "--entrypoint", "mail"]])
def test_redrive_requires_exactly_one_selection(path, queue, which):
    queue.enqueue("mail", b"")
    result = jqueue("redrive", path, *which)
    assert (2, "") == (result.exit_code, result.stdout)
    assert "jqueue: choose the jobs: one ID, filters such as --entrypoint NAME, or --all\n" == result.stderr


def test_redrive_refuses_a_job_that_is_not_dead(path, queue):
    job = queue.enqueue("mail", b"")
    assert (2, "jqueue: this job is queued: only a dead job can be queued again\n") == (
        (result := jqueue("redrive", path, job.id)).exit_code,
        result.stderr,
    )
    assert {"matched": 0, "redriven": 0} == values("redrive", path, "--all")
    assert "no job was redriven: none matches" == text("redrive", path, "--all")


def test_purge_removes_dead_jobs_above_the_given_age(path, queue):
    kill(path, "mail", "old", "ValueError", at=datetime(2020, 1, 1, tzinfo=UTC))
    kill(path, "mail", "new", "ValueError")
    kill(path, "other", "x", "ValueError")
    assert 1 == values("purge", path, "--older-than", "30d", "--yes")["purged"]
    assert "no job was purged: none matches" == text("purge", path, "--older-than", "2w")
    assert "1 job was purged" == text("purge", path, "--entrypoint", "mail", "--yes")
    assert ["x"] == [job.id for job in queue.read_state().dead_jobs()]


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1y", "9999w", f"{'9' * 400}d", SECRET])
def test_purge_refuses_an_invalid_age(path, age):
    kill(path, "mail", "one", "ValueError")
    result = jqueue("purge", path, f"--older-than={age}")
    assert (2, "") == (result.exit_code, result.stdout)
    assert "jqueue: --older-than takes a number with a unit: 90s, 15m, 12h, 30d or 2w\n" == result.stderr


@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, 1), ("y", 0, 0)])
def test_purge_asks_for_confirmation_at_a_terminal(path, queue, answer, status, left):
    kill(path, "mail", "one", "ValueError")
    keyboard, terminal = os.openpty()
    try:
        os.write(keyboard, f"{answer}\n".encode())
        command = [sys.executable, "-m", "jqueue", "purge", str(path)]
        result = subprocess.run(command, stdin=terminal, capture_output=True, text=True, timeout=60)
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert "Remove 1 job for good?" in result.stderr
    assert (status, left) == (result.returncode, queue.stats().dead)


def test_cancel_removes_a_waiting_job(path, queue):
    first, second = (queue.enqueue("mail", b"") for _ in range(2))
    assert "the job (mail) was removed" == text("cancel", path, first.id)
    assert {"id": second.id, "entrypoint": "mail", "cancelled": "removed"} == values("cancel", path, second.id)
    assert () == queue.read_state().jobs


def test_cancel_stops_a_running_job_only_with_running(path, queue):
    queue.enqueue("mail", b"")
    [job] = queue.dequeue("mail")
    refused = jqueue("cancel", path, job.id)
    assert (2, "jqueue: this job is in progress: add --running to tell its worker to stop\n") == (
        refused.exit_code,
        refused.stderr,
    )
    assert "will be told to stop" in text("cancel", path, job.id, "--running")
    assert queue.read_state().find(job.id).cancel_requested
    assert "told" == values("cancel", path, job.id, "--running")["cancelled"]


def test_cancel_leaves_a_dead_job_alone(path, queue):
    kill(path, "mail", "one", "ValueError")
    result = jqueue("cancel", path, "one", "--running")
    assert (2, "jqueue: this job is already dead: remove dead jobs with `jqueue purge`\n") == (
        result.exit_code,
        result.stderr,
    )


@pytest.mark.parametrize("command", ["cancel", "redrive"])
def test_a_missing_job_is_an_error_that_does_not_repeat_the_id(path, queue, command):
    queue.enqueue("mail", b"")
    result = jqueue(command, path, f"s3://key:{SECRET}@bucket/queue.json")
    assert (2, f"jqueue: there is no job with this id in {path}: it may have finished\n") == (
        result.exit_code,
        result.stderr,
    )


def test_an_entrypoint_is_paused_and_resumed(path, queue):
    queue.enqueue("mail", b"")
    assert "paused until `jqueue resume`: 1 job waits, 0 jobs in progress continue" == text("pause", path, "mail")
    assert [] == queue.dequeue("mail")
    assert {"entrypoint": "mail", "paused": True, "changed": False} == values("pause", path, "mail")
    assert "this entrypoint was already paused" == text("pause", path, "mail")
    assert "resumed: 1 job is ready" == text("resume", path, "mail")
    assert {"entrypoint": "mail", "paused": False, "changed": False} == values("resume", path, "mail")
    assert "this entrypoint was not paused" == text("resume", path, "mail")
    assert 1 == len(queue.dequeue("mail"))


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_an_entrypoint_needs_a_name(path, queue, command):
    queue.enqueue("mail", b"")
    result = jqueue(command, path, "")
    assert (2, 1) == (result.exit_code, result.stderr.count("\n"))
    assert "entrypoint must be printable and not empty" in result.stderr


@pytest.mark.parametrize("command", ON_A_QUEUE, ids=lambda command: command[0])
def test_a_missing_queue_is_an_error_and_is_not_created(tmp_path, command):
    missing = tmp_path / "queue.json"
    name, *more = command
    result = jqueue(name, missing, *more)
    assert (2, "") == (result.exit_code, result.stdout)
    assert (
        f"jqueue: there is no queue at {missing}: check the URL; the first enqueue creates a queue\n" == result.stderr
    )
    as_json = jqueue(name, missing, *more, "--json")
    assert (2, "") == (as_json.exit_code, as_json.stderr)
    assert ["error"] == list(json.loads(as_json.stdout))
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ON_A_QUEUE, ids=lambda command: command[0])
@pytest.mark.parametrize("url", ["{}/misspelled/queue.json", "file://{}/misspelled/queue.json?lock_timeout=3"])
def test_a_missing_folder_is_named_and_not_created(tmp_path, command, url):
    name, *more = command
    result = jqueue(name, url.format(tmp_path), *more)
    assert (2, "") == (result.exit_code, result.stdout)
    said = f"there is no queue: the folder '{tmp_path}/misspelled' does not exist; correct the path"
    assert f"jqueue: {said}\n" == result.stderr
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [*ON_A_QUEUE, ("enqueue", "mail"), ("init",)], ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"s3://key:{SECRET}@bucket", "the s3:// URL names a bucket, but no object in it"),
        (f"memory://?password={SECRET}", "has an unknown option"),
        ("memory://", "an in-memory queue is visible only to its own process"),
        ("", "the URL of a queue is empty"),
    ],
)
def test_a_wrong_url_is_a_one_line_error_without_its_secrets(command, url, said):
    name, *more = command
    result = jqueue(name, url, *more)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert said in result.stderr
    assert SECRET not in result.stderr


@pytest.mark.parametrize("command", [*ON_A_QUEUE, ("enqueue", "mail")], ids=lambda command: command[0])
def test_a_newer_format_is_a_one_line_error_and_stays_unchanged(path, queue, command):
    queue.enqueue("mail", SECRET.encode())
    path.write_text(path.read_text().replace('"critical": []', '"critical": ["what-comes-next"]'))
    before = path.read_bytes()
    name, *more = command
    result = jqueue(name, path, *more)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert "what-comes-next" in result.stderr
    assert before == path.read_bytes()


@pytest.mark.parametrize("command", [*ON_A_QUEUE, ("enqueue", "mail"), ("init",)], ids=lambda command: command[0])
def test_an_object_that_is_not_a_queue_is_a_one_line_error_and_stays_unchanged(path, command):
    path.write_text(f"this is no queue, {SECRET}")
    name, *more = command
    result = jqueue(name, path, *more)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert SECRET not in result.stderr
    assert f"this is no queue, {SECRET}" == path.read_text()
