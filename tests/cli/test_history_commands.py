"""`jqueue history` and `at`: what happened, and how the queue was."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli import values
from jqueue.cli.app import app
from tests.cli.hostile import HOSTILE, assert_harmless, fill


@pytest.fixture
def path(tmp_path):
    return fill(tmp_path / "queue.json")


def run(*arguments):
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, [*map(str, arguments)], catch_exceptions=False)


def text(*arguments):
    result = run(*arguments)
    assert (0, "") == (result.exit_code, result.stderr)
    assert_harmless(result.stdout)
    return result.stdout


def events(path, *arguments):
    return [json.loads(line) for line in text("history", path, *arguments, "--json").splitlines()]


def on(path, work):
    async def go():
        async with DirectQueue(LocalFileSystemStorage(path)) as queue:
            return await work(queue)

    return asyncio.run(go())


def test_events_are_listed_the_newest_first(path):
    found = events(path)
    assert ["enqueue", "ack", "nack", *["dequeue"] * 3, *["enqueue"] * 5, "start"] == [each["event"] for each in found]
    assert sorted(found, key=lambda each: -each["number"]) == found
    nack = found[2]
    assert (f"dead-{HOSTILE}", "in_progress", "dead", 1) == tuple(
        nack[name] for name in ("id", "before", "after", "attempt")
    )
    assert nack["error"].startswith("ValueError: x\x1b")
    assert "payload" not in nack
    shown = text("history", path).splitlines()
    assert 1 + len(found) == len(shown)
    assert "dead: ValueError: x" in shown[3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--limit", "2"], 2),
        (["--event", "dequeue"], 3),
        (["--event", "nack,ack", "--event", "start"], 3),
        (["--entrypoint", HOSTILE], 11),
        (["--entrypoint", "absent"], 0),
        (["--since", "1d"], 12),
        (["--since", "1d ago", "--until", "1h"], 0),
        (["--until", "2020-01-01"], 0),
        (["dead-"], 3),
        (["l"], 2),
        (["absent"], 0),
    ],
)
def test_events_are_filtered(path, options, expected):
    assert expected == len(events(path, *options))
    shown = text("history", path, *options).splitlines()
    assert (expected + 1 if expected else 1) == len(shown)
    assert expected or ["no events"] == shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--event", "hunter2"], "jqueue: --event takes ack, arrive, cancel, "),
        (["--since", "hunter2"], "jqueue: --since takes a time that is over: "),
        (["--since", "2999-01-01"], "jqueue: --since takes a time that is over: "),
        (["--until", "99999999w"], "jqueue: --until takes a time that is over: "),
    ],
)
def test_a_wrong_option_is_a_one_line_error(path, options, said):
    result = run("history", path, *options)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert result.stderr.startswith(said)
    assert "hunter2" not in result.stderr


def test_a_queue_without_a_history_says_how_to_switch_it_on(tmp_path):
    path = tmp_path / "queue.json"
    on(path, lambda queue: queue.enqueue("mail"))
    off = "this queue keeps no history: `jqueue configure URL --history 30d` switches it on, from then on"
    result = run("history", path)
    assert (2, "", f"jqueue: {off}\n") == (result.exit_code, result.stdout, result.stderr)
    assert {"error": off} == json.loads(run("history", path, "--json").stdout)
    on(path, lambda queue: queue.configure(history=timedelta(days=1)))
    on(path, lambda queue: queue.enqueue("mail"))
    on(path, lambda queue: queue.configure(history=None))
    result = run("history", path)
    assert (0, 3) == (result.exit_code, result.stdout.count("\n"))
    assert "jqueue: the history is switched off, and these are its events until then\n" == result.stderr
    assert 2 == run("at", path, "0s").exit_code


def test_missing_events_are_told_after_the_others(path, monkeypatch):
    async def move_events(queue):
        await queue.enqueue("mail")
        await queue._engine.finish(30)
        await queue.enqueue("mail")  # its commit drops the events that are in an object

    monkeypatch.setattr("jqueue.core.blob.history_mover.is_due", lambda *_: True)
    on(path, move_events)
    for each in path.with_name("queue.json.history").rglob("*"):
        if each.is_file():
            each.write_bytes(b"damaged")
    result = run("history", path)
    assert 1 == result.exit_code
    assert "mail" in result.stdout
    assert result.stderr.startswith("jqueue: the history is not complete")
    assert 1 == result.stderr.count("\n")
    shown = run("show", path, "dead")
    assert 0 == shown.exit_code
    assert "the history is not complete" in shown.stdout


def test_at_shows_the_queue_as_it_was(path):
    before = datetime.now(UTC)
    on(path, lambda queue: queue.purge())
    now = json.loads(text("at", path, "0s", "--json"))
    assert {HOSTILE: {"queued": 3, "in_progress": 1, "dead": 0, "completed": 1}} == now["entrypoints"]
    then = json.loads(text("at", path, before.isoformat(), "--json"))
    assert {HOSTILE: {"queued": 3, "in_progress": 1, "dead": 1, "completed": 1}} == then["entrypoints"]
    assert (6, before) == (then["jobs"], datetime.fromisoformat(then["at"]))
    assert "6 jobs" in text("at", path, before.isoformat())
    [dead] = text("at", path, before.isoformat(), "--list", "--status", "dead", "--json").splitlines()
    assert {"id": f"dead-{HOSTILE}", "entrypoint": HOSTILE, "status": "dead", "attempt": 1} == json.loads(dead)
    assert "0 jobs\n" == text("at", path, "0s", "--id", "absent").partition(": ")[2]


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ("hunter2", "jqueue: TIME takes a time that is over: "),
        ("2999-01-01", "jqueue: TIME takes a time that is over: "),
        ("2w", "jqueue: the history of the queue begins at "),
    ],
)
def test_at_refuses_times_that_it_cannot_show(path, time, said):
    result = run("at", path, time)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert result.stderr.startswith(said)


def test_a_time_is_given_as_such_or_by_what_has_passed_since():
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert now - timedelta(hours=2) == values.past("TIME", "2h ago", now) == values.past("TIME", " 2h", now)
    assert datetime(2025, 12, 31, 23, tzinfo=UTC) == values.past("TIME", "2026-01-01T00:00+01:00", now)
    assert datetime(2026, 1, 1, tzinfo=UTC) == values.past("TIME", "2026-01-01", now)
