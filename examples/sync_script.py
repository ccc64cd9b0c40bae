"""A script without asyncio: threads enqueue, wait for results, and redrive dead jobs.

    python examples/sync_script.py

The script starts a worker in a process of its own. Three of its twelve jobs die, as nobody told the worker a rate for
their currency. The script looks at the dead, writes the rate, and redrives them. The worker alone, from the root of
the repository: `RATES=rates.json jqueue worker examples.sync_script:worker queue.json`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from jqueue import Exponential, JobFailedError, SyncQueue, Worker

PATIENCE = 30  # seconds


class Amount(BaseModel):
    number: int
    currency: str


worker = Worker(concurrency=4)


@worker.handler(max_attempts=2, backoff=Exponential(base=0.1, cap=1), keep_result=3600)
def to_euros(amount: Amount) -> float:  # no async: it runs in a thread
    rates: dict[str, float] = json.loads(Path(os.environ["RATES"]).read_text())
    return round(amount.number * rates[amount.currency], 2)


def convert(amounts: list[Amount]) -> dict[str, Amount]:
    """Enqueue from many threads: calls that come together share a commit. Returns the amounts by the ids of jobs."""

    with ThreadPoolExecutor(len(amounts)) as threads:
        jobs = threads.map(to_euros.enqueue_sync, amounts)
        return {job.id: amount for job, amount in zip(jobs, amounts, strict=True)}


def wait_for(job_ids: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the results of jobs, and the errors of dead jobs."""
    results, errors = {}, {}
    for job_id in job_ids:
        try:
            results[job_id] = to_euros.result_sync(job_id, timeout=PATIENCE)
        except JobFailedError as error:
            errors[job_id] = str(error.error)
    return results, errors


def run(folder: Path, console: Console) -> bool:
    rates = folder / "rates.json"
    rates.write_text(json.dumps({"USD": 0.9, "GBP": 1.2, "SEK": 0.09}))
    command = ["jqueue", "worker", "examples.sync_script:worker", str(folder / "queue.json"), "--log-level", "error"]
    working = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=Path(__file__).parents[1], env={**os.environ, "RATES": str(rates)}
    )
    try:
        with SyncQueue(folder / "queue.json") as queue:
            worker.bind(queue)
            amounts = [Amount(number=n, currency=c) for c in ("USD", "GBP", "SEK", "CHF") for n in (10, 20, 30)]
            jobs = convert(amounts)
            results, errors = wait_for(list(jobs))
            console.print(f"{len(jobs)} jobs enqueued by {len(amounts)} threads: {len(results)} results.")

            table = Table("dead job", "attempts", "last error", title=f"{len(errors)} dead letters")
            for dead in queue.read_state().dead_jobs():
                table.add_row(dead.id[:8], str(dead.attempt), dead.error)
            console.print(table)

            rates.write_text(json.dumps({**json.loads(rates.read_text()), "CHF": 1.05}))  # fixes the cause
            redriven = queue.redrive(entrypoint="to_euros")
            late, still = wait_for(list(errors))
            version = queue.stats().version
    finally:
        working.terminate()
        code = working.wait(PATIENCE)
    table = Table("amount", "euros", title=f"{redriven} jobs redriven")
    for job_id, euros in late.items():
        table.add_row(f"{jobs[job_id].number} {jobs[job_id].currency}", f"{euros:.2f}")
    console.print(table)
    console.print(f"{len(results) + len(late)} of {len(jobs)} amounts converted, in {version} commits of one file.")
    return not still and len(results) + len(late) == len(jobs) and redriven == len(errors) and code == 0


def main() -> int:
    for wanted in (signal.SIGINT, signal.SIGTERM):  # exit cleanly, and stop the processes started here
        signal.signal(wanted, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="jqueue-") as folder:
        return 0 if run(Path(folder), Console(markup=False, highlight=False)) else 1


if __name__ == "__main__":
    sys.exit(main())
