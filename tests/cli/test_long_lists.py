"""Long lists of jobs: sorted in bounded memory, with progress on a terminal, and complete up to a damaged segment."""

import asyncio
import io
import json
import random
import sys

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli import columns, ls, progress
from jqueue.cli.app import app
from jqueue.cli.sorted_rows import BLOCK, SortedRows
from jqueue.operations import Enqueue
from tests.tiny_segments import spilled, tiny_queue


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("number", [0, 1, 999, 1000, 1001, 7 * BLOCK + 5])
def test_rows_sorted_in_a_file_come_in_the_order_of_rows_sorted_in_memory(number, reverse):
    pairs = [(random.randrange(40), place) for place in range(number)]
    rows = SortedRows[tuple[int, int]](reverse=reverse, run=500)
    for key, place in pairs:
        rows.add(key, (key, place))
    assert sorted(pairs, key=lambda pair: pair[0], reverse=reverse) == [*rows]
    assert rows.most_held <= 500
    assert number == rows.number
    rows.close()


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A queue of 40 jobs in segments of two entrypoints, and of lists that are long from 10 rows on."""
    path = tmp_path / "queue.json"
    monkeypatch.setattr(ls, "SAMPLE", 10)
    monkeypatch.setattr(columns, "SAMPLE", 10)
    monkeypatch.setattr(progress, "DEEP", 10)

    async def fill():
        async with tiny_queue(LocalFileSystemStorage(path), most_rows=20) as queue:
            for name in "ab":
                await queue.enqueue_many([Enqueue(name, b"", random.randrange(3)) for _ in range(20)])
                await spilled(queue)

    asyncio.run(fill())
    return path


class Screen(io.StringIO):
    def isatty(self):
        return True


async def viewed(path):
    return await DirectQueue(LocalFileSystemStorage(path)).view()


async def ids_of(view):
    return [job_id async for job_id in view.ids()]


def run(path, *arguments):
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["ls", str(path), *arguments], catch_exceptions=False)


@pytest.mark.parametrize("arguments", [["--sort", "id"], ["--sort", "priority", "--reverse"], ["--reverse"]])
def test_a_long_sorted_list_has_the_rows_of_a_limited_one(path, arguments):
    whole = run(path, *arguments, "--json").stdout.splitlines()
    first = run(path, *arguments, "--json", "--limit", "1000").stdout.splitlines()
    assert 40 == len(whole)
    assert [json.loads(each)["id"] for each in first] == [json.loads(each)["id"] for each in whole]
    titles, *lines = run(path, *arguments).stdout.splitlines()
    assert "entrypoint" in titles
    assert [each.split()[0] for each in lines] == [json.loads(each)["id"] for each in whole]


@pytest.mark.parametrize("arguments", [[], ["--sort", "id"], ["--limit", "5"], ["--sort", "id", "--limit", "15"]])
def test_a_list_has_all_jobs_that_can_be_read_and_names_the_damaged_segment(path, arguments):
    folder = path.with_name("queue.json.segments")
    lost, *_ = [each for each in folder.iterdir() if b'"entrypoint": "a"' in each.read_bytes()]
    lost.unlink()
    result = run(path, *arguments, "--json")
    *jobs, error = result.stdout.splitlines()
    assert 2 == result.exit_code
    assert len(jobs) >= 5
    assert lost.name in json.loads(error)["error"]
    assert all(json.loads(each)["entrypoint"] for each in jobs)


def test_a_terminal_shows_the_progress_of_a_pass_over_a_deep_queue(path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown = Screen()
    monkeypatch.setattr(sys, "stderr", shown)
    with progress.reading(asyncio.run(viewed(path))) as (view, _):
        assert 40 == len(asyncio.run(ids_of(view)))
    assert "reading" in shown.getvalue()
    assert "40/40" in shown.getvalue()
    before = shown.tell()
    with progress.jobs_counted("working") as tell, tell.away():
        print("a row", file=shown)
    assert "a row\n" in shown.getvalue()[before:]
    monkeypatch.setattr(progress, "DEEP", 41)
    before = shown.tell()
    with progress.reading(asyncio.run(viewed(path))):
        assert before == shown.tell()  # nothing is shown for a short queue


def test_no_space_for_a_temporary_file_is_one_clear_line(path, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jqueue.cli.sorted_rows.TemporaryFile", full)
    monkeypatch.setattr(SortedRows.__init__, "__kwdefaults__", {"reverse": False, "run": 10})
    result = run(path, "--sort", "id")
    assert 2 == result.exit_code
    assert "No space left on device. Set TMPDIR" in result.stderr
