"""Each command that looks: on a good queue with hostile text, on older formats, and on what is not a queue."""

import asyncio
import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.cli.raw_bytes import lines_of_bytes
from jqueue.domain.workers import WorkerRecord
from tests.cli.hostile import HOSTILE, SECRET, assert_harmless, fill

OBJECTS = {"dead", "show", "stats"}
"""The commands that print one JSON object; the others print one a line."""

LOOKING = {
    "dead": [],
    "ls": [],
    "show": ["dead"],
    "stats": [],
    "workers": [],
    "schedules": [],
    "history": [],
    "at": ["0s", "--list"],
}
"""The commands that look, each with the arguments after its URL."""


MORE = "  … 88 bytes more; --json has them all"


@pytest.fixture
def path(tmp_path):
    return fill(tmp_path / "queue.json")


def run(command, url, *arguments, width=80):
    given = [command, str(url), *map(str, [*LOOKING[command], *arguments])]
    return CliRunner(env={"COLUMNS": str(width)}).invoke(app, given, catch_exceptions=False)


def text(command, url, *arguments):
    result = run(command, url, *arguments)
    assert (0, "") == (result.exit_code, result.stderr)
    assert_harmless(result.stdout)
    return result.stdout


def values(command, url, *arguments):
    printed = text(command, url, *arguments, "--json")
    return [json.loads(printed)] if command in OBJECTS else [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize("command", LOOKING)
def test_no_text_of_a_queue_commands_the_terminal_or_forges_a_line(path, command):
    before = path.read_bytes()
    shown = text(command, path)
    assert r"\x1b[2J" in shown
    assert values(command, path)
    assert before == path.read_bytes()


@pytest.mark.parametrize("command", LOOKING)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"this is no queue, {SECRET}", "is not a queue"),
        ("", "the queue's object is empty"),
        ('{"format": 3, "jobs": {}}', "has format 3, and this version of jqueue reads only format 2"),
        ('{"format": 2, "version": 1, "queue": "q", "critical": ["tomorrow"], "jobs": {}}', "upgrade jqueue"),
        ('{"format": 2, "version": 1, "queue": "q", "jobs"', "seems to be cut off"),
    ],
)
def test_what_is_not_a_queue_of_ours_is_a_one_line_error(tmp_path, command, content, said):
    path = tmp_path / "queue.json"
    path.write_text(content)
    result = run(command, path)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert said in result.stderr
    assert SECRET not in result.stderr
    as_json = run(command, path, "--json")
    assert (2, "", ["error"]) == (as_json.exit_code, as_json.stderr, list(json.loads(as_json.stdout)))
    assert content == path.read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("command", LOOKING)
def test_a_file_that_may_not_be_read_is_a_one_line_error(path, command):
    path.chmod(0)
    result = run(command, path)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))


@pytest.mark.parametrize("command", LOOKING)
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("{}/missing.json", "there is no queue at"),
        ("{}/missing/queue.json", "does not exist; correct the path"),
        ("{}", "is a folder"),
        (f"s3://key:{SECRET}@bucket", "names a bucket, but no object in it"),
        ("memory://", "visible only to its own process"),
    ],
)
def test_a_url_without_a_queue_is_a_one_line_error(tmp_path, command, url, said):
    result = run(command, url.format(tmp_path))
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert said in result.stderr
    assert SECRET not in result.stderr
    assert [] == list(tmp_path.iterdir())


def test_show_tells_the_life_of_a_job(path):
    shown = text("show", path)
    assert "dead for" in shown
    assert "1, 1 failed; dead after 1 failure" in shown
    assert re.search(r"  enqueue\n  .* dequeue 1  by .*, waited .*\n  .* nack 1     dead: ValueError: x", shown)
    assert "\ntraceback, the innermost call last\n  | mail.py:17 in x" in shown
    [found] = values("show", path)
    assert found["traceback"].startswith("mail.py:17 in x")
    assert (f"dead-{HOSTILE}", "dead", 1, 7) == tuple(
        found[name] for name in ("id", "status", "attempts", "payload_bytes")
    )
    assert ["enqueue", "dequeue", "nack"] == [event["event"] for event in found["events"]]
    assert "payload" not in found


def test_only_attempts_that_failed_are_shown_as_failed(path):
    """A claim counts as a failure until it is acked or given back. That is not what users call a failure."""
    for job_id, attempts, failures in (("running", "1", 0), ("done", "1", 0), ("dead", "1, 1 failed; dead after", 1)):
        shown = CliRunner().invoke(app, ["show", str(path), job_id]).stdout
        assert re.search(rf"attempts +{attempts}(\n| 1 failure\n)", shown)
        as_json = CliRunner().invoke(app, ["show", str(path), job_id, "--json"]).stdout
        assert failures == json.loads(as_json)["failures"]


def test_show_takes_the_beginning_of_an_id_that_names_one_job(path):
    def show(job_id):
        result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["show", str(path), job_id])
        return result.exit_code, result.stdout, result.stderr

    assert "scheduled, ready in 59 min" in show("later")[1]
    missing = f"jqueue: there is no job with this id in {path}: it may have finished. `jqueue history URL ID` tells\n"
    assert (2, "", missing) == show(f"s3://{SECRET}")
    assert (2, "", "jqueue: the id of the job is empty\n") == show("")
    status, shown, said = show("l")
    assert (2, "") == (status, shown)
    assert said.startswith("jqueue: 2 jobs have ids that begin like this: give more of the id. They are later-x")
    assert_harmless(said)


