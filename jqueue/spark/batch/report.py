"""The results of a batch in numbers, and the error of a batch that could not be finished."""

from __future__ import annotations

from dataclasses import dataclass

from jqueue.domain.errors import JQueueError
from jqueue.domain.printable import counted

_SAID = {
    "done": "done",
    "retried": "to be tried again",
    "dead": "dead",
    "snoozed": "put off",
    "cancelled": "cancelled",
    "handed_back": "handed back",
    "lost": "lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Numbers of the jobs that a batch claimed. Each job counts in `claimed`, and once in `done` to `lost`.

    Attributes:
        claimed: all jobs of the batch.
        done: finished, and acked.
        retried: failed, and to be tried again.
        dead: failed for the last time, or discarded.
        snoozed: put off by their handler.
        cancelled: cancelled while they were claimed, and stopped or not begun.
        handed_back: given back unharmed, as they were not done.
        lost: no longer ours when the batch ended: another worker has them, or they were removed.
        killed: jobs among `retried` and `dead` whose handler ended its process, or did not stop.
        seconds: from the first call of the queue to the last.
    """

    claimed: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    snoozed: int = 0
    cancelled: int = 0
    handed_back: int = 0
    lost: int = 0
    killed: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if not self.claimed:
            return "no jobs were ready"
        counts = [f"{getattr(self, name):,} {words}" for name, words in _SAID.items() if getattr(self, name)]
        whose = "its" if self.killed == 1 else "their"
        killed = f" ({self.killed:,} ended {whose} process)" if self.killed else ""
        jobs = counted(self.claimed, "job")
        return f"{jobs} in {self.seconds:.3g} s: {', '.join(counts)}{killed}"


class BatchFailedError(JQueueError):
    """A batch could not be finished. Jobs that were done are acked, the others are handed back unharmed.

    Attributes:
        report: what became of the jobs.
        cause: the error that ended it.
    """

    def __init__(self, why: str, report: BatchReport, cause: BaseException | None = None) -> None:
        super().__init__(f"{why} ({report})")
        self.report = report
        self.cause = cause
