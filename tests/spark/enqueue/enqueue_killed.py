"""One write of a DataFrame, called as Spark calls it, as a program for tests that kill it.

python enqueue_killed.py URL VERSION TASKS ROWS
"""

import sys

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from jqueue.spark.enqueue.committing import TaskAttempt
from jqueue.spark.enqueue.writing import BulkWriter


def main(url, version, tasks, rows):
    options = {"path": url, "entrypoint": "resize", "txnAppId": "killed", "txnVersion": version}
    writer = BulkWriter(options, StructType([StructField("payload", BinaryType())]), False)
    reports = []
    for task in range(int(tasks)):
        payloads = [b"%d-%d-%d" % (int(version), task, row) for row in range(int(rows))]
        batch = pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary())], names=["payload"])
        reports.append(writer.stage(iter([batch]), TaskAttempt(task, task)))
    writer.commit(reports)


if __name__ == "__main__":
    main(*sys.argv[1:])
