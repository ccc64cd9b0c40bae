"""pailq on S3: an object for each job, which moves from prefix to prefix. 16 threads enqueue, and then 8 work.

It promises that a job is done at least once. With several workers some were claimed twice in nearly every run; how many
is told as `twice`, beside the figures, and only a job that is lost or left over is a failure. Fewer workers do more, as
each claim lists the queue and all try the oldest job: 2 do some 1.5 times the work of 8 (`"work_threads": 2`).

It runs in a bucket of its own, which it removes.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any
from uuid import uuid4

import boto3
from botocore.config import Config
from pail import Pail

ENQUEUE_THREADS = 16
WORK_THREADS = 8


def enqueue(queue: Pail, payloads: list[str]) -> None:
    for payload in payloads:
        queue.enqueue({"payload": payload})


def work(queue: Pail, jobs: int, finished: set[str]) -> list[str]:
    """Claim and ack until all jobs are done, and return their payloads."""
    seen = []
    while len(finished) < jobs:
        job = queue.claim()
        if job is not None:
            seen.append(job.payload["payload"])
            job.complete()
            finished.add(job.id)
    return seen


def connect(arguments: dict[str, Any], threads: int) -> Any:
    """Return a client with a connection for each thread; the default is ten."""
    return boto3.client(
        "s3",
        endpoint_url=arguments["url"],
        aws_access_key_id=arguments["access_key"],
        aws_secret_access_key=arguments["secret_key"],
        region_name=arguments["region"],
        config=Config(max_pool_connections=threads, proxies={}),
    )


def remove(client: Any, bucket: str) -> None:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", []):
            client.delete_object(Bucket=bucket, Key=item["Key"])
    client.delete_bucket(Bucket=bucket)


def measure(client: Any, bucket: str, arguments: dict[str, Any]) -> dict[str, float]:
    jobs = arguments["jobs"]
    enqueuing = arguments.get("enqueue_threads", ENQUEUE_THREADS)
    working = arguments.get("work_threads", WORK_THREADS)
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    queue, finished = Pail(bucket, client), set[str]()
    with ThreadPoolExecutor(max(enqueuing, working)) as pool:
        started = time.perf_counter()
        list(pool.map(enqueue, [queue] * enqueuing, [payloads[first::enqueuing] for first in range(enqueuing)]))
        enqueued = time.perf_counter()
        seen = list(chain.from_iterable(pool.map(work, [queue] * working, [jobs] * working, [finished] * working)))
        done = time.perf_counter()
    stats = queue.stats()
    if sorted(set(seen)) != payloads or stats.pending or stats.running or stats.failed:
        sys.exit(f"pailq: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} claims; {stats}")
    rates = {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}
    return {f"{name}_per_second": jobs / seconds for name, seconds in rates.items()} | {"twice": len(seen) - jobs}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    client, bucket = connect(arguments, max(ENQUEUE_THREADS, WORK_THREADS)), f"bench-{uuid4().hex}"
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="ready", Body=b"yes")  # the first one makes the server prepare its files
    try:
        print(json.dumps(measure(client, bucket, arguments)))
    finally:
        remove(client, bucket)


if __name__ == "__main__":
    main()
