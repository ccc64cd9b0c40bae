"""A program that runs one batch with its own worker, for tests that interrupt or kill it."""

import os
import sys
import time
from pathlib import Path

from pydantic import BaseModel

from jqueue.spark.batch.run import run_batch
from jqueue.spark.session import local_session
from jqueue.worker import Worker

worker = Worker(concurrency=3)


class Order(BaseModel):
    """The payload of the handler: a class of the main program, which is sent to executors with the worker."""

    name: str
    seconds: float = 0.0


PIDS = os.environ.get("BATCH_PROGRAM_PIDS", "")
"""The folder in which each handler leaves a file named after its job and its process."""


@worker.handler("work")
def work(order: Order) -> None:
    """Leave a file, and sleep for the given seconds."""
    Path(PIDS, f"{order.name}-{os.getpid()}").touch()
    time.sleep(order.seconds)


if __name__ == "__main__":
    spark = local_session("a batch", "local[2]")
    spark.sparkContext.setLogLevel("OFF")
    try:
        print(run_batch(spark, sys.argv[1], worker, partitions=4, claim_timeout=5), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
