"""`WorkerTester`: runs a worker until nothing is left to do, jumping over all waiting, and tells what ran.

What runs is the worker itself: `Worker.run` with `drain=True`. It works on a queue that looks like the one of the test,
watches what is claimed and what becomes of it, and, when the worker finds nothing more to do, moves the clock to when
the next job is due and lets it look again. So delays, retries, limits and schedules are those of the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from jqueue.core.options import QueueOptions
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import check_integer
from jqueue.ports.queue import JobQueue
from jqueue.testing._watched_queue import WatchedQueue
from jqueue.testing.fake_clock import FakeClock
from jqueue.testing.work_report import Ran, RecordedError, WorkReport
from jqueue.worker.opening import opened

if TYPE_CHECKING:
    from jqueue.worker.worker import Worker


class WorkerTester:
    """Runs workers on a queue whose clock can be moved.

    Args:
        queue: any queue that goes by the clock.
        clock: the clock of the queue, and of its storage if that has one.

    Attributes:
        queue: the same.
        clock: the same.
        report: what ran last; None at first. It is there, too, when a run ended with an error.

    Raises:
        TypeError: it is no queue.
        ValueError: the queue goes by another clock.
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
        """Run a worker until nothing is left to do for it, and return what ran.

        Whenever nothing is ready, the clock jumps to when the next job is: its delay or the wait before its next try is
        over, or the rate limit of its entrypoint lets it in. Schedules whose time comes on the way fire. What handlers
        themselves sleep, and their timeouts, take real time.

        Args:
            worker: yours, with its handlers, middleware and lifespan.
            until: how far the clock may jump: a moment, or a timedelta or seconds from now. In the end it stands
                there, and all schedules have fired that were due by then. Without it, jobs are waited for however
                late they are, and schedules alone, which never end, are not.
            max_jobs: so many runs are enough, those of one job counted each.
            raise_errors: whether to raise what a job died of, when all is done. Errors of tries before the last, and
                of jobs that succeeded in the end, are only in the report.

        Returns:
            What ran, in the order in which it ended.

        Raises:
            RunawayError: more than `max_jobs` runs are needed: something never ends.
            BaseException: what the first dead job died of, as its handler raised it, or RecordedError. A note tells
                which job it was, and how many more died.
            RuntimeError: the worker runs already, or has no handlers.
        """
        self._check_clock()
        end = self._end(until)
        most = check_integer("max_jobs", max_jobs, 1, 2**31)
        watched = WatchedQueue(self.queue, self.clock, names=tuple(worker.handlers), end=end, most=most)
        try:
            await self._run(worker, watched)
        finally:
            self.report = report = WorkReport(tuple(watched.ran))
        if end is not None and end > self.clock.now():
            self.clock.move_to(end)
        if raise_errors:
            _raise_first([ran for ran in report if ran.outcome == "dead"])
        return report

    async def _run(self, worker: Worker, watched: WatchedQueue) -> None:
        """Run the worker, with what watches around every other middleware."""
        async with AsyncExitStack() as stack:
            await opened(self.queue, stack, tuple(worker.handlers))
            middlewares = worker._middlewares
            middlewares.insert(0, watched.watch)
            try:
                while True:
                    await worker.run(watched, drain=True, signals=False)
                    if not watched.forget_lost():
                        return  # otherwise the worker ended without knowing how late it is
            finally:
                middlewares.remove(watched.watch)

    def _end(self, until: Duration | datetime | None) -> datetime | None:
        if until is None:
            return None
        now = self.clock.now()
        if isinstance(until, datetime):
            if until.utcoffset() is None or until < now:
                raise InvalidJobError(f"until is {until.isoformat()}: it must have a time zone and not be past")
            return until
        return now + timedelta(seconds=to_seconds("until", until))

    def _check_clock(self) -> None:
        options = getattr(self.queue, "options", None)
        if isinstance(options, QueueOptions) and options.clock is not self.clock:
            raise ValueError("the queue goes by another clock: make it with clock=, and give it this very FakeClock")
        store_time = getattr(getattr(self.queue, "storage", None), "store_time", None)
        shown = None if store_time is None else store_time()
        if shown is not None and shown != self.clock.now():
            raise ValueError("the storage goes by another clock: make it with clock=, and this very FakeClock")


def _raise_first(dead: Sequence[Ran]) -> None:
    if not dead:
        return
    first = dead[0]
    error = first.error or RecordedError("no error was recorded")
    note = f"job {first.job_id} ({first.entrypoint}, attempt {first.attempt}) is dead"
    if len(dead) > 1:
        others = Counter(ran.entrypoint for ran in dead[1:])
        note += "; and more are: " + ", ".join(f"{count} of {name}" for name, count in others.items())
    error.add_note(f"{note}. With raise_errors=False, this is only reported.")
    raise error
