"""Jobs on a schedule, and two workers that share it: each occurrence is run once, by one of them.

    python examples/cron_worker.py

A schedule is kept in the queue, and every worker that looks for jobs enqueues what is due. That needs no leader, and
the commit that enqueues an occurrence also moves the schedule on, so a second worker cannot do it again. A worker for
itself, from the root of the repository: `jqueue worker examples.cron_worker:worker queue.json`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.table import Table

from jqueue import Context, Worker, connect

WORKERS = 2
SEEN = 6  # runs to wait for
PATIENCE = 60  # seconds

worker = Worker(concurrency=4)


@worker.cron("*/2 * * * * *", timezone="Europe/Berlin")  # six fields: the first is for seconds
async def tick(ctx: Context) -> None:
    print("tick", ctx.headers["jqueue-scheduled-for"], flush=True)


@worker.cron("*/3 * * * * *", timezone="Asia/Kolkata", name="check", payload="disk")
async def check(what: str, ctx: Context) -> None:
    print("check", ctx.headers["jqueue-scheduled-for"], flush=True)


@worker.cron("30 2 * * MON-FRI", timezone="America/New_York")  # five fields, as in a crontab
async def nightly() -> None:
    """Usually not due during the demonstration."""


async def start(queue_path: str) -> Process:
    command = ["jqueue", "worker", "examples.cron_worker:worker", queue_path, "--log-level", "error"]
    root = Path(__file__).parents[1]
    return await asyncio.create_subprocess_exec(sys.executable, "-m", *command, cwd=root, stdout=PIPE)


async def listen(number: int, process: Process, runs: list[tuple[str, datetime, int]]) -> None:
    """Record the lines of a worker: the name of a schedule, and the time for which its job was enqueued."""
    assert process.stdout is not None
    async for line in process.stdout:
        name, occurrence = line.decode().split()
        runs.append((name, datetime.fromisoformat(occurrence), number))


async def run(queue_path: str, console: Console) -> tuple[list[tuple[str, datetime, int]], list[int]]:
    """Let the workers run until enough jobs have run. Returns what they ran, and their exit codes."""
    runs: list[tuple[str, datetime, int]] = []
    console.print(f"Starting {WORKERS} workers, until {SEEN} occurrences have run.")
    processes: list[Process] = []
    listening: list[asyncio.Task[None]] = []
    try:
        for number in range(1, WORKERS + 1):
            processes.append(await start(queue_path))
            listening.append(asyncio.create_task(listen(number, processes[-1], runs)))
        async with asyncio.timeout(PATIENCE):
            while len(runs) < SEEN:
                await asyncio.sleep(0.1)
        async with connect(queue_path) as queue:
            table = Table("schedule", "cron", "time zone", "next, local time", title="Cron entries in the queue")
            for entry in await queue.schedules():
                there = entry.next_at.astimezone(ZoneInfo(entry.timezone))
                table.add_row(entry.name, entry.cron, entry.timezone, there.isoformat(" ", "seconds"))
            console.print(table)
    finally:
        for each in processes:
            with suppress(ProcessLookupError):
                each.terminate()
        codes = [await each.wait() for each in processes]
        await asyncio.gather(*listening)
    return runs, codes


def main() -> int:
    for wanted in (signal.SIGINT, signal.SIGTERM):  # exit cleanly, and stop the processes started here
        signal.signal(wanted, lambda number, _: sys.exit(128 + number))
    console = Console(markup=False, highlight=False)
    with tempfile.TemporaryDirectory(prefix="jqueue-") as folder:
        runs, codes = asyncio.run(run(str(Path(folder, "queue.json")), console))
    table = Table("schedule", "occurrence, UTC", "in Berlin", "by worker", title="Occurrences that ran")
    for name, moment, number in sorted(runs):
        berlin = moment.astimezone(ZoneInfo("Europe/Berlin"))
        table.add_row(name, f"{moment:%H:%M:%S}", f"{berlin:%H:%M:%S}", str(number))
    console.print(table)
    twice = [occurrence for occurrence, times in Counter(run[:2] for run in runs).items() if times > 1]
    console.print(f"{len(runs)} occurrences, {WORKERS} workers, {len(twice)} run more than once. Exit codes: {codes}")
    return 1 if twice or any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
