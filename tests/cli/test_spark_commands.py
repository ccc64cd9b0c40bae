"""`jqueue spark enqueue|run|snapshot|archive|report` at 80 columns: output and effect, before and on Spark."""

import asyncio
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.cli.spark import session as sessions
from jqueue.cli.spark.files import format_of
from jqueue.spark.noise import PROFILE

pytestmark = pytest.mark.wide

SECRET = "hunter2"

PROGRAM = """
from jqueue.worker import Worker

worker = Worker()
idle = Worker()


@worker.handler("double", max_attempts=1)
def double(number: dict[str, int]) -> int:
    return 2 * number["n"] if number["n"] else 1 // 0
"""

COMMANDS = {
    "enqueue": ["jobs.csv", "queue.json"],
    "run": ["program:worker", "queue.json"],
    "snapshot": ["queue.json"],
    "archive": ["queue.json", "lake"],
    "report": ["queue.json"],
}
"""Each command with its required arguments."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a data file, a queue and a program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "program", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "jobs.csv").write_text("n\n1\n2\n0\n")
    asyncio.run(DirectQueue(LocalFileSystemStorage("queue.json")).enqueue("double", b'{"n": 5}'))
    return tmp_path


@pytest.fixture
def on_spark(folder, spark, monkeypatch):
    """Run commands in the Spark session of the tests, because starting one for each command takes too long."""

    class Shared:
        def __getattr__(self, name):
            return (lambda: None) if name == "stop" else getattr(spark, name)

    monkeypatch.setattr(sessions, "_start", lambda target, settings: Shared())
    monkeypatch.setattr(sessions, "quiet_python", lambda: None)
    return folder


@pytest.fixture
def no_spark(folder, monkeypatch):
    """Fail the test if the command starts Spark."""

    def start(target, settings):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(sessions, "_start", start)
    return folder


def invoke(command, *arguments):
    runner = CliRunner(env={"COLUMNS": "80"})
    return runner.invoke(app, ["spark", command, *map(str, arguments)], catch_exceptions=False)


def said(command, *arguments):
    """The output of a command that succeeds."""
    result = invoke(command, *arguments)
    assert (0, "") == (result.exit_code, result.stderr), result.output
    assert SECRET not in result.stdout
    return result.stdout


def refused(command, *arguments):
    """The one-line error of a command, which is the same as text and as JSON."""
    result = invoke(command, *arguments)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n")), result.output
    as_json = invoke(command, *arguments, "--json")
    assert (2, "") == (as_json.exit_code, as_json.stderr)
    assert f"jqueue: {json.loads(as_json.stdout)['error']}\n" == result.stderr
    assert SECRET not in result.output
    return result.stderr.removeprefix("jqueue: ").strip()


def state():
    return asyncio.run(DirectQueue(LocalFileSystemStorage("queue.json")).read_state())


# Before Spark starts


def test_the_command_line_imports_pyspark_only_when_needed():
    code = "import sys, jqueue.cli.app; print({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ("set()\n", "") == (result.stdout, result.stderr)


def test_help_lists_the_spark_commands_and_their_options():
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["spark", "--help"]).stdout
    assert 'pip install "jqueue[spark]"' in shown
    for command in COMMANDS:
        assert f" {command} " in shown
        options = invoke(command, "--help").stdout
        assert max(map(len, options.splitlines())) <= 80
        for option in ("--master", "--conf", "--spark-log", "--json"):
            assert option in options


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_pyspark_gives_one_line_with_the_install_command(no_spark, monkeypatch, command):
    def version(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr(sessions, "version", version)
    assert 'this needs Spark: pip install "jqueue[spark]"' == refused(command, *COMMANDS[command])


def test_an_outdated_pyspark_is_refused_with_its_version(no_spark, monkeypatch):
    monkeypatch.setattr(sessions, "version", lambda package: "4.1.2")
    assert refused("snapshot", "queue.json").startswith("jqueue needs PySpark 4.2 or newer, but this is '4.1.2'")


def test_a_missing_java_gives_a_one_line_error(no_spark, monkeypatch):
    monkeypatch.setattr(sessions, "java_problem", lambda: "Spark needs Java")
    assert "Spark needs Java" == refused("report", "queue.json")


@pytest.mark.parametrize("setting", ["spark.ui.enabled", "ui.enabled=true", "=x"])
def test_an_invalid_spark_setting_is_refused(no_spark, setting):
    assert refused("snapshot", "queue.json", "--conf", setting).startswith("--conf takes a Spark setting as KEY=")


def test_java_options_of_the_driver_are_kept(folder):
    target = sessions.SparkTarget(
        "local[1]", ["spark.driver.extraJavaOptions=-Dx=1", "spark.a=b=c"], sessions.SparkLog.WARN
    )
    settings = sessions._settings(target)
    assert "b=c" == settings["spark.a"]
    assert settings["spark.driver.extraJavaOptions"].endswith("-Djqueue.spark.log=WARN -Dx=1")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nothing.csv", "queue.json"], "there is no file or folder nothing.csv"),
        (["program.py", "queue.json"], "the format of program.py is unknown: add --format parquet, csv or json"),
        (
            ["jobs.csv", "memory://"],
            "an in-memory queue is visible only to its own process: give the URL of a file or a store",
        ),
        (["jobs.csv", f"s3://key:{SECRET}@bucket"], "the s3:// URL names a bucket, but no object in it"),
        (["jobs.csv", "queue.json", "--txn-app-id", "x"], "give --txn-app-id and --txn-version together"),
        (["jobs.csv", "queue.json", "--txn-version", "1"], "give --txn-app-id and --txn-version together"),
        (["jobs.csv", "queue.json", "--option", "priority"], "--option takes KEY=VALUE"),
        (["jobs.csv", "queue.json", "--read-option", "=x"], "--read-option takes KEY=VALUE"),
    ],
)
def test_a_wrong_enqueue_is_refused_before_spark_starts(no_spark, arguments, line):
    assert refused("enqueue", *arguments).startswith(line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["program:worker", "nothing.json"], "there is no queue at "),
        (["program:worker", f"s3://key:{SECRET}@bucket"], "the s3:// URL names a bucket, but no object in it"),
        (["program:worker", "queue.json", "--py-files", "none.zip"], "there is no file none.zip"),
        (["program:worker", "queue.json", "--entrypoint", "other"], "program:worker has no handler for 'other'"),
    ],
)
def test_a_wrong_run_is_refused_before_spark_starts(no_spark, arguments, line):
    assert refused("run", *arguments).startswith(line)


@pytest.mark.parametrize("target", ["nothing:worker", "program:nothing", "program:idle", "program.py"])
def test_a_missing_worker_gives_the_same_error_as_jqueue_worker(no_spark, target):
    expected = CliRunner().invoke(app, ["worker", target, "queue.json"])
    found = invoke("run", target, "queue.json")
    assert (2, expected.stderr) == (found.exit_code, found.stderr)


def test_a_snapshot_does_not_overwrite_an_existing_file(no_spark):
    assert "jobs.csv already exists: add --mode append or overwrite" == refused("snapshot", "queue.json", "jobs.csv")
    assert "OUT must end with .parquet, .csv or .json" == refused("snapshot", "queue.json", "out.xml")


def test_a_page_needs_an_existing_folder(no_spark):
    assert refused("report", "queue.json", "--html", "none/page.html").startswith("there is no folder ")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.parquet", "parquet"), ("a.CSV", "csv"), ("a.tsv.gz", "csv"), ("a.jsonl", "json"), ("a.json.zst", "json"),
        ("s3a://bucket/a.parquet/", "parquet"), ("a/*.csv", "csv"), ("a.txt", None), ("a", None),
    ],
)  # fmt: skip
def test_the_format_follows_from_the_file_name(name, kind):
    assert kind == format_of(name)


def test_the_format_of_a_folder_follows_from_its_files(tmp_path):
    (tmp_path / "part-0.csv").touch()
    (tmp_path / "_SUCCESS").touch()
    assert "csv" == format_of(str(tmp_path))
    (tmp_path / "part-1.json").touch()
    assert None is format_of(str(tmp_path))


def test_known_java_warnings_are_left_out_and_other_lines_are_printed():
    code = """
