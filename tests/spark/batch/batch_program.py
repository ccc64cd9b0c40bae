"""A program that runs one batch, for tests that interrupt it or kill it: its worker is in the program itself."""

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
    """What the handler takes: a class of the program, which goes to executors along with its worker."""

    name: str
    seconds: float = 0.0


PIDS = os.environ.get("BATCH_PROGRAM_PIDS", "")
"""Where each handler leaves a file that names its job and its process."""


@worker.handler("work")
def work(order: Order) -> None:
    """Leave a file, and take so long."""
    Path(PIDS, f"{order.name}-{os.getpid()}").touch()
    time.sleep(order.seconds)


if __name__ == "__main__":
    spark = local_session("a batch", "local[2]")
    spark.sparkContext.setLogLevel("OFF")
    try:
        print(run_batch(spark, sys.argv[1], worker, partitions=4, claim_timeout=5), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
