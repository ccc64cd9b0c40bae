"""Commands on queues in the formats of older programs: they work, or fail with an error that names what is missing."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

import jqueue
from jqueue.cli.app import app


@pytest.fixture(
    params=[
        "vsqs://{}/queue?fsync=false",
        "dirq://{}/queue?fsync=false&kind=simple",
        "dirq://{}/queue?fsync=false&kind=queue",
        "textq://{}/queue.tq?fsync=false",
    ]
)
def url(request, tmp_path):
    return request.param.format(tmp_path)


def run(command, *arguments):
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, [command, *arguments], catch_exceptions=False)


def text(*arguments):
    result = run(*arguments)
    assert (0, "") == (result.exit_code, result.stderr)
    return " ".join(result.stdout.split())


def prepare(url):
    """Fill a queue with a dead job and a waiting job, and return their ids."""

    async def fill():
        async with jqueue.connect(url) as queue:
            dead = await queue.enqueue("mail", b"secret", max_attempts=1)
            [claimed] = await queue.dequeue("mail")
            await queue.nack(claimed, error="no such address")
            return dead.id, (await queue.enqueue("mail", b"secret")).id

    return asyncio.run(fill())


def test_a_missing_queue_of_a_format_is_an_error(url):
    result = run("stats", url)
    assert 2 == result.exit_code
    assert "there is no queue at" in result.stderr


def test_an_empty_queue_of_a_format_exists(url, tmp_path):
    prepare(url)
    text("purge", url, "--yes")
    assert "mail 1" in text("stats", url)


def test_stats_shows_no_version_and_no_limit(url):
    prepare(url)
    shown = text("stats", url)
    assert "12 bytes of payloads" in shown
    assert ", version" not in shown
    assert "secret" not in shown
    found = json.loads(text("stats", url, "--json"))
    assert (1, 1, None, None) == (found["ready"], found["dead"], found["version"], found["size_limit"])


def test_dead_jobs_are_shown_and_redriven(url):
    dead, _ = prepare(url)
    assert "no such address" in text("dead", url)
    assert "the job (mail) is queued again" == text("redrive", url, dead)
    assert "mail 2" in text("stats", url)


def test_a_waiting_job_is_cancelled(url):
    _, waiting = prepare(url)
    text("cancel", url, waiting)
    assert 0 == json.loads(text("stats", url, "--json"))["ready"]


def test_jobs_are_chosen_by_filters(url):
    prepare(url)
    found = json.loads(text("cancel", url, "--entrypoint", "mail", "--yes", "--json"))
    assert (1, 1) == (found["matched"], found["cancelled"])
    assert 1 == json.loads(text("redrive", url, "--error", "address", "--json"))["redriven"]
    assert "1 job was cancelled" == text("cancel", url, "--all", "--yes")
    assert "no job was purged: none matches" == text("purge", url, "--yes")


def test_dead_jobs_are_purged_by_id_and_by_filters(url):
    dead, _ = prepare(url)
    assert "1 job would be purged" == text("purge", url, "--entrypoint", "mail", "--dry-run")
    assert "the job (mail) was removed" == text("purge", url, dead)
    assert 0 == json.loads(text("stats", url, "--json"))["dead"]


def test_a_job_is_enqueued_with_the_options_that_the_format_has(url, tmp_path):
    first = run("enqueue", url, "mail", "secret")
    assert 0 == first.exit_code
    assert "there was no queue at" in first.stderr
    (tmp_path / "payload").write_bytes(b"secret" * 1000)
    text("enqueue", url, "mail", "--file", str(tmp_path / "payload"), "--header", "a=b")
    assert "mail 2" in text("stats", url)


UNSUPPORTED = [
    (("pause", "mail"), "limits"),
    (("resume", "mail"), "limits"),
    (("limit", "mail"), "limits"),
    (("limit", "mail", "--running", "2"), "limits"),
    (("configure", "--aging", "60"), "limits"),
    (("configure", "--dead-retention", "60"), "retention"),
    (("schedule", "n", "--cron", "0 2 * * *", "--entrypoint", "x"), "schedules"),
    (("unschedule", "n"), "schedules"),
    (("run-now", "--schedule", "n"), "schedules"),
    (("reschedule", "--all", "--delay", "60"), "reschedule"),
    (("reprioritise", "--all", "--priority", "1"), "reschedule"),
    (("edit", "some-id"), "reschedule"),
    (("edit", "--settings"), "limits"),
    (("edit", "--limits", "mail"), "limits"),
    (("edit", "--schedule", "n"), "schedules"),
    (("cancel", "--all", "--running", "--yes"), "cancel_running"),
    (("enqueue", "mail", "--unique-key", "k"), "unique_keys"),
    (("enqueue", "mail", "--keep-result", "60"), "results"),
]
"""Each command with the arguments after its URL, and the missing capability that its error names."""


@pytest.mark.parametrize(("command", "lacking"), UNSUPPORTED, ids=lambda value: " ".join(value))
def test_a_command_unsupported_by_a_format_gives_a_one_line_error(url, command, lacking):
    prepare(url)
    name, *more = command
    result = run(name, url, *more)
    assert (2, "") == (result.exit_code, result.stdout)
    assert "the format of this queue has no " in result.stderr
    assert f"no {lacking}" in result.stderr
    assert 1 == len(result.stderr.splitlines())


def test_an_empty_queue_of_a_format_is_created_by_its_first_job(url):
    result = run("init", url)
    assert (2, 1) == (result.exit_code, len(result.stderr.splitlines()))
    assert "is created by its first job" in result.stderr


@pytest.mark.parametrize("arguments", [("doctor",)])
def test_a_command_that_needs_an_object_store_refuses_a_format(url, arguments):
    result = run(*arguments, url)
    assert 2 == result.exit_code
    assert "a queue of an older program" in result.stdout + result.stderr
