"""A program that archives on Spark, and kills itself before or after one of its commits: a plan in JSON says which."""

import json
import os
import signal
import sys

from jqueue.spark import local_session
from jqueue.spark.lake import archive
from jqueue.spark.lake.store import LakeStore


def main():
    plan = json.loads(sys.argv[1])
    spark = local_session("killed", "local[2]")
    swap, left = LakeStore.swap, [plan["commit"]]

    async def killing(store, content, etag):
        left[0] -= 1
        if left[0] == 0 and not plan["after"]:
            os.kill(os.getpid(), signal.SIGKILL)
        told = await swap(store, content, etag)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return told

    LakeStore.swap = killing  # type: ignore[method-assign]
    archive(spark, plan["url"], plan["lake"])


if __name__ == "__main__":
    main()
