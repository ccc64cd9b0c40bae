"""One run of the pipeline on Spark as a program that a test kills: python -m tests.spark.spark_life '{"part": ...}'.

It prints a line before each of its moments, and goes on.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from jqueue.spark import HISTORY_SCHEMA, local_session, run_batch
from jqueue.worker import Worker

PLAN: dict[str, Any] = json.loads(sys.argv[1]) if __name__ == "__main__" else {}


def moment(name):
    print(name, flush=True)


def enqueue(spark):
    rows = spark.range(0, PLAN["rows"], 1, 4).selectExpr("cast(id as string) payload")
    moment("write")
    rows.write.format("jqueue").mode("append").options(entrypoint="a", txn_app_id="n", txn_version=1).save(PLAN["url"])


def stream(spark):
    def keep(frame, batch):
        ids = [row.id for row in frame.select("id").collect()]
        moment("begun")
        path = Path(PLAN["folder"]) / f"batch-{batch:05}.json"
        if not path.exists():
            path.with_suffix(".part").write_text(json.dumps(ids))
            path.with_suffix(".part").rename(path)
        moment("written")

    jobs = spark.readStream.format("jqueue").option("max_jobs_per_trigger", PLAN["size"]).load(PLAN["url"])
    writer = jobs.writeStream.foreachBatch(keep).option("checkpointLocation", f"{PLAN['folder']}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


def archive(spark):
    events = spark.readStream.schema(HISTORY_SCHEMA).json(f"{PLAN['url']}.history")
    writer = events.writeStream.option("checkpointLocation", f"{PLAN['folder']}.checkpoint").trigger(availableNow=True)
    moment("archive")
    writer.option("maxFilesPerTrigger", 1).start(PLAN["folder"], "parquet").awaitTermination()
    numbers = [row.number for row in spark.read.parquet(PLAN["folder"]).select("number").collect()]
    print(json.dumps(sorted(numbers)), flush=True)


def batch(spark):
    """Two ranges or more: the executor, and later the process of a task, are killed in the middle of one."""
    worker, folder = Worker(concurrency=1), PLAN["folder"]

    def once(name):
        mark = Path(folder) / name
        return not mark.exists() and (mark.touch() or True)

    def executor():
        process = os.getppid()
        while Path(f"/proc/{process}/comm").read_text().strip() != "java":
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        return process

    @worker.handler("work")
    async def work(number: int) -> None:
        with (Path(folder) / "diary").open("a") as diary:
            diary.write(f"{number}\n")
        if number == 100 and once("executor"):
            os.kill(executor(), signal.SIGKILL)
        if number == 500 and once("task"):
            os.kill(os.getppid(), signal.SIGKILL)

    report = run_batch(spark, PLAN["url"], worker, partitions=3)
    print(json.dumps([report.claimed, report.succeeded]), flush=True)


if __name__ == "__main__":
    settings: dict[str, str] = {"spark_speculation": "true"} if PLAN["part"] == "batch" else {}
    session = local_session("killed", PLAN.get("master", "local[2]"), **settings)
    session.sparkContext.setLogLevel("OFF")
    {"enqueue": enqueue, "stream": stream, "archive": archive, "batch": batch}[PLAN["part"]](session)
    session.stop()
