"""A job that enqueues jobs, within limits, and a job that sums up their results.

    python examples/fan_out.py

`crawl` hands out a `fetch` for each page and a `summary`, in the very commit that finishes it: all of them are there,
or none is and it is tried again. Two workers do them, and the limits hold over both: never more than 2 fetches from one
host at a time, nor 6 in all, nor more than 10 begun within any second. A worker for itself, from the root of the
repository: `jqueue worker examples.fan_out:worker queue.json`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from jqueue import Context, Rate, ResultTimeoutError, Snooze, Worker, connect

AT_ONCE, AT_ONCE_FROM_ONE_HOST, PER_SECOND = 6, 2, 10
HOSTS, PAGES_OF_EACH = ("alpha.example", "beta.example", "gamma.example", "delta.example"), 6
KEPT = 3600  # seconds, for the results
PATIENCE = 60

worker = Worker(concurrency=4)  # of each worker: two are needed to use the limits up


class Page(BaseModel):
    host: str
    number: int


class Fetched(BaseModel):
    """Result of a fetch: the times of its claim, begin and end, and its process."""

    host: str
    claimed: float
    began: float
    ended: float
    process: int


@worker.handler("fetch", max_running=AT_ONCE, rate=Rate(PER_SECOND, per=1), concurrency_limit=AT_ONCE_FROM_ONE_HOST)
async def fetch(page: Page, ctx: Context) -> Fetched:
    assert ctx.job.heartbeat_at is not None  # a claim begins with a heartbeat
    began = time.time()
    await asyncio.sleep(0.2)  # as long as it takes to fetch a page
    claimed = ctx.job.heartbeat_at.timestamp()
    return Fetched(host=page.host, claimed=claimed, began=began, ended=time.time(), process=os.getpid())


@worker.handler("crawl", keep_result=KEPT)
async def crawl(hosts: list[str], ctx: Context) -> str:
    pages = [Page(host=host, number=number) for number in range(PAGES_OF_EACH) for host in hosts]
    ids = [f"{ctx.job.id}/{page.host}/{page.number}" for page in pages]
    summary_id = f"{ctx.job.id}/summary"
    ctx.on_ack(
        *(
            fetch.using(job_id=job_id, concurrency_key=page.host, keep_result=KEPT).call(page)
            for job_id, page in zip(ids, pages, strict=True)
        ),
        summary.using(job_id=summary_id).call(ids),
    )
    return summary_id


@worker.handler("summary", keep_result=KEPT)
async def summary(children: list[str], ctx: Context) -> list[Fetched]:
    try:
        return [await fetch.using(ctx.queue).result(child, timeout=0) for child in children]
    except ResultTimeoutError:
        raise Snooze(0.3) from None  # they are not done: look again later, and count no failure


def most_at_once(fetched: list[Fetched]) -> int:
    """Return the largest number of fetches that ran at the same time."""
    return max(sum(other.began <= one.began < other.ended for other in fetched) for one in fetched)


def most_in_a_second(fetched: list[Fetched]) -> int:
    """Return the largest number of fetches claimed within any second."""
    return max(sum(one.claimed <= other.claimed < one.claimed + 1 for other in fetched) for one in fetched)


async def run(queue_path: str) -> list[Fetched]:
    async with connect(queue_path) as queue:
        job = await crawl.using(queue).enqueue(list(HOSTS))
        summary_id = await crawl.using(queue).result(job, timeout=PATIENCE)
        fetched: list[Fetched] = await summary.using(queue).result(summary_id, timeout=PATIENCE)
        return fetched


def main() -> int:
    for wanted in (signal.SIGINT, signal.SIGTERM):  # exit cleanly, and stop the processes started here
        signal.signal(wanted, lambda number, _: sys.exit(128 + number))
    console = Console(markup=False, highlight=False)
    with tempfile.TemporaryDirectory(prefix="jqueue-") as folder:
        queue_path = os.path.join(folder, "queue.json")
        command = ["jqueue", "worker", "examples.fan_out:worker", queue_path, "--log-level", "error"]
        root = Path(__file__).parents[1]
        workers: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(2):
                workers.append(subprocess.Popen([sys.executable, "-m", *command], cwd=root))
            fetched = asyncio.run(run(queue_path))
        finally:
            for each in workers:
                each.terminate()
            codes = [each.wait(PATIENCE) for each in workers]
    table = Table("host", "pages", "most at once", "processes")
    of_host = {host: [page for page in fetched if page.host == host] for host in HOSTS}
    for host, pages in of_host.items():
        table.add_row(host, str(len(pages)), str(most_at_once(pages)), str(len({page.process for page in pages})))
    console.print(table)
    figures = most_at_once(fetched), max(map(most_at_once, of_host.values())), most_in_a_second(fetched)
    limits = AT_ONCE, AT_ONCE_FROM_ONE_HOST, PER_SECOND
    console.print(f"{len(fetched)} pages by 2 workers. Most at once, most from one host, most begun in a second:")
    console.print(f"{', '.join(map(str, figures))}; the limits were {', '.join(map(str, limits))}.")
    kept = all(figure <= limit for figure, limit in zip(figures, limits, strict=True))
    return 0 if kept and len(fetched) == len(HOSTS) * PAGES_OF_EACH and not any(codes) else 1


if __name__ == "__main__":
    sys.exit(main())
