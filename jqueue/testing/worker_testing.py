"""`WorkerTester`: runs a worker until nothing is left to do, skips all waiting, and reports what ran.

The tester runs the real worker: `Worker.run` with `drain=True`, on a wrapper around the queue of the test. The wrapper
watches claims and their outcomes. When the worker finds no job, the wrapper moves the clock to the time at which the
next one is due, and lets the worker look again. So delays, retries, limits and schedules are those of the queue.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import check_integer
from jqueue.ports.queue import JobQueue
from jqueue.runtime.queue_options import QueueOptions
from jqueue.testing._inline_queue import InlineQueue
from jqueue.testing._watched_queue import WatchedQueue
from jqueue.testing.fake_clock import FakeClock
from jqueue.testing.work_report import Ran, RecordedError, WorkReport
from jqueue.worker.queue_health import open_queue

if TYPE_CHECKING:
    from jqueue.worker.worker import Worker


class WorkerTester:
    """Runs workers on a queue whose clock can be moved.

    Args:
        queue: any queue that goes by `clock`.
        clock: the clock of the queue, and of its storage if that has one.

    Attributes:
        queue: the queue given.
        clock: the clock given.
        report: report of the last run, None before the first. It is set even if the run raised an error.

    Raises:
        TypeError: `queue` is not a queue.
        ValueError: the queue or its storage goes by another clock.
    """

    def __init__(self, queue: JobQueue, clock: FakeClock) -> None:
        if not isinstance(queue, JobQueue):
            raise TypeError(f"a WorkerTester needs a queue, got {type(queue).__name__}")
        self.queue = queue
        self.clock = clock
        self.report: WorkReport | None = None
        self._check_clock()

    async def run_until_idle(
        self,
        worker: Worker,
        *,
        until: Duration | datetime | None = None,
        max_jobs: int = 1000,
        raise_errors: bool = True,
    ) -> WorkReport:
        """Run a worker until nothing is left for it to do, and return a report of what ran.

        When no job is ready, the clock jumps to the time of the next one: its delay ends, its next try is due, or the
        rate limit of its entrypoint allows it. Sleeps inside handlers, and handler timeouts, take real time.

        The cron entries of the worker never end, so they fire only in a run with `until`. Any other run takes them out
        of the queue.

        Args:
            worker: your worker, with its handlers, middleware and lifespan.
            until: limit for the clock: a moment, or a timedelta or seconds from now. At the end the clock shows this
                time, and all schedules due by then have fired. Without it, the clock goes to every job, however late
                it is due.
            max_jobs: largest number of runs; a retried job counts once for each try.
            raise_errors: True to raise, at the end, the error of the first job that died. Errors of earlier tries,
                and of jobs that succeeded in the end, are only in the report.

        Returns:
            Each run, in the order in which the runs ended.

        Raises:
            RunawayError: `max_jobs` runs were not enough, or the clock jumped 10,000 times without a job: something
                never ends.
            BaseException: the error of the first dead job, as its handler raised it, or RecordedError. A note names
                the job, and counts the other dead jobs.
            RuntimeError: the worker is running already, or has no handlers.
        """
        self._check_clock()
        end = self._end(until)
        most = check_integer("max_jobs", max_jobs, 1, 2**31)
        watched = WatchedQueue(self.queue, self.clock, names=tuple(worker.handlers), end=end, most=most)
        try:
            await self._run(worker, watched, with_crons=end is not None)
        finally:
            self.report = report = WorkReport(tuple(watched.ran))
        if end is not None and end > self.clock.now():
            self.clock.move_to(end)
        if raise_errors:
            _raise_first([ran for ran in report if ran.outcome == "dead"])
        return report

    @contextmanager
    def inline(self, worker: Worker, *, raise_errors: bool = True) -> Iterator[Any]:
        """Bind a worker to a queue whose jobs run at once, during the block. Yields that queue.

        A call that adds jobs, as `handler.enqueue(...)` does, first adds them to the queue of this tester. Then it does
        `run_until_idle(worker)`: delays and retries are skipped, and jobs that the handlers add run too.

        Args:
            worker: your worker, with its handlers, middleware and lifespan. It is bound to its former queue again
                after the block.
            raise_errors: True to have that call raise the error of the first job that died. No call raises it in your
                program, where the job runs elsewhere. With False, the error is only in `report`.
        """
        run = functools.partial(self.run_until_idle, worker, raise_errors=raise_errors)
        queue = InlineQueue(self.queue, worker, run)
        before = worker._queue  # noqa: SLF001
        worker.bind(queue)
        try:
            yield queue
        finally:
            worker._queue = before  # noqa: SLF001

    async def _run(self, worker: Worker, watched: WatchedQueue, *, with_crons: bool) -> None:
        """Run the worker with the watching middleware outside all others, and with or without its cron entries."""
        async with AsyncExitStack() as stack:
            await open_queue(self.queue, stack, tuple(worker.handlers))
            middlewares, crons = worker._middlewares, worker.crons  # noqa: SLF001 - the watching one goes first
            if not with_crons:
                for cron in crons if self.queue.capabilities.schedules else ():
                    await self.queue.unschedule(cron.name)
                worker.crons = []
            middlewares.insert(0, watched.watch)
            try:
                while True:
                    await worker.run(watched, drain=True, signals=False)
                    if not watched.forget_lost():
                        return  # otherwise run again: lost jobs seemed held, and kept the clock from moving
            finally:
                middlewares.remove(watched.watch)
                worker.crons = crons

    def _end(self, until: Duration | datetime | None) -> datetime | None:
        if until is None:
            return None
        now = self.clock.now()
        if isinstance(until, datetime):
            if until.utcoffset() is None or until < now:
                raise InvalidJobError(
                    f"until is {until.isoformat()}: it must have a time zone and must not be in the past"
                )
            return until
        return now + timedelta(seconds=to_seconds("until", until))

    def _check_clock(self) -> None:
        options = getattr(self.queue, "options", None)
        if isinstance(options, QueueOptions) and options.clock is not self.clock:
            raise ValueError("the queue has another clock: create it with clock= and the FakeClock of this tester")
        store_time = getattr(getattr(self.queue, "storage", None), "store_time", None)
        shown = None if store_time is None else store_time()
        if shown is not None and shown != self.clock.now():
            raise ValueError("the storage has another clock: create it with clock= and the FakeClock of this tester")


def _raise_first(dead: Sequence[Ran]) -> None:
    if not dead:
        return
    first = dead[0]
    error = first.error or RecordedError("no error was recorded")
    note = f"job {first.job_id} ({first.entrypoint}, attempt {first.attempt}) is dead"
    if len(dead) > 1:
        others = Counter(ran.entrypoint for ran in dead[1:])
        note += "; more dead jobs: " + ", ".join(f"{count} of {name}" for name, count in others.items())
    error.add_note(f"{note}. With raise_errors=False, dead jobs are only reported.")
    raise error