import os, sys, threading
from jqueue.spark.noise import quiet_java
with quiet_java("starting"):
    os.system("echo 'WARNING: Using incubator modules: x' >&2; echo first >&2; (sleep 0.3; echo last >&2) & ")
os.write(2, b"second\\n")  # one write: print writes the line break separately, and the other thread may write first
for thread in set(threading.enumerate()) - {threading.current_thread()}:
    thread.join(30)  # it ends when the last process that may write has ended
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (0, "", {"first", "second", "last"}) == (result.returncode, result.stdout, set(result.stderr.split()))
    assert PROFILE.is_file()


# With Spark


def test_rows_of_a_csv_file_become_jobs_and_are_run_and_shown(on_spark):
    """A file is enqueued, shown, run and reported."""
    assert "3 jobs added to " in said("enqueue", "jobs.csv", "queue.json", "--entrypoint", "double")
    assert [b'{"n": 5}', b'{"n":1}', b'{"n":2}', b'{"n":0}'] == [job.payload for job in state().jobs]
    shown = said("snapshot", "queue.json", "--show", 1)
    assert "double" in shown
    assert "and 3 more" in shown
    assert max(map(len, shown.splitlines())) <= 80
    ran = json.loads(said("run", "program:worker", "queue.json", "--drain", "--json", "--py-files", "program.py"))
    assert (4, 3, 1, 1) == tuple(ran[name] for name in ("claimed", "done", "dead", "batches"))
    told = json.loads(said("report", "queue.json", "--json", "--html", "page.html"))
    assert [("double", 1)] == [(each["entrypoint"], each["dead"]) for each in told["entrypoints"]]
    assert (on_spark / "page.html").stat().st_size > 1000