def test_show_shows_the_payload_and_the_result_on_request_only(path):
    def show(job_id, *options):
        result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["show", str(path), job_id, "--payload", *options])
        assert (0, "") == (result.exit_code, result.stderr)
        return result.stdout

    assert show("dead").endswith(f"\npayload\n  | {SECRET}\n")
    assert "aHVudGVyMg==" == json.loads(show("dead", "--json"))["payload"]
    assert f'\nresult\n  | {{"a": "{SECRET}", "b": "x\\u001b[2J' in show("done")
    assert {"a": SECRET, "b": HOSTILE} == json.loads(show("done", "--json"))["result"]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", ["  (empty)"]),
        ('{\n\t"a": \u202e1\r\n}'.encode(), ["  | {", r'  |         "a": \u202e1', "  | }"]),
        (b"a\x1b[2Jb\xff", ["  | 0000  61 1b 5b 32 4a 62 ff                             a.[2Jb."]),
        (b"\x00" * 600, [*[f"  | {row:04x}  {' '.join(['00'] * 16)}  {'.' * 16}" for row in range(0, 512, 16)], MORE]),
        (b"x" * 70_000, ["  | " + "x" * 65536, "  … 4.4 KiB more; --json has them all"]),
        (b"x" * 65_535 + "é".encode(), ["  | " + "x" * 65535, "  … 1 byte more; --json has them all"]),
    ],
    ids=["empty", "text", "escape", "long", "long text", "cut character"],
)
def test_bytes_are_shown_as_text_or_as_numbers(content, lines):
    assert lines == list(lines_of_bytes(content))


def test_workers_and_other_holders_are_listed(path):
    [holder] = values("workers", path)
    assert (f"holder-{HOSTILE}", False, 1) == (holder["holder"], holder["worker"], holder["jobs"])


def test_a_worker_is_listed_with_its_slots_and_entrypoints(path):
    def describe(at):
        return WorkerRecord(
            name="mailer", host="web-1", pid=7, started=at - 60, at=at, slots=4, entrypoints=("mail",), version="2.0.0"
        )

    async def work():
        queue = DirectQueue(LocalFileSystemStorage(path))
        queue.attend("a-run", describe)
        await queue.enqueue("mail", priority=-9)
        await queue.dequeue("mail", holder="mailer@web-1:7")

    asyncio.run(work())
    worker, other = values("workers", path)
    assert ("mailer@web-1:7", True, 1, 4, ["mail"]) == tuple(
        worker[name] for name in ("holder", "worker", "jobs", "slots", "entrypoints")
    )
    assert worker["runs_seconds"] >= 60
    assert not other["worker"]
    shown = " ".join(text("workers", path).split())
    assert re.search(r"mailer@web-1:7 1 of 4 \d+ s \d+ s ago \d+ s 2.0.0 mail", shown)
    assert (1, 0) == tuple(values("stats", path)[0][name] for name in ("workers", "workers_lost"))


def test_a_worker_that_was_not_seen_for_two_minutes_is_shown_as_lost(tmp_path):
    path = tmp_path / "queue.json"

    async def work():
        queue = DirectQueue(LocalFileSystemStorage(path))
        queue.attend("killed", lambda at: WorkerRecord(name="mailer", host="web-1", pid=7, at=at - 121, slots=4))
        await queue.enqueue("mail")

    asyncio.run(work())
    assert [True] == [worker["lost"] for worker in values("workers", path)]
    assert re.search(r"mailer@web-1:7 +0 of 4 +lost, 2 min ago", text("workers", path))
    assert (0, 1) == tuple(values("stats", path)[0][name] for name in ("workers", "workers_lost"))
    assert "\n0 live workers, 1 lost\n" in text("stats", path)


def test_stats_say_why_jobs_wait(path):
    async def work():
        queue = DirectQueue(LocalFileSystemStorage(path))
        await queue.enqueue("mail")
        await queue.pause("mail")

    asyncio.run(work())
    assert "mail: 1 ready job waits: paused\n" in text("stats", path)
    assert "paused" == values("stats", path)[0]["entrypoints"]["mail"]["why_waiting"]


def test_stats_have_totals_rates_and_times(path):
    [found] = values("stats", path)
    assert (6, 3, 1, 1) == tuple(found["totals"][name] for name in ("enqueued", "claimed", "done", "failed"))
    assert found["rates"]["last_hour"]["enqueued"] == pytest.approx(6 / 3600)
    assert 3 == found["wait_seconds"]["count"]
    assert found["run_seconds"]["median"] <= found["run_seconds"]["p95"]
    assert found["entrypoints"][HOSTILE]["totals"] == found["totals"]
    assert found["oldest_claim_seconds"] > 0
    shown = " ".join(text("stats", path).split())
    assert "last hour 6 3 1 1" in shown
    assert "1 job in progress with 1 holder" in shown


def test_schedules_are_listed_with_their_next_times(path):
    [found] = values("schedules", path)
    assert (f"nightly-{HOSTILE}", "0 3 * * *", "UTC", 7) == tuple(
        found[name] for name in ("name", "cron", "timezone", "payload_bytes")
    )
    assert 0 < found["seconds"] <= 86400


@pytest.mark.wide
@pytest.mark.parametrize("command", ["history", "export"])
def test_a_closed_pipe_ends_quietly(path, command):
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "jqueue", command, str(path)], stdout=write, stderr=subprocess.PIPE, timeout=60
        )
    finally:
        os.close(write)
    assert b"" == result.stderr


def test_an_output_that_is_not_utf_8_gets_escapes(tmp_path):
    path = tmp_path / "queue.json"

    async def add():
        await DirectQueue(LocalFileSystemStorage(path)).enqueue("漢字")

    asyncio.run(add())
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "jqueue", "ls", str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (0, "") == (result.returncode, result.stderr)
    assert r"\u6f22\u5b57" in result.stdout
