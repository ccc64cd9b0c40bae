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


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_command_unsupported_by_a_format_gives_a_one_line_error(url, command):
    prepare(url)
    result = run(command, url, "mail")
    assert 2 == result.exit_code
    assert "the format of this queue has no limits, so nothing was done" in result.stderr
    assert 1 == len(result.stderr.splitlines())


@pytest.mark.parametrize("arguments", [("doctor",)])
def test_a_command_that_needs_an_object_store_refuses_a_format(url, arguments):
    result = run(*arguments, url)
    assert 2 == result.exit_code
    assert "a queue of an older program" in result.stdout + result.stderr