def test_columns_named_like_job_fields_set_those_fields(on_spark):
    (on_spark / "jobs.csv").write_text(
        "entrypoint,payload,priority,unique_key,headers,run_at\n"
        'mail,007,2,a,"{""x"": ""y""}",\n'
        'mail,"hello, you",0,07,,2036-01-01T00:00:00Z\n'
        "mail,third,0,a,,\n"
    )
    receipt = json.loads(said("enqueue", "jobs.csv", "queue.json", "--json"))
    assert (2, 1, False) == tuple(receipt[name] for name in ("added", "taken", "repeated"))
    first, second = sorted(state().jobs, key=lambda job: job.sequence)[1:]
    if first.unique_key != "a":
        first, second = second, first
    assert (b"007", 2, "a", {"x": "y"}, None) == (
        first.payload, first.priority, first.unique_key, first.headers, first.run_at
    )  # fmt: skip
    assert (b"hello, you", "07", 2036) == (second.payload, second.unique_key, second.run_at.year)


def test_a_json_payload_column_becomes_a_json_payload(on_spark):
    (on_spark / "jobs.jsonl").write_text('{"payload": {"to": "ada"}}\n{"payload": {"n": 5, "x": null}, "delay": 60}\n')
    said("enqueue", "jobs.jsonl", "queue.json", "--entrypoint", "mail")
    payloads = [json.loads(job.payload) for job in state().jobs[1:]]
    assert [{"to": "ada"}, {"n": 5, "x": None}] == payloads


def test_a_json_array_is_read_and_a_repeated_write_adds_nothing(on_spark):
    (on_spark / "jobs.json").write_text('[\n {"n": 1},\n {"n": 2}\n]\n')
    arguments = ("jobs.json", "queue.json", "--entrypoint", "double", "--txn-app-id", "nightly", "--txn-version")
    assert "2 jobs added to " in said("enqueue", *arguments, 7)
    assert "nothing added: version 7 of nightly was already written\n" == said("enqueue", *arguments, 7)
    assert True is json.loads(said("enqueue", *arguments, 6, "--json"))["repeated"]
    assert 3 == len(state().jobs)


