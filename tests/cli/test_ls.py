"""`jqueue ls` lists jobs: all of them or chosen ones, in an order, for people, for pipes and as JSON."""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.cli.columns import Cell, Column, Terminal, cut, lines_of
from jqueue.cli.ls import Order, find_jobs, listing, short_names
from jqueue.core.engine.lazy_state import LazyState
from jqueue.core.engine.view import QueueView
from jqueue.domain.first_items import SPARE
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.domain.selection import Selection
from jqueue.domain.short_ids import ShortIds
from jqueue.domain.stats import Census
from tests.cli.hostile import HOSTILE, assert_harmless, fill


@pytest.fixture
def path(tmp_path):
    return fill(tmp_path / "queue.json")


def ls(path, *arguments):
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["ls", str(path), *arguments], catch_exceptions=False)
    assert (0, "") == (result.exit_code, result.stderr)
    assert_harmless(result.stdout)
    return result.stdout


def listed(path, *arguments):
    return [json.loads(line) for line in ls(path, *arguments, "--json").splitlines()]


def shown_at(path, terminal):
    async def look():
        queue = DirectQueue(LocalFileSystemStorage(path))
        view = await queue.view()
        found = await find_jobs(view, datetime.now(UTC), Selection(), None, None, reverse=False)
        return list(listing(found, await short_names(found, terminal), terminal, every=True))

    return asyncio.run(look())


def test_jobs_are_listed_as_json_with_everything_but_their_payloads(path):
    jobs = listed(path)
    assert ["running", "ready", "last", "later", "dead", "done"] == [job["id"].partition("-")[0] for job in jobs]
    assert ["in_progress", "ready", "ready", "scheduled", "dead", "completed"] == [job["status"] for job in jobs]
    running, dead = jobs[0], jobs[4]
    assert f"holder-{HOSTILE}" == running["holder"]
    assert (HOSTILE, 1, "TOGETHER", 7) == tuple(
        running[name] for name in ("entrypoint", "attempts", "concurrency_key", "payload_bytes")
    )
    assert (f"ValueError: {HOSTILE}", 1, None) == tuple(dead[name] for name in ("error", "max_attempts", "holder"))
    assert datetime.fromisoformat(dead["since"]) <= datetime.now(UTC)
    assert jobs[3]["seconds"] < 0 < jobs[0]["seconds"]


def test_a_pipe_gets_one_line_for_each_job_with_nothing_cut(path):
    titles, *lines = ls(path).splitlines()
    assert ["id", "entrypoint", "status", "for", "attempts", "holder", "or", "error"] == titles.split()
    assert 6 == len(lines)
    assert all(r"\x1b[2J\x1b]0;pwn\x07" in line for line in lines)
    assert "ValueError: x" in lines[4]
    assert max(map(len, lines)) > 140


@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize("width", [80, 140])
def test_no_line_is_wider_than_the_terminal_if_the_ids_fit(tmp_path, width, colours):
    path = tmp_path / "queue.json"

    async def add():
        queue = DirectQueue(LocalFileSystemStorage(path))
        await queue.enqueue("an_entrypoint_with_a_long_name_" * 3, b"")
        await queue.enqueue("漢字" * 30, b"", max_attempts=1)
        for job in await queue.dequeue(batch_size=2):
            await queue.nack(job, error="the server said 451 " * 20)

    asyncio.run(add())
    lines = shown_at(path, Terminal(width, colours))
    assert ("\x1b[" in "".join(lines)) is colours
    assert_harmless("\n".join(lines), colours=colours)
    if not colours:
        from rich.cells import cell_len

        assert width == max(cell_len(line) for line in lines)
    assert 2 == sum("…" in line for line in lines)


def test_a_narrow_terminal_shows_the_beginnings_that_tell_ids_apart(tmp_path):
    path = tmp_path / "queue.json"

    async def add():
        queue = DirectQueue(LocalFileSystemStorage(path))
        for job_id in ("abcdefgh-1", "abcdefgh-2", "zzzzzzzzzzzz"):
            await queue.enqueue("mail", job_id=job_id)

    asyncio.run(add())
    assert {"abcdefgh-1", "abcdefgh-2", "zzzzzzzz"} == {line.split()[0] for line in shown_at(path, Terminal(80))[1:4]}
    assert "zzzzzzzzzzzz" in "".join(shown_at(path, Terminal(140)))
    assert "3 jobs" in shown_at(path, Terminal(80))[-1]


def test_short_ids_are_unique():
    ids = ["a", "ab", "job-0001", "job-00011", "job-00012", "x" * 40]
    names = ShortIds(ids)
    for job_id in ids:
        names.meet(job_id)
    assert ["a", "ab", "job-0001", "job-00011", "job-00012", "x" * 8] == list(names.found().values())


