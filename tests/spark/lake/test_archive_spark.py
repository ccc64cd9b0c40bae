"""`archive` and `read_lake` on real Spark, on a file and on an object store, with drivers that are killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from datetime import UTC
from pathlib import Path

import pytest

from jqueue import DirectQueue, connect
from jqueue.domain.errors import InvalidURLError, StorageFatalError
from jqueue.spark.lake import archive, read_lake
from jqueue.spark.lake.events import DDL, ROWS
from tests.spark.enqueue.bulk import STORES, url_on
from tests.spark.lake.lake_world import committed, history_of, some_jobs, values_of, work

ROOT = Path(__file__).parents[3]
NAMES = ["mail", "a/b", "日本", "x=y%20", "__HIVE_DEFAULT_PARTITION__", "{*}[?]", "2026-01-01", "42", "e" * 300]

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("spark")]


def rows_of(frame):
    """Events in the order and the form of `history_of`."""
    rows = []
    for row in frame.orderBy("queue", "number").collect():
        cells = row.asDict()
        for name in ("at", "created_at"):
            if cells[name] is not None:
                cells[name] = cells[name].astimezone(UTC)  # it comes in the time of this machine, without a zone
        cells["payload"] = None if cells["payload"] is None else bytes(cells["payload"])
        if cells["rows"] is not None:
            cells["rows"] = [each.asDict(recursive=True) for each in cells["rows"]]
        rows.append((*(cells[name] for name in ROWS.names), str(cells["day"]), cells["entrypoint"]))
    return rows


@pytest.mark.parametrize("store", STORES)
def test_a_lake_has_the_events_of_the_history(request, tmp_path, spark, store):
    url, lake = url_on(request, tmp_path, store), url_on(request, tmp_path, store).replace("queue.json", "lake")

    async def do():
        async with connect(url, DirectQueue) as queue:
            await queue.configure(history=1e9, history_payloads=True)
            queue._engine.history.events_per_object = 7
            for name in NAMES:
                await some_jobs(queue, 4, name)
            return [event async for event in queue.history()]

    for _ in range(2):
        events = asyncio.run(do())
        done = archive(spark, url, lake)
        assert len(events) == done.events
    found = rows_of(read_lake(spark, lake))
    expected = [values_of(event) for event in reversed(events)]
    assert expected == [row[2:-2] for row in found]
    assert [event.entrypoint for event in reversed(events)] == [row[-1] for row in found]
    assert {event.at.date().isoformat() for event in events} == {row[-2] for row in found}
    assert 0 == archive(spark, url, lake).added
    few = read_lake(spark, lake, ["entrypoint", "jobs"])
    assert ["entrypoint", "jobs"] == few.columns
    assert len(events) == few.count()


def test_spark_itself_reads_a_lake_by_its_folders(tmp_path, spark):
    path, lake = tmp_path / "queue.json", tmp_path / "lake"

    async def do(queue):
        for name in NAMES[:-1]:
            await some_jobs(queue, 4, name)

    work(path, do)
    archive(spark, str(path), str(lake))
    assert history_of(path) == rows_of(spark.read.schema(DDL).parquet(str(lake)))
    assert len(history_of(path)) == spark.read.parquet(str(lake)).count()


@pytest.mark.parametrize(("commit", "after"), [(1, True), (2, False), (2, True)])
def test_a_run_whose_driver_is_killed_is_repeated(tmp_path, spark, commit, after):
    path, lake = tmp_path / "queue.json", tmp_path / "lake"
    work(path, some_jobs)
    plan = json.dumps({"url": str(path), "lake": str(lake), "commit": commit, "after": after})
    command = [sys.executable, "-m", "tests.spark.lake.archive_killed", plan]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=200, check=False)
    assert -signal.SIGKILL == done.returncode
    there = committed(lake) if (lake / "_jqueue.json").exists() else []
    assert (history_of(path) if (commit, after) >= (2, True) else []) == there
    archive(spark, str(path), str(lake))
    assert history_of(path) == committed(lake) == rows_of(read_lake(spark, str(lake)))


def test_errors_of_tasks_and_of_lakes_are_one_line(tmp_path, spark):
    path, lake = tmp_path / "queue.json", tmp_path / "lake"
    work(path, some_jobs)
    damaged = sorted(Path(f"{path}.history").glob("*/0*"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(StorageFatalError, match=rf"^{damaged}: its checksum does not match: [^\n]*Restore it[^\n]*$"):
        archive(spark, str(path), str(lake))
    with pytest.raises(InvalidURLError, match="there is no lake at "):
        read_lake(spark, str(tmp_path / "nothing"))
    with pytest.raises(InvalidURLError, match="a lake has no column nonsense: it has queue, "):
        read_lake(spark, str(lake), ["nonsense"])
    assert [] == read_lake(spark, str(lake)).collect()
