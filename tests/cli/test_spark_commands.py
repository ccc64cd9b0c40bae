"""`jqueue spark enqueue|run|snapshot`: refused before Spark starts, and one story on Spark."""

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
    """The output of a command as one line. It may hold long paths."""
    result = run(*arguments)
    assert (0, "") == (result.exit_code, result.stderr)
    return " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("enqueue nothing.csv queue.json", "there is no file or folder nothing.csv"),
        (f"enqueue jobs.csv s3://key:{SECRET}@bucket", "the s3:// URL names a bucket, but no object in it"),
        ("enqueue jobs.csv queue.json --txn-app-id x", "give --txn-app-id and --txn-version together"),
        ("run program:worker queue.json --entrypoint other", "program:worker has no handler for 'other'"),
        ("snapshot queue.json jobs.csv", "jobs.csv already exists: add --mode append or overwrite"),
        ("snapshot queue.json out.parquet --conf ui.enabled=true", "--conf takes a Spark setting as KEY="),
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
    result = process("spark", "snapshot", "queue.json", "out.parquet", code=code)
    assert (2, "", 'jqueue: this needs Spark: pip install "jqueue[spark]"\n') == (
        result.returncode,
        result.stdout,
        result.stderr,
    )


def test_rows_of_a_file_become_jobs_and_are_shown_and_run(on_spark, tmp_path):
    assert "3 jobs added to " in shown("spark", "enqueue", "jobs.csv", "queue.json", "--entrypoint", "double")
    assert [b'{"n": 5}', b'{"n":1}', b'{"n":2}', b'{"n":0}'] == [job.payload for job in on_spark.jobs().values()]
    report = values("spark", "run", "program:worker", "queue.json", "--drain", "--py-files", "program.py")
    assert (4, 3, 1, 1) == tuple(report[name] for name in ("claimed", "succeeded", "dead", "batches"))


def test_an_error_of_the_data_source_is_one_line(on_spark):
    assert "the entrypoint is missing" in refused("spark", "enqueue", "jobs.csv", "queue.json")
    assert "there is no option 'x'" in refused("spark", "enqueue", "jobs.csv", "queue.json", "--option", "x=1")
    assert "is not a queue" in refused("spark", "snapshot", "jobs.csv", "out.parquet")
    assert "no queue matches" in refused("spark", "snapshot", "nothing*.json", "other.parquet")


def test_a_snapshot_in_a_file_has_all_fields(on_spark, spark, tmp_path):
    assert "1 job written to out.parquet" == text("spark", "snapshot", "queue.json", "out.parquet")
    frame = spark.read.parquet(str(tmp_path / "out.parquet"))
    [row] = frame.select("entrypoint", "payload", "status").collect()
    assert ("double", b'{"n": 5}', "queued") == (row[0], bytes(row[1]), row[2])
