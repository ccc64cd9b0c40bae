"""The error of jqueue is found in the text of an error of PySpark."""

import os

import pytest

from jqueue.domain.errors import InvalidURLError, JQueueError, QueueFullError
from jqueue.spark.errors import cause, one_line, plain_errors, shows_one_line

LINE = "option maxJobs takes a whole number from 1 to 10, got '0'"

TRACEBACK = """Traceback (most recent call last):
  File "/somewhere/jqueue/spark/option_parsing.py", line 66, in _converted
    raise InvalidJobError(f"option {name} takes {kind.words}{got}")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
CHAINED = f"""Traceback (most recent call last):
  File "/somewhere/x.py", line 1, in f
KeyError: 'x'

The above exception was the direct cause of the following exception:

{TRACEBACK}"""
PLAN = "\n=== Streaming Query ===\nIdentifier: [id = 42c6]\n\nLogical Plan:\nWriteToMicroBatchDataSource noop-table\n"
JAVA = """
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.applyOrElse(PythonRunner.scala:1136)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\t... 17 more
"""
PLANNED = "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: "
STREAM = (
    "[STREAM_FAILED] Query [id = 42c6] terminated with exception: Failed when Python streaming data source perform "
)
CALLED = "An error occurred while calling o86.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to "


def raised(text, name="AnalysisException", module="pyspark.errors.exceptions.captured"):
    return type(name, (Exception,), {"__module__": module})(text)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("jqueue.domain.errors.QueueFullError", QueueFullError),
        ("jqueue.spark.batch.task.BatchTaskError", JQueueError),
        ("jqueue.domain.errors.os", JQueueError),
    ],
)
@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (f"{PLANNED}{TRACEBACK}", "\n SQLSTATE: 38000"),
        (PLANNED, "\n SQLSTATE: 38000"),
        (f"An exception was thrown from the Python worker:\n{CHAINED}", ""),
        (f"{STREAM}latestOffset: {TRACEBACK}", f"\n SQLSTATE: 38000 SQLSTATE: XXKST{PLAN}"),
        (
            f"{CALLED}stage failure: Lost task 0.0: org.apache.spark.api.PythonException: {TRACEBACK}",
            f"\n{JAVA}",
        ),
    ],
)
def test_the_cause_is_the_error_that_jqueue_raised_with_its_message(name, kind, before, behind):
    error = raised(f"{before}{name}: {LINE}{behind}")
    found = cause(error)
    assert (kind, LINE) == (type(found), str(found))
    assert LINE == one_line(error)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (raised(f"{PLANNED}{TRACEBACK}shop.InvalidJobError: {LINE}\n"), f"shop.InvalidJobError: {LINE}"),
        (raised("[PATH_NOT_FOUND] No path: jqueue.x.Error: no. SQLSTATE: 42K03"),
         "[PATH_NOT_FOUND] No path: jqueue.x.Error: no."),
        (raised(f"{CALLED}stage failure:{JAVA}", "Py4JJavaError", "py4j.protocol"),
         " ".join(f"{CALLED}stage failure:".split())),
        (ValueError("no"), "no"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)  # fmt: skip
def test_an_error_from_elsewhere_has_no_cause_in_jqueue_and_is_one_line(error, line):
    assert (None, line) == (cause(error), one_line(error))


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
