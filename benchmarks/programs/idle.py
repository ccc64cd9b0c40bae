"""Time to the start of a job in an idle queue: from the call of enqueue until a waiting dequeue has returned the job.

The consumer waits in the same broker, or in a process of its own that polls. With `served`, one process commits for
both: the consumer, as a worker on a file does, or, on S3, a third one. With `worker`, the consumer is a worker, and the
job has started when its handler has. Clocks need not be compared: all processes of a machine share the monotonic one.
Beside it stands the time of a bare conditional put to the same store, or of a bare commit of the file.

Arguments: samples, other_process, poll_interval, served, worker, payload_bytes, and those of the storage. The consumer
is this program again, with `consumer`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from statistics import median
from typing import Any

from shared import ENTRYPOINT, arguments, bare_commits, broker_of, report, storage_of, wait_for_broker

from jqueue import BrokerQueue

WAIT = 60
QUIET = 0.3
"""Seconds after which a queue is idle again; a random share of the poll interval is added, so that no phase is kept."""


def queue_of(given: dict[str, Any], storage: Any) -> Any:
    """Return a broker with the poll interval of the arguments."""
    return BrokerQueue(storage, poll_interval=given["poll_interval"])


async def until_idle(given: dict[str, Any]) -> None:
    """Wait until the queue is idle, for a time unrelated to the last poll."""
    await asyncio.sleep(QUIET + random.random() * given["poll_interval"])


async def same_broker(given: dict[str, Any], queue: Any) -> list[float]:
    """Seconds to the start, when the consumer waits in the broker that the job is given to."""
    taken = []
    for _ in range(given["samples"]):
        waiting = asyncio.create_task(queue.dequeue(ENTRYPOINT, wait=WAIT))
        await until_idle(given)
        start = time.monotonic()
        enqueueing = asyncio.create_task(queue.enqueue(ENTRYPOINT, b"x"))
        [job] = await waiting
        taken.append(time.monotonic() - start)
        await enqueueing
        await queue.ack(job)
    return taken


async def consume(given: dict[str, Any]) -> None:
    """The consumer in another process: print the seconds that each job took to get here."""
    async with queue_of(given, storage_of(given)) as queue:
        await queue.read_state()
        if given.get("served") and given["storage"] == "file":
            queue.offer()
            await asyncio.to_thread(wait_for_broker, given)
        if given.get("worker"):
            await work(given, queue)
            return
        print("ready", flush=True)
        for _ in range(given["samples"]):
            [job] = await queue.dequeue(ENTRYPOINT, wait=WAIT)
            seconds = time.monotonic() - float(job.payload)
            await queue.ack(job)
            print(seconds, flush=True)


async def work(given: dict[str, Any], queue: Any) -> None:
    """Consume as a worker: print the seconds that each job took to get to its handler."""
    from jqueue.worker import Worker

    worker, left = Worker(), given["samples"]

    @worker.handler(ENTRYPOINT)
    async def see(payload: bytes) -> None:
        nonlocal left
        print(time.monotonic() - float(payload), flush=True)
        left -= 1
        if not left:
            worker.stop()

    print("ready", flush=True)
    await worker.run(queue)


async def other_process(given: dict[str, Any], queue: Any) -> tuple[list[float], list[float]]:
    """Seconds to the start in another process, and the part of it until enqueue had returned."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, __file__, json.dumps({**given, "consumer": True}), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    taken, enqueueing = [], []
    try:
        await child.stdout.readline()
        for _ in range(given["samples"]):
            await until_idle(given)
            start = time.monotonic()
            await queue.enqueue(ENTRYPOINT, repr(start).encode())
            enqueueing.append(time.monotonic() - start)
            taken.append(float(await child.stdout.readline()))
    finally:
        if child.returncode is None:
            try:
                await asyncio.wait_for(child.wait(), 5)
            except TimeoutError:
                child.kill()
                await child.wait()
    return taken, enqueueing


def measure(given: dict[str, Any]) -> dict[str, float]:
    """Medians in milliseconds, and the same in round trips of the store."""
    broker = broker_of(__file__, given) if given.get("served") and given["storage"] == "s3" else None
    try:
        return asyncio.run(measure_starts(given))
    finally:
        if broker is not None:
            broker.end()


async def measure_starts(given: dict[str, Any]) -> dict[str, float]:
    """The same, with the broker that is there."""
    storage = storage_of(given)
    async with queue_of(given, storage) as queue:
        [job] = (await asyncio.gather(queue.dequeue(ENTRYPOINT, wait=WAIT), queue.enqueue(ENTRYPOINT, b"x")))[0]
        await queue.ack(job)
        figures: dict[str, float] = {}
        if given["other_process"]:
            taken, enqueueing = await other_process(given, queue)
            figures["enqueue_milliseconds"] = 1000 * median(enqueueing)
        else:
            taken = await same_broker(given, queue)
        size = len((await storage.read())[0])
    if given["storage"] == "file":
        trip = 1 / bare_commits(given["folder"], size, 1.0).per_second
    else:
        from round_trip import seconds_of_a_put

        trip = await seconds_of_a_put(given, size)
    return {
        **figures,
        "start_milliseconds": 1000 * median(taken),
        "longest_start_milliseconds": 1000 * max(taken),
        "round_trip_milliseconds": 1000 * trip,
        "round_trips": median(taken) / trip,
        "round_trips_without_poll": (median(taken) - given["poll_interval"]) / trip,
    }


if __name__ == "__main__":
    if arguments().get("consumer"):
        asyncio.run(consume(arguments()))
    else:
        report(measure(arguments()))
