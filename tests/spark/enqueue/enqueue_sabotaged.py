"""A bulk enqueue or a streaming query with a planned fault, such as killing its own driver, as a program for tests.

python enqueue_sabotaged.py '{"url": "queue.json", "point": "after commit", "deed": "kill driver", ...}'
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from pyspark import TaskContext

from jqueue.spark.datasource import JQueueDataSource
from jqueue.spark.enqueue.sink import StreamSink
from jqueue.spark.enqueue.writing import BulkWriter
from jqueue.spark.session import local_session

PLAN = {
    "master": "local[2]",
    "settings": {},
    "options": {},
    "point": None,  # "staged", "before commit" or "after commit"
    "deed": None,  # "raise", "stall", "kill executor" or "kill driver"
    "folder": None,  # the input folder of a stream
    "marker": None,  # a file that exists once the deed is done
    "attempts": None,  # a folder in which each attempt to stage leaves a file named after its partition and attempt
    "driver": os.getpid(),
    **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"),
}


def java_above():
    """The process id of the Java process above this worker."""
    process = os.getppid()
    while True:
        with open(f"/proc/{process}/stat") as status:
            name, _, rest = status.read().rpartition(")")
        if name.endswith("(java"):
            return process
        process = int(rest.split()[1])


def staged():
    """Record the attempt of a task that has staged its rows, and apply the fault."""
    context = TaskContext.get()
    if context is not None and PLAN["attempts"] is not None:
        Path(PLAN["attempts"], f"{context.partitionId()}-{context.attemptNumber()}").touch()
    strike("staged")


def strike(point):
    """Do the planned deed once, if this is its point."""
    context = TaskContext.get()
    if PLAN["point"] != point or (context is not None and context.partitionId() != 0):
        return
    try:
        os.close(os.open(PLAN["marker"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if PLAN["deed"] == "raise":
        raise RuntimeError("sabotage")
    if PLAN["deed"] == "kill executor":
        os.kill(java_above(), signal.SIGKILL)
    if PLAN["deed"] == "kill driver":
        for process in (java_above(), PLAN["driver"]):
            os.kill(process, signal.SIGKILL)
    time.sleep(1000)  # until this process is killed


class SabotagedWriter(BulkWriter):
    def write(self, iterator):
        report = super().write(iterator)
        staged()
        return report

    def commit(self, messages):
        strike("before commit")
        super().commit(messages)
        strike("after commit")


class SabotagedSink(StreamSink):
    def write(self, iterator):
        report = super().write(iterator)
        staged()
        return report

    def commit(self, messages, batchId):
        strike("before commit")
        super().commit(messages, batchId)
        strike("after commit")


class Sabotaged(JQueueDataSource):
    @classmethod
    def name(cls):
        return "sabotaged"

    def writer(self, schema, overwrite):
        return SabotagedWriter(self.options, schema, overwrite)

    def streamWriter(self, schema, overwrite):
        return SabotagedSink(self.options, schema, overwrite)


def main():
    spark = local_session("sabotaged", PLAN["master"], **PLAN["settings"])
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Sabotaged)
    if PLAN["folder"] is None:
        rows = spark.range(0, 4000, 1, 4).selectExpr("cast(id as string) payload")
        rows.write.format("sabotaged").mode("append").options(entrypoint="a", **PLAN["options"]).save(PLAN["url"])
    else:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(PLAN["folder"])
        stream = lines.selectExpr("value payload").writeStream.format("sabotaged").trigger(availableNow=True)
        stream.options(entrypoint="a", **PLAN["options"]).start(PLAN["url"]).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
