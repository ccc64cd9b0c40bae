"""A streaming query on Spark in its own process, which may be killed.

    python -m tests.spark.stream.spark_child queue.json checkpoint out 100

The last argument is the size of a batch. It prints its progress, and writes the ids of each batch into a file once.
"""

import json
import sys
from pathlib import Path

from jqueue.spark.session import local_session


def main(url: str, checkpoint: str, out: str, size: str) -> None:
    """Run the query once."""
    spark = local_session("killed", "local[2]")
    spark.sparkContext.setLogLevel("OFF")

    def keep(frame, batch):
        ids = [row.id for row in frame.select("id").collect()]
        print("begun", flush=True)
        path = Path(out) / f"batch-{batch:05}.json"
        if not path.exists():
            aside = path.with_suffix(".part")
            aside.write_text(json.dumps(ids))
            aside.rename(path)
        print("written", flush=True)

    stream = spark.readStream.format("jqueue").option("maxJobsPerTrigger", size).load(url)
    writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    print("start", flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
