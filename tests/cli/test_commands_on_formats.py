"""The commands on a queue in the format of an older one: they show and change it, or say what it cannot do."""

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
    """A queue with a job that waits, and one that died."""

    async def fill():
        async with jqueue.connect(url) as queue:
            dead = await queue.enqueue("mail", b"secret", max_attempts=1)
            [claimed] = await queue.dequeue("mail")
            await queue.nack(claimed, error="no such address")
            return dead.id, (await queue.enqueue("mail", b"secret")).id

    return asyncio.run(fill())


def test_one_that_is_not_there_is_said_to_be_missing(url):
    result = run("stats", url)
    assert 2 == result.exit_code
    assert "there is no queue at" in result.stderr


def test_an_empty_one_is_there(url, tmp_path):
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


def test_dead_jobs_are_shown_and_queued_again(url):
    dead, _ = prepare(url)
    assert "no such address" in text("dead", url)
    assert "1" in text("redrive", url, dead)
    assert "mail 2" in text("stats", url)


def test_a_job_that_waits_is_cancelled(url):
    _, waiting = prepare(url)
    text("cancel", url, waiting)
    assert 0 == json.loads(text("stats", url, "--json"))["ready"]


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_what_its_format_cannot_keep_is_one_line(url, command):
    prepare(url)
    result = run(command, url, "mail")
    assert 2 == result.exit_code
    assert "this queue has no limits: its format has no place for it" in result.stderr
    assert 1 == len(result.stderr.splitlines())


@pytest.mark.parametrize("arguments", [("doctor",)])
def test_what_needs_an_object_of_a_store_says_so(url, arguments):
    result = run(*arguments, url)
    assert 2 == result.exit_code
    assert "a queue in a format of its own" in result.stdout + result.stderr