def test_short_ids_of_some_jobs_are_told_apart_from_those_of_all_others():
    draw = random.Random(7)
    ids = sorted({"".join(draw.choices("ab", k=draw.randint(1, 14))) for _ in range(400)})
    shown = draw.sample(ids, 40)
    names = ShortIds(shown)
    for job_id in ids:
        names.meet(job_id)
    for job_id, name in names.found().items():
        others = [other for other in ids if other.startswith(name) and other != job_id]
        assert not others or (name == job_id and len(name) <= len(min(others, key=len))), (job_id, name)
        assert len(name) <= 8 or any(other.startswith(name[:-1]) for other in ids if other != job_id)
    assert sorted(shown) == list(names.found())


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("age", "running"),
        ("attempts", "running"),
        ("created", "ready"),
        ("due", "ready"),
        ("id", "dead"),
        ("priority", "running"),
        ("run-time", "running"),
        ("size", "ready"),
        ("entrypoint", "ready"),
    ],
)
def test_jobs_are_sorted(path, order, first):
    in_order = [job["id"] for job in listed(path, "--sort", order)]
    assert order in {str(each) for each in Order}
    assert 6 == len(in_order)
    if order not in ("age", "attempts"):
        assert first == in_order[0].partition("-")[0]
    assert in_order[:2] == [job["id"] for job in listed(path, "--sort", order, "--limit", "2")]
    assert set(in_order) == {job["id"] for job in listed(path, "--sort", order, "--reverse")}


def test_a_list_by_size_shows_the_sizes(path):
    titles, largest, *_ = ls(path, "--sort", "size").splitlines()
    assert "size" in titles.split()
    assert re.search(r"\d+ bytes", largest)
    assert "size" not in ls(path, "--sort", "id").splitlines()[0].split()


def test_an_empty_list_says_so(path, tmp_path):
    assert "no job matches\n" == ls(path, "--entrypoint", "absent")
    assert [] == listed(path, "--entrypoint", "absent")
    empty = tmp_path / "empty.json"

    async def make():
        queue = DirectQueue(LocalFileSystemStorage(empty))
        await queue.cancel((await queue.enqueue("mail")).id)

    asyncio.run(make())
    assert "no jobs\n" == ls(empty)


def test_rows_after_the_sample_may_be_longer_and_texts_are_cut_at_their_cells():
    rows = ([Cell("a" * (number % 3)), Cell("b" * 50)] for number in range(5))
    lines = list(lines_of([Column("first", right=True), Column("second", cut=True)], rows, Terminal(30)))
    assert {"     ", "    a", "   aa"} == {line[:5] for line in lines[1:]}
    assert all(30 == len(line) for line in lines[1:])
    assert ["漢…", "漢字", "", "…"] == [cut("漢字", 3), cut("漢字", 4), cut("", 3), cut("abc", 1)]


def test_a_closed_pipe_ends_quietly(path):
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "jqueue", "ls", str(path)], stdout=write, stderr=subprocess.PIPE, timeout=60
        )
    finally:
        os.close(write)
    assert b"" == result.stderr


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("order", [None, *Order])
def test_the_first_jobs_of_a_long_list_are_those_of_the_whole_list(order, reverse):
    now = datetime(2026, 11, 23, tzinfo=UTC)
    draw = random.Random(3)
    entries = {}
    for number in range(2 * SPARE + 50):
        created = now - timedelta(seconds=draw.randrange(900))
        job = Job(id=f"{draw.randrange(1 << 40):x}", entrypoint=draw.choice("abc"), payload=b"", created_at=created)
        entries[job.id] = job.evolve(sequence=number + 1, priority=draw.randrange(3), attempt=draw.randrange(3))
    view = QueueView(LazyState(QueueState(), (), entries), Limits(), 0, 0)

    async def look():
        whole = await find_jobs(view, now, Selection(), order, None, reverse=reverse)
        first = await find_jobs(view, now, Selection(), order, 7, reverse=reverse)
        assert [job.id for job in whole.jobs[:7]] == [job.id for job in first.jobs]
        assert (len(entries), 0, len(entries) - 7) == (len(whole.jobs), whole.more, first.more)

    asyncio.run(look())


def test_a_view_counts_jobs_as_the_queue_does(path):
    async def look():
        queue = DirectQueue(LocalFileSystemStorage(path))
        for number in range(20):
            await queue.enqueue(f"entrypoint-{number % 3}", priority=number % 2)
        now = datetime.now(UTC)
        census = Census(now)
        view = await queue.view()
        for job in (await queue.read_state()).jobs:
            census.count(job)
        counted = census.figures(view.header, (), view.size, 0, queue.options.limits)
        seen = await view.stats(now)
        assert (counted.depth, counted.entrypoints, counted.holders) == (seen.depth, seen.entrypoints, seen.holders)
        dead = [job.id async for job in view.jobs(JobStatus.DEAD)]
        assert dead == [job.id async for job in view.jobs(prefix="dead")]

    asyncio.run(look())


def test_a_view_is_returned_again_if_nothing_changed(path):
    async def look():
        queue = DirectQueue(LocalFileSystemStorage(path))
        first = await queue.view()
        assert first is await queue.view(first)
        await queue.enqueue("mail")
        second = await queue.view(first)
        assert first.header.version + 1 == second.header.version
        later = await second.stats(datetime.now(UTC) + timedelta(seconds=1))
        assert (await queue.stats()).depth == later.depth

    asyncio.run(look())
