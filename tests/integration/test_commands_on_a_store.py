"""Commands on a real store: they do their work, two at once do it once, and a lack of permission is one clear line."""

import asyncio
import json
import sys

import pytest

from jqueue import DirectQueue, connect
from tests.cli.commands import SECRET, run, text, values
from tests.object_stores import BUCKET, store_of

pytestmark = pytest.mark.wide


@pytest.fixture
def url(request, monkeypatch):
    for name, value in store_of(request, "seaweedfs").environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/commands/{request.node.name}.json"


def test_a_queue_is_made_filled_changed_and_emptied(url, tmp_path):
    assert values("init", url)["created"]
    assert 2 == run("init", url).exit_code
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    text("enqueue", url, "mail", "--file", tmp_path / "large")
    text("enqueue", url, "mail", SECRET, "--job-id", "m1", "--delay", "1h")
    assert 1 == values("limit", url, "mail", "--running", "1")["running"]
    text("schedule", url, "n", "--cron", "0 2 * * *", "--entrypoint", "x")
    checks = {each["name"]: each["outcome"] for each in values("doctor", url)["checks"]}
    assert dict.fromkeys(checks, "passed") | {"racing_increments": checks["racing_increments"]} == checks
    assert {"listing", "conditional_read", "queue"} <= checks.keys()
    assert 2 == values("cancel", url, "--all", "--yes")["cancelled"]
    assert "jqueue_version" in run("metrics", url).stdout


@pytest.mark.parametrize("command", [("enqueue", "mail", SECRET), ("purge", "--all", "--yes"), ("doctor",), ("init",)])
def test_wrong_credentials_are_one_clear_line(url, monkeypatch, command):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    name, *more = command
    result = run(name, url, *more)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert "jqueue: " in result.stderr
    assert SECRET not in result.stderr


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
