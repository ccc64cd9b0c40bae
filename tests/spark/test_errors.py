"""The one line that a user needs is extracted from an error of PySpark, and nothing else is shown."""

import os

import pytest

from jqueue.domain.errors import (
    InvalidURLError,
    JQueueError,
    QueueFullError,
)
from jqueue.spark.errors import cause, one_line, plain_errors, shows_one_line

LINE = "option maxJobs takes a whole number from 1 to 10, got '0'"

TRACEBACK = """Traceback (most recent call last):
  File "/somewhere/jqueue/spark/option_parsing.py", line 66, in _converted
    raise InvalidJobError(f"option {name} takes {kind.words}{got}")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
CHAINED = f"""Traceback (most recent call last):
  File "/somewhere/x.py", line 1, in f
KeyError: 'x'

The above exception was the direct cause of the following exception:

{TRACEBACK}"""
PLAN = """
=== Streaming Query ===
Identifier: [id = 42c6, runId = 8a05]
Current State: ACTIVE

Logical Plan:
WriteToMicroBatchDataSource noop-table
"""
JAVA = """
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.applyOrElse(PythonRunner.scala:1136)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\t... 17 more
"""
ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: "
    "Lost task 0.0 in stage 1.0 (TID 1) (localhost executor driver): "
)
CALLED = "An error occurred while calling o86.collectToPython.\n: "


def raised(text, name="AnalysisException", module="pyspark.errors.exceptions.captured"):
    return type(name, (Exception,), {"__module__": module})(text)


@pytest.mark.parametrize(
    "error",
    [
        raised(
            "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: "
            f"{TRACEBACK}jqueue.domain.errors.InvalidJobError: {LINE}\n SQLSTATE: 38000"
        ),
        raised(f"An exception was thrown from the Python worker:\n{CHAINED}ValueError: {LINE}", "PythonException"),
        raised(
            "[STREAM_FAILED] Query [id = 42c6] terminated with exception: "
            "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming source perform latestOffset: "
            f"{TRACEBACK}jqueue.domain.errors.InvalidJobError: {LINE}\n SQLSTATE: 38000 SQLSTATE: XXKST{PLAN}",
            "StreamingQueryException",
        ),
        raised(
            "[STREAM_FAILED] Query [id = 42c6] terminated with exception: "
            "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform "
            f"latestOffset: jqueue.domain.errors.InvalidJobError: {LINE}\n SQLSTATE: 38000 SQLSTATE: XXKST{PLAN}",
            "StreamingQueryException",
        ),
        raised(
            f"{CALLED}org.apache.spark.SparkException: {ABORTED}org.apache.spark.api.python.PythonException: "
            f"{TRACEBACK}ValueError: {LINE}\n{JAVA}",
            "Py4JJavaError",
            "py4j.protocol",
        ),
    ],
)
def test_an_error_of_jqueue_is_shown_as_its_message_alone(error):
    assert LINE == one_line(error)


PLANNED = "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: "


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("jqueue.domain.errors.QueueFullError", QueueFullError),
        ("jqueue.spark.batch.task.BatchTaskError", JQueueError),
        ("jqueue.domain.errors.os", JQueueError),
    ],
)
def test_the_cause_is_the_error_that_jqueue_raised_with_its_message(name, kind):
    found = cause(raised(f"{PLANNED}{TRACEBACK}{name}: {LINE}\n SQLSTATE: 38000"))
    assert (kind, LINE) == (type(found), str(found))
    hidden = cause(raised(f"{PLANNED}{name}: {LINE}\n SQLSTATE: 38000"))
    assert (kind, LINE) == (type(hidden), str(hidden))


@pytest.mark.parametrize(
    "error",
    [
        raised(f"{PLANNED}{TRACEBACK}shop.InvalidJobError: {LINE}\n"),
        raised("[PATH_NOT_FOUND] Path does not exist: jqueue.domain.errors.InvalidJobError: no. SQLSTATE: 42K03"),
        ValueError(f"{TRACEBACK}jqueue.domain.errors.InvalidJobError: {LINE}\n"),
    ],
)
def test_an_error_from_elsewhere_has_no_cause_in_jqueue(error):
    assert cause(error) is None


def test_plain_errors_raises_errors_of_jqueue_and_passes_others_through():
    of_spark = raised(f"{PLANNED}{TRACEBACK}jqueue.domain.errors.QueueFullError: {LINE}\n SQLSTATE: 38000")
    with pytest.raises(QueueFullError, match="maxJobs") as caught, plain_errors():
        raise of_spark
    assert of_spark is caught.value.__cause__
    for error in (KeyError("size"), raised("[PATH_NOT_FOUND] Path does not exist"), InvalidURLError("bad URL")):
        with pytest.raises(type(error)) as passed, plain_errors():
            raise error
        assert error is passed.value


@pytest.mark.parametrize(("error", "is_short"), [(InvalidURLError("bad URL"), True), (KeyError("size"), False)])
def test_a_process_of_spark_shows_errors_of_jqueue_without_its_frames(monkeypatch, error, is_short):
    @shows_one_line
    class Source:
        def partitions(self):
            raise error

        def read(self):
            yield 1
            raise error

    for call in (Source().partitions, lambda: list(Source().read())):
        monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
        with pytest.raises(type(error)):
            call()
        assert is_short == bool(os.environ.get("SPARK_HIDE_TRACEBACK"))


def test_an_error_from_elsewhere_keeps_its_class_name():
    assert "KeyError: 'size'" == one_line(raised(f"{TRACEBACK}KeyError: 'size'\n SQLSTATE: 38000"))
    assert "Away" == one_line(raised(f"{TRACEBACK}shop.errors.Away\n"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[PATH_NOT_FOUND] Path does not exist: file:/a.csv. SQLSTATE: 42K03", "Path does not exist: file:/a.csv."),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. SQLSTATE: 42703;\n"
            "'Project ['nope]\n+- Range (0, 3, step=1, splits=Some(2))\n",
            "A column with name `nope` cannot be resolved.",
        ),
        (
            f"{CALLED}org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data "
            f"source: nope. SQLSTATE: 42K02{JAVA}",
            "Failed to find the data source: nope.",
        ),
        (f"{CALLED}java.lang.NullPointerException{JAVA}", "Spark failed"),
    ],
)  # fmt: skip
def test_a_spark_error_is_cut_to_its_readable_message(text, said):
    assert said == one_line(raised(text, "Py4JJavaError", "py4j.protocol"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'jqueue'", "the executors have no jqueue"),
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'shop.jobs'", "have no module shop.jobs"),
        (f'{CALLED}org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"{JAVA}', "s3a://"),
        (f"{CALLED}org.apache.spark.SparkException: {ABORTED}org.apache.spark.SparkException: Python worker exited "
         f"unexpectedly (crashed). Consider setting 'x' to 'true'{JAVA}", "ended unexpectedly"),
        (f"{CALLED}java.lang.OutOfMemoryError: Java heap space{JAVA}", "spark.driver.memory"),
        ("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:/l/day=2026-10-01/jqueue-1.csv. "
         "File does not exist. It is possible the underlying files have been updated. SQLSTATE: KD001",
         "jqueue-1.csv is gone: it was removed or replaced meanwhile; read the files again"),
        (f"{CALLED}org.apache.spark.SparkException: {ABORTED}org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task "
         "failed while writing rows to file:/tmp/out.parquet. SQLSTATE: 58030\n\tat org.apache.X.y(X.scala:1)\n"
         "Caused by: java.io.IOException: No space left on device", "/tmp/out.parquet cannot be written: the disk"),
    ],
)  # fmt: skip
def test_a_cryptic_spark_error_is_explained_in_plain_words(text, said):
    assert said in one_line(raised(text, "Py4JJavaError", "py4j.protocol"))


@pytest.mark.parametrize(
    "text",
    [
        '[CAST_INVALID_INPUT] The value \'hunter2\' of the type "STRING" cannot be cast to "INT" because so.',
        "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record parsing: [hunter2].",
        "[PATH_NOT_FOUND] Path does not exist: s3a://key:hunter2@bucket/a.csv. SQLSTATE: 42K03",
        "[PATH_NOT_FOUND] Path does not exist: s3a://key:an@hunter2@bucket/a.csv. SQLSTATE: 42K03",
    ],
)
def test_errors_show_no_data_and_no_secrets(text):
    said = one_line(raised(text))
    assert said
    assert "hunter2" not in said


def test_a_lost_connection_to_spark_is_reported_as_its_end():
    assert one_line(raised("Answer from Java side is empty", "Py4JNetworkError", "py4j.protocol")).startswith(
        "Spark has ended"
    )
