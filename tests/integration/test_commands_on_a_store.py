"""The commands that act, on a real store: each does its work, and a lack of permission is one clear line."""

import asyncio
import json
import sys

import pytest

from jqueue import DirectQueue, connect
from tests.cli.commands import SECRET, run, text, values
from tests.object_stores import BUCKET, store_of

pytestmark = pytest.mark.wide

ACTING = [
    ("enqueue", "mail", SECRET),
    ("limit", "mail", "--running", "2"),
    ("configure", "--aging", "60"),
    ("schedule", "n", "--cron", "0 2 * * *", "--entrypoint", "x"),
    ("unschedule", "n"),
    ("run-now", "m1"),
    ("reschedule", "--all", "--delay", "60"),
    ("reprioritise", "--all", "--priority", "1"),
    ("redrive", "--all"),
    ("purge", "--yes"),
    ("cancel", "--all", "--yes"),
    ("requeue-stale", "--timeout", "5m"),
    ("pause", "mail"),
    ("resume", "mail"),
    ("edit", "--settings"),
]
"""Each command, with the arguments after its URL."""


@pytest.fixture
def store(request, monkeypatch):
    store = store_of(request, "seaweedfs")
    for name, value in {
        "AWS_ENDPOINT_URL": store.address,
        "AWS_ACCESS_KEY_ID": store.server.access_key,
        "AWS_SECRET_ACCESS_KEY": store.server.secret_key,
        "AWS_REGION": store.server.region,
    }.items():
        monkeypatch.setenv(name, value)
    return store


@pytest.fixture
def url(store, request):
    return f"s3://{BUCKET}/commands/{request.node.name.replace('[', '-').replace(']', '')}.json"


def jobs(url):
    async def look():
        async with connect(url, DirectQueue) as queue:
            return {job.id: job for job in (await queue.read_state()).jobs}

    return asyncio.run(look())


def fill(url):
    async def add():
        async with connect(url, DirectQueue) as queue:
            await queue.enqueue("mail", SECRET.encode(), job_id="dead")
            await queue.nack((await queue.dequeue())[0], dead=True, error="boom")
            for job_id in ("m1", "m2"):
                await queue.enqueue("mail", SECRET.encode(), delay=3600, job_id=job_id)

    asyncio.run(add())


def test_a_queue_is_made_filled_changed_and_emptied(url, monkeypatch, tmp_path):
    assert values("init", url)["created"]
    assert 2 == run("init", url).exit_code
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    large = text("enqueue", url, "mail", "--file", tmp_path / "large")
    text("enqueue", url, "mail", SECRET, "--job-id", "m1", "--delay", "1h")
    text("enqueue", url, "mail", SECRET, "--job-id", "m2", "--delay", "1h")
    assert 3_000_000 == jobs(url)[large].payload_object.size
    assert 2 == values("reprioritise", url, "--id", "m", "-p", "-3")["reprioritised"]
    assert "is ready" in text("run-now", url, "m1")
    assert 1 == values("limit", url, "mail", "--running", "1")["running"]
    assert 60 == values("configure", url, "--aging", "1m")["aging"]
    text("schedule", url, "n", "--cron", "0 2 * * *", "--entrypoint", "x")
    ran = values("run-now", url, "--schedule", "n")["id"]
    (tmp_path / "editor.sh").write_text('#!/bin/sh\nsed -i \'s/"max_attempts": null/"max_attempts": 4/\' $1\n')
    (tmp_path / "editor.sh").chmod(0o755)
    monkeypatch.setenv("EDITOR", str(tmp_path / "editor.sh"))
    assert ["max_attempts"] == values("edit", url, "m2")["changed"]
    found = jobs(url)
    assert {large, "m1", "m2", ran} == found.keys()
    assert (-3, 4, None) == (found["m2"].priority, found["m2"].max_attempts, found["m1"].run_at)
    assert 4 == values("cancel", url, "--all", "--yes")["cancelled"]
    assert {} == jobs(url)


@pytest.mark.parametrize("command", ACTING, ids=lambda command: command[0])
def test_each_command_works_on_the_store(url, monkeypatch, command):
    fill(url)
    text("schedule", url, "n", "--cron", "0 2 * * *", "--entrypoint", "x")
    monkeypatch.setenv("EDITOR", "true")
    name, *more = command
    result = run(name, url, *more, "--json")
    assert 0 == result.exit_code, result.output
    json.loads(result.stdout)


@pytest.mark.parametrize("command", [*ACTING, ("init",)], ids=lambda command: command[0])
def test_wrong_credentials_are_one_clear_line(url, monkeypatch, command):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    name, *more = command
    result = run(name, url, *more)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert "jqueue: " in result.stderr


@pytest.mark.parametrize("command", ACTING[1:], ids=lambda command: command[0])  # enqueue creates the queue
def test_a_missing_queue_is_one_clear_line_and_is_not_created(url, command):
    name, *more = command
    result = run(name, url, *more)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert "there is no queue at" in result.stderr
    assert 2 == run("stats", url).exit_code


async def test_two_operators_at_once_cancel_each_job_once(url):
    async with connect(url, DirectQueue) as queue:
        for number in range(100):
            await queue.enqueue("mail", job_id=f"{number:03}", deadline=60)
    command = [sys.executable, "-m", "jqueue", "cancel", url, "--all", "--yes", "--json"]
    processes = [
        await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = [await process.communicate() for process in processes]
    found = [json.loads(stdout) for stdout, _ in outputs]
    assert 100 == sum(each["cancelled"] for each in found)
    assert all(each["matched"] == each["cancelled"] + each.get("changed_meanwhile", 0) for each in found)
    async with connect(url, DirectQueue) as queue:
        assert () == (await queue.read_state()).jobs
