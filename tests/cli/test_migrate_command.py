"""`jqueue migrate SOURCE DEST`: its output as text and as JSON, and its exit code."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, connect_queue
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.domain.operations import Enqueue
from tests.tiny_segments import spilled, tiny_queue

pytestmark = pytest.mark.wide

SECRET = "hunter2"


@pytest.fixture
def source(tmp_path):
    return f"{tmp_path}/source.json"


@pytest.fixture
def dest(tmp_path):
    return f"vsqs://{tmp_path}/dest"


def on(url, work):
    async def run():
        async with connect_queue(url, DirectQueue) as queue:
            return await work(queue)

    return asyncio.run(run())


def filled(url):
    """Fill a queue with two plain jobs, two jobs with a priority, and one job in progress."""

    async def fill(queue):
        await queue.enqueue("work", SECRET.encode(), job_id="held")
        await queue.dequeue()
        for name in ("one", "two"):
            await queue.enqueue("work", SECRET.encode(), job_id=name, headers={"token": SECRET})
        for name in ("urgent", "more urgent"):
            await queue.enqueue("work", SECRET.encode(), -1, job_id=name)

    on(url, fill)


def ids(url):
    async def look(queue):
        return sorted(job.id for job in (await queue.read_state()).jobs)

    return on(url, look)


def jqueue(*arguments, status=0):
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["migrate", *arguments], catch_exceptions=False)
    assert status == result.exit_code, result.output
    assert SECRET not in result.output
    return result


def values(*arguments, status=0):
    return json.loads(jqueue(*arguments, "--json", status=status).stdout)


def text(*arguments, status=0):
    shown = jqueue(*arguments, status=status).stdout
    assert max(map(len, shown.splitlines()[1:])) <= 80
    return " ".join(shown.split())


def test_a_missing_destination_folder_is_created_only_with_create(source, tmp_path):
    filled(source)
    dest = tmp_path / "new" / "dest.json"
    assert f"the folder '{dest.parent}' does not exist" in jqueue(source, str(dest), "--lossy", status=2).stderr
    assert not dest.parent.exists()
    jqueue(source, str(dest), "--lossy", "--create", status=1)
    assert dest.exists()


def test_a_dry_run_describes_the_move_and_writes_nothing(source, dest, tmp_path):
    filled(source)
    before = (tmp_path / "source.json").read_bytes()
    shown = text(source, dest, "--dry-run", status=1)
    assert "2 jobs would be moved" in shown
    assert "the priority would be lost 2 urgent, more urgent" in shown
    assert "1 job is in progress and not moved: run the command again later" in shown
    found = values(source, dest, "--dry-run", status=1)
    assert (True, False, 2, 1) == tuple(found[name] for name in ("dry_run", "complete", "moved", "in_progress"))
    assert [{"what": "the priority would be lost", "jobs": 2, "ids": ["urgent", "more urgent"]}] == found["refused"]
    assert before == (tmp_path / "source.json").read_bytes()
    assert not (tmp_path / "dest").exists()


def test_jobs_are_moved_unless_they_would_lose_a_feature(source, dest):
    filled(source)
    shown = text(source, dest, status=1)
    assert "2 jobs moved" in shown
    assert "add --lossy to move the jobs that would lose something" in shown
    assert (["held", "more urgent", "urgent"], ["one", "two"]) == (ids(source), ids(dest))
    shown = text(source, dest, "--lossy", status=1)
    assert "lost in the move jobs such as the priority 2" in shown.replace("─", "").replace("  ", " ")
    assert (["held"], ["more urgent", "one", "two", "urgent"]) == (ids(source), ids(dest))


def test_a_complete_move_exits_with_0(source, dest, tmp_path):
    filled(source)
    on(source, lambda queue: queue.requeue_stale(0))
    found = values(source, f"{tmp_path}/other.json")
    assert (True, 5, [], 0) == tuple(found[name] for name in ("complete", "moved", "refused", "in_progress"))
    assert (source, f"{tmp_path}/other.json") == (found["source"], found["dest"])
    assert 0 == values(source, f"{tmp_path}/other.json")["moved"]
    assert "0 jobs moved" in text(source, f"{tmp_path}/other.json")


def test_limits_and_cron_entries_are_listed(source, dest, tmp_path):
    async def rule(queue):
        await queue.pause("mail")
        await queue.schedule("night", "0 3 * * *", "work")

    on(source, rule)
    assert "not copied, as DEST has its own or cannot store them: limits of mail, cron entry night" in text(
        source, dest
    )
    other = f"{tmp_path}/other.json"
    assert "would be copied to DEST: limits of mail, cron entry night" in text(source, other, "--dry-run")
    assert "copied to DEST: limits of mail, cron entry night" in text(source, other)


@pytest.mark.parametrize(
    "spelling", ["{0}/source.json", "file://{0}/source.json", "{0}/x/../source.json", "{0}/linked"]
)
def test_one_queue_is_not_moved_to_itself(source, tmp_path, spelling):
    filled(source)
    (tmp_path / "x").mkdir()
    os.symlink(source, tmp_path / "linked")
    result = jqueue(source, spelling.format(tmp_path), status=2)
    assert "jqueue: SOURCE and DEST are the same queue: there is nothing to move\n" == result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{0}/nothing.json", "{0}/dest.json"), "there is no queue at {0}/nothing.json"),
        (("vsqs://{0}/nothing", "{0}/dest.json"), "there is no queue at {0}/nothing"),
        (("memory://here", "{0}/dest.json"), "an in-memory queue is visible only to its own process"),
        (("{0}/source.json", "memory://"), "an in-memory queue is visible only to its own process"),
        (("s3://key:hunter2@", "{0}/dest.json"), "s3:// URL"),
        (("{0}/source.json", "redis://user:hunter2@host/0"), "the scheme of this URL is unknown"),
    ],
)
def test_an_impossible_move_gives_a_one_line_error(tmp_path, source, arguments, said):
    filled(source)
    arguments = [argument.format(tmp_path) for argument in arguments]
    result = jqueue(*arguments, status=2)
    assert said.format(tmp_path) in result.stderr
    assert 1 == len(result.stderr.splitlines())
    assert said.format(tmp_path) in values(*arguments, status=2)["error"]
    assert not (tmp_path / "dest.json").exists()
    assert not (tmp_path / "nothing").exists()


def test_a_destination_folder_that_is_a_file_gives_a_one_line_error(source, tmp_path):
    filled(source)
    (tmp_path / "dest").write_text("mine")
    result = jqueue(source, f"vsqs://{tmp_path}/dest", status=2)
    assert re.match(r"jqueue: .*\n$", result.stderr)
    assert "mine" == (tmp_path / "dest").read_text()
    assert ["held", "more urgent", "one", "two", "urgent"] == ids(source)


def test_ctrl_c_ends_the_move_after_the_current_batch(source, tmp_path):
    """The process sends itself SIGINT as soon as it listens to signals."""
    filled(source)
    code = (
        "import os, signal\n"
        "from jqueue.cli import migrate\n"
        "def stop(event, listen=migrate._stop_on_signals):\n"
        "    listen(event)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "migrate._stop_on_signals = stop\n"
        "from jqueue.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "migrate", source, f"{tmp_path}/dest.json", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (1, "") == (result.returncode, result.stderr), signal.SIGINT
    assert json.loads(result.stdout)["stopped"]
    on(source, lambda queue: queue.requeue_stale(0))
    assert values(source, f"{tmp_path}/dest.json")["complete"]


def test_a_damaged_segment_is_named_with_the_number_of_the_jobs_that_moved(source, tmp_path):
    async def fill():
        async with tiny_queue(LocalFileSystemStorage(source)) as queue:
            for name in ("work", "lost"):
                await queue.enqueue_many([Enqueue(name, b"") for _ in range(8)])
                await spilled(queue)
            return [name for name, each in (await queue.read_state()).segments.items() if each.entrypoint == "lost"]

    [name] = asyncio.run(fill())
    os.unlink(f"{source}.segments/{name}")
    dest = f"{tmp_path}/dest.json"
    assert f"8 jobs would be moved not moved: jobs of segment .segments/{name} " in text(
        source, dest, "--dry-run", status=1
    )
    found = values(source, dest, status=1)
    assert (8, False, [f".segments/{name}"]) == (found["moved"], found["complete"], [*found["damaged"]])
    assert f"0 jobs moved not moved: jobs of segment .segments/{name} that cannot be read" in text(
        source, dest, status=1
    )
    assert 8 == len(ids(dest))
