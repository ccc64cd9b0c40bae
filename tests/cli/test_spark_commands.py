"""`jqueue spark enqueue|run|snapshot|archive|report`: refused before Spark starts, and one story on Spark."""

import json
import re
import sys

import pytest

from tests.cli.commands import SECRET, Blocking, process, refused, run, text, values

pytestmark = pytest.mark.wide

PROGRAM = """
from jqueue.worker import Worker

worker = Worker()
idle = Worker()


@worker.handler("double", max_attempts=1)
def double(number: dict[str, int]) -> int:
    return 2 * number["n"] if number["n"] else 1 // 0
"""


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """A queue in a working directory with a data file and a program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "program", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "jobs.csv").write_text("n\n1\n2\n0\n")
    queue = Blocking(tmp_path / "queue.json")
    queue.configure(history=3600)
    queue.enqueue("double", b'{"n": 5}')
    return queue


@pytest.fixture
def on_spark(queue, spark, monkeypatch):
    """Commands run in the Spark session of the tests, because starting one for each command takes too long."""

    class Shared:
        def __getattr__(self, name):
            return (lambda: None) if name == "stop" else getattr(spark, name)

    monkeypatch.setattr("jqueue.spark.session.local_session", lambda *_, **__: Shared())
    return queue


def shown(*arguments):
    """The output of a command, which may hold long paths."""
    result = run(*arguments)
    assert (0, "") == (result.exit_code, result.stderr)
    return result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("enqueue nothing.csv queue.json", "there is no file or folder nothing.csv"),
        ("enqueue program.py queue.json", "the format of program.py is unknown: add --format parquet, csv or json"),
        ("enqueue jobs.csv memory://", "an in-memory queue is visible only to its own process"),
        (f"enqueue jobs.csv s3://key:{SECRET}@bucket", "the s3:// URL names a bucket, but no object in it"),
        ("enqueue jobs.csv queue.json --txn-app-id x", "give --txn-app-id and --txn-version together"),
        ("enqueue jobs.csv queue.json --option priority", "--option takes KEY=VALUE"),
        ("run program:worker nothing.json", "there is no queue at "),
        ("run program:worker queue.json --py-files none.zip", "there is no file none.zip"),
        ("run program:worker queue.json --entrypoint other", "program:worker has no handler for 'other'"),
        ("snapshot queue.json jobs.csv", "jobs.csv already exists: add --mode append or overwrite"),
        ("snapshot queue.json out.xml", "OUT must end with .parquet, .csv or .json"),
        ("snapshot queue.json --conf ui.enabled=true", "--conf takes a Spark setting as KEY="),
        ("report queue.json --html none/page.html", "there is no folder "),
    ],
)
def test_a_wrong_command_is_refused_before_spark_starts(queue, monkeypatch, arguments, reason):
    monkeypatch.setattr("jqueue.spark.session.local_session", lambda *_, **__: pytest.fail("Spark was started"))
    error = refused("spark", *arguments.split())
    assert reason in error
    assert {"error": error} == values("spark", *arguments.split(), status=2)


def test_a_missing_pyspark_gives_one_line_with_the_install_command(queue):
    code = """
import importlib.metadata, sys

def version(package):
    raise importlib.metadata.PackageNotFoundError(package)

importlib.metadata.version = version
from jqueue.cli import main
try:
    main()
finally:
    assert not {"pyspark", "pyarrow", "pandas"} & set(sys.modules)
"""
    result = process("spark", "snapshot", "queue.json", code=code)
    assert (2, "", 'jqueue: this needs Spark: pip install "jqueue[spark]"\n') == (
        result.returncode,
        result.stdout,
        result.stderr,
    )


def test_rows_of_a_file_become_jobs_and_are_shown_run_reported_and_archived(on_spark, tmp_path):
    assert "3 jobs added to " in shown("spark", "enqueue", "jobs.csv", "queue.json", "--entrypoint", "double")
    assert [b'{"n": 5}', b'{"n":1}', b'{"n":2}', b'{"n":0}'] == [job.payload for job in on_spark.jobs().values()]
    assert re.search(r"double.* and 3 more", text("spark", "snapshot", "queue.json", "--show", 1))
    report = values("spark", "run", "program:worker", "queue.json", "--drain", "--py-files", "program.py")
    assert (4, 3, 1, 1) == tuple(report[name] for name in ("claimed", "done", "dead", "batches"))
    report = values("spark", "report", "queue.json", "--html", "page.html")
    assert [("double", 1)] == [(each["entrypoint"], each["dead"]) for each in report["entrypoints"]]
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert "of 1 queue added" in shown("spark", "archive", "queue.json", "lake")
    assert 0 == values("spark", "archive", "queue.json", "lake")["added"]
    assert 4 == values("spark", "report", "--lake", "lake", "--since", "1d")["total"]["enqueued"]


def test_columns_named_like_job_fields_set_those_fields_and_a_repeated_write_adds_nothing(on_spark, tmp_path):
    (tmp_path / "jobs.jsonl").write_text(
        '{"entrypoint": "mail", "payload": {"to": "ada"}, "priority": 2, "unique_key": "a", "headers": {"x": "y"}}\n'
        '{"entrypoint": "mail", "payload": {"to": "bob"}, "priority": 2, "unique_key": "a"}\n'
    )
    arguments = ("spark", "enqueue", "jobs.jsonl", "queue.json", "--txn-app-id", "nightly", "--txn-version", 7)
    receipt = values(*arguments)
    assert (1, 1, False) == tuple(receipt[name] for name in ("added", "taken", "repeated"))
    assert "nothing added: version 7 of nightly was already written" == text(*arguments)
    [job] = [job for job in on_spark.jobs().values() if job.entrypoint == "mail"]
    assert (2, "a", {"x": "y"}) == (job.priority, job.unique_key, job.headers)
    assert json.loads(job.payload)["to"] in ("ada", "bob")


def test_an_error_of_the_data_source_is_one_line(on_spark):
    assert "the entrypoint is missing" in refused("spark", "enqueue", "jobs.csv", "queue.json")
    assert "there is no option 'x'" in refused("spark", "enqueue", "jobs.csv", "queue.json", "--option", "x=1")
    assert "is not a queue" in refused("spark", "snapshot", "jobs.csv")
    assert "no queue matches" in refused("spark", "report", "nothing*.json")


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_snapshot_in_a_file_has_all_fields(on_spark, spark, tmp_path, kind):
    assert f"1 job written to out.{kind}" == text("spark", "snapshot", "queue.json", f"out.{kind}")
    frame = spark.read.format(kind).options(header="true", escape='"').load(str(tmp_path / f"out.{kind}"))
    [row] = frame.select("entrypoint", "payload", "status").collect()
    payload = b'{"n": 5}' if kind == "parquet" else "eyJuIjogNX0="
    assert ("double", payload, "queued") == (row[0], bytes(row[1]) if kind == "parquet" else row[1], row[2])
    run("spark", "snapshot", "queue.json", f"out.{kind}", "--mode", "append")
    assert 2 == spark.read.format(kind).options(header="true").load(str(tmp_path / f"out.{kind}")).count()


@pytest.mark.full
def test_a_command_in_its_own_process_prints_only_its_result(queue, spark):
    """The fixture `spark` skips the test without Java."""
    command = ("spark", "enqueue", "jobs.csv", "queue.json", "--entrypoint", "double", "--master", "local[1]")
    result = process(*command)
    assert (0, "", True) == (result.returncode, result.stderr, result.stdout.startswith("3 jobs added to "))