def test_an_error_of_the_data_source_is_one_line(on_spark):
    assert "the entrypoint is missing" in refused("enqueue", "jobs.csv", "queue.json")
    assert "there is no option 'x'" in refused("enqueue", "jobs.csv", "queue.json", "--option", "x=1")
    assert "cannot be read" in refused("enqueue", "jobs.csv", "queue.json", "--format", "parquet")
    assert "cannot be read as json" in refused("enqueue", "jobs.csv", "queue.json", "--format", "json")
    assert refused("snapshot", "nothing.json").startswith("there is no queue at ")
    assert "is not a queue" in refused("snapshot", "jobs.csv")
    assert "no queue matches" in refused("report", "nothing*.json")
    assert b'{"n": 5}' == state().jobs[0].payload


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_snapshot_in_a_file_has_all_fields_in_each_format(on_spark, spark, kind):
    """The file has the fields of the job in each format."""
    assert f"1 job written to out.{kind}\n" == said("snapshot", "queue.json", f"out.{kind}")
    reader = spark.read.format(kind).options(header="true", escape='"')
    frame = reader.load(str(on_spark / f"out.{kind}"))
    [row] = frame.select("entrypoint", "payload", "status").collect()
    payload = b'{"n": 5}' if kind == "parquet" else "eyJuIjogNX0="
    assert ("double", payload, "queued") == (row[0], bytes(row[1]) if kind == "parquet" else row[1], row[2])
    said("snapshot", "queue.json", f"out.{kind}", "--mode", "append")
    assert 2 == reader.load(str(on_spark / f"out.{kind}")).count()


def test_the_history_is_archived_once(on_spark):
    asyncio.run(DirectQueue(LocalFileSystemStorage("queue.json")).configure(history=3600))
    assert "1 event of 1 queue added, 1 in 1 file, in " in said("archive", "queue.json", "lake")
    found = json.loads(said("archive", "queue.json", "lake", "--json"))
    assert (0, 1, str(on_spark / "lake")) == (found["added"], found["events"], found["lake"])
    past = json.loads(said("report", "--lake", "lake", "--since", "1d", "--html", "past.html", "--json"))
    assert (0, str(on_spark / "past.html")) == (past["total"]["enqueued"], past["page"])
    assert "give the URL of a queue, or --lake" == refused("report")
    assert refused("report", "--lake", "nothing").startswith(f"there is no lake at {on_spark}/nothing: check the name")
    asyncio.run(DirectQueue(LocalFileSystemStorage("plain.json")).enqueue("double", b""))
    line = refused("archive", "plain.json", "lake")
    assert f"{on_spark}/plain.json keeps no history: switch it on with configure(history=...)" == line


def test_a_fleet_is_shown_with_the_names_of_its_queues(on_spark):
    (on_spark / "other.json").write_bytes((on_spark / "queue.json").read_bytes())
    counts = json.loads(said("snapshot", "queue.json,other.json", "--json"))["counts"]
    assert {str(on_spark / "queue.json"), str(on_spark / "other.json")} == {each["queue"] for each in counts}
    assert "queue.json" in said("snapshot", "*.json")


@pytest.mark.full
def test_a_command_in_its_own_process_prints_only_its_result(folder, spark):
    """The fixture `spark` skips the test without Java."""
    command = [sys.executable, "-m", "jqueue", "spark", "enqueue", "jobs.csv", "queue.json", "--entrypoint", "double"]
    result = subprocess.run([*command, "--master", "local[1]"], capture_output=True, text=True, timeout=300)
    assert (0, "") == (result.returncode, result.stderr)
    assert result.stdout.startswith("3 jobs added to ")
    wrong = subprocess.run([*command, "--option", "x=1"], capture_output=True, text=True, timeout=300)
    assert (2, "", 1) == (wrong.returncode, wrong.stdout, wrong.stderr.count("\n"))
