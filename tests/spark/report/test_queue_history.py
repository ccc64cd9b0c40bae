"""The declarative pipeline of examples/queue_history: each run adds the state of the queues to a table."""

import importlib.util
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow.dataset as datasets
import pytest

from jqueue import DirectQueue, connect
from jqueue.spark.session import java_problem
from tests.servers.fixtures import skip_or_fail

pytest.importorskip("yaml")
ROOT = Path(__file__).parents[3]
PROJECT = ROOT / "examples" / "queue_history"
LONGEST_SECONDS = 900  # a run takes half a minute on an idle machine


@pytest.fixture
def program():
    spec = importlib.util.spec_from_file_location("queue_history_run", PROJECT / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_project_has_no_paths_and_a_run_fills_them_in(program, tmp_path):
    pytest.importorskip("grpc")
    from pyspark.pipelines.cli import load_pipeline_spec

    plain = load_pipeline_spec(PROJECT / "spark-pipeline.yml")
    spec = load_pipeline_spec(program.prepare(tmp_path, ["s3://bucket/a.json", "relative.json"]))

    assert "/" not in plain.storage
    assert (plain.name, tmp_path.as_uri() + "/storage") == (spec.name, spec.storage)
    assert f"s3://bucket/a.json,{os.getcwd()}/relative.json" == spec.configuration["spark.jqueue.queues"]
    assert f"{tmp_path}/lake" == spec.configuration["spark.jqueue.lake"]
    [library] = spec.libraries
    found = {path.name for path in tmp_path.glob(library.include) if path.is_file()}
    assert {"history.py", "latest.sql", "daily.sql", "events.py", "work.sql"} <= found
    conf = (tmp_path / "conf" / "spark-defaults.conf").read_text()
    assert f"spark.sql.warehouse.dir {tmp_path}/warehouse\n" in conf


def test_another_run_on_the_same_machine_gives_a_one_line_error(program, tmp_path, monkeypatch):
    monkeypatch.delenv("SPARK_TESTING", raising=False)
    monkeypatch.setattr(sys, "argv", ["run.py", "queue.json", "--into", str(tmp_path)])
    monkeypatch.setattr(program, "is_taken", lambda port: port == 15002)

    with pytest.raises(SystemExit, match="port 15002 is taken, perhaps by another run"):
        program.main()
    assert [] == list(tmp_path.iterdir())


def run(queues, folder):
    """Run the program as users do. Its Spark chooses a free port, so that several runs can work at once."""
    environment = {**os.environ, "SPARK_TESTING": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, str(PROJECT / "run.py"), *queues, "--into", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
    )
    print(result.stdout, result.stderr)
    assert 0 == result.returncode


def rows(folder, table):
    found = datasets.dataset(folder / "warehouse" / table, format="parquet", exclude_invalid_files=True)

    def key(row):
        return row.get("taken_at"), row["queue"], row.get("number"), row["entrypoint"] or ""

    return sorted(found.to_table().to_pylist(), key=key)


@pytest.mark.full
async def test_each_run_adds_to_the_history_and_updates_its_views(tmp_path):
    if problem := java_problem():
        skip_or_fail(problem)
    folder, names = tmp_path / "history", [str(tmp_path / f"{name}.json") for name in ("empty", "mails")]
    async with connect(names[0], DirectQueue) as queue:
        await queue.cancel((await queue.enqueue("mail", b"")).id)
    async with connect(names[1], DirectQueue) as queue:
        await queue.configure(history=timedelta(days=30))
        for _ in range(3):
            await queue.enqueue("mail", b"secret")
        run([str(tmp_path / "*.json")], folder)
        for _ in range(2):
            await queue.enqueue("mail", b"secret")
        await queue.nack((await queue.dequeue("mail"))[0], dead=True, error=ValueError("secret"))
        run([str(tmp_path / "*.json")], folder)

    history = rows(folder, "history")
    assert [
        (names[0], None, 0, 0, 0),
        (names[1], "mail", 3, 3, 0),
        (names[0], None, 0, 0, 0),
        (names[1], "mail", 5, 4, 1),
    ] == [(row["queue"], row["entrypoint"], row["jobs"], row["ready"], row["dead"]) for row in history]
    first, _, second, _ = (row["taken_at"] for row in history)
    assert first < second
    assert [{key: row[key] for key in row if key != "run"} for row in history[2:]] == rows(folder, "latest")
    [_, mails] = rows(folder, "daily") if first.date() == second.date() else rows(folder, "daily")[-2:]
    assert (4, 4, 1) == (mails["most_ready"], mails["ready"], mails["dead"])
    events = rows(folder, "events")
    assert [("start", 0), *[("enqueue", 0)] * 3, *[("enqueue", 1)] * 2, ("dequeue", 1), ("nack", 1)] == [
        (row["verb"], row["run"]) for row in events
    ]
    assert list(range(1, 9)) == [row["number"] for row in events]
    done = rows(folder, "work")
    assert (5, 0, 1, 1) == tuple(sum(row[name] for row in done) for name in ("enqueued", "done", "failed", "dead"))
    assert "secret" not in str([*history, *done])
    assert "secret" not in str([{**row, "error": None} for row in events])
