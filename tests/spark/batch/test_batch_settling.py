"""Outcomes of jobs are settled in the queue, and checked there."""

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.errors import DuplicateJobError, QueueFullError
from jqueue.domain.limits import Limits
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.batch.outcomes import Outcome, plain_of_enqueue
from jqueue.spark.batch.range_results import RangeResult
from jqueue.spark.batch.report import BatchFailedError, BatchReport
from jqueue.spark.batch.settling import best_of, best_results, settle
from jqueue.worker import Exponential, Worker

worker = Worker()


@worker.handler("work", max_attempts=3, timeout=2, backoff=Exponential(base=1000, cap=1000))
async def work() -> None: ...


class Claimed:
    """A queue with claimed jobs."""

    def __init__(self, **options):
        self.queue = DirectQueue(InMemoryStorage(), **options)
        self.commits = 0

    async def jobs(self, count, **fields):
        for _ in range(count):
            await self.queue.enqueue("work", b"", **fields)
        return await self.queue.dequeue("work", batch_size=count)

    async def end(self, operations):
        self.commits += 1
        return await self.queue.apply_each(*operations)

    async def settle(self, jobs, *outcomes):
        known = best_of(outcomes)
        report = await settle(jobs, known, worker, self.end, SystemEntropy())
        return report, {job.id: job for job in (await self.queue.read_state()).jobs}


def of(job, kind, **said):
    return Outcome(job.id, job.attempt, kind, **said)


async def test_every_kind_of_outcome_in_one_commit():
    claimed = Claimed()
    jobs = await claimed.jobs(8)
    version = (await claimed.queue.read_state()).version
    report, left = await claimed.settle(
        jobs,
        of(jobs[0], "done"),
        of(jobs[1], "retried", delay=60, error="no"),
        of(jobs[2], "dead", error="never"),
        of(jobs[3], "snoozed", delay=60),
        of(jobs[4], "handed_back"),
        of(jobs[5], "killed", error="it ended"),
        of(jobs[6], "overdue"),
    )
    assert BatchReport(claimed=8, done=1, retried=3, dead=1, snoozed=1, handed_back=2, killed=2) == report
    assert version + 1 == (await claimed.queue.read_state()).version
    assert jobs[0].id not in left
    assert [None, "no", "never", None, None, "ProcessDied: it ended", _OVERDUE, None] == [
        None,
        *(left[job.id].error for job in jobs[1:]),
    ]
    assert [1, 1, 0, 0, 1, 1, 0] == [left[job.id].failures for job in jobs[1:]]
    assert JobStatus.DEAD is left[jobs[2].id].status
    scheduled = [left[job.id].run_at is not None for job in jobs[1:]]
    assert [True, False, True, False, True, True, False] == scheduled


_OVERDUE = "timed out after 2 s, and still ran after it was told to stop: its process was ended"


def test_jobs_that_are_done_and_enqueue_others_count_for_the_best_result_of_a_range():
    worse = RangeResult("range", 1, (Outcome("b", 1, "handed_back"), Outcome("c", 1, "handed_back")))
    added = tuple(Outcome(job_id, 1, "done", added=({"entrypoint": "next"},)) for job_id in "abc")
    better = RangeResult("range", 0, added)
    assert [{"range": better}] * 2 == [best_results(several) for several in ([worse, better], [better, worse])]


async def test_a_job_whose_process_ended_for_the_last_time_is_dead():
    claimed = Claimed()
    [job] = await claimed.jobs(1)
    for _ in range(2):
        await claimed.queue.nack(job)
        [job] = await claimed.queue.dequeue("work")
    report, left = await claimed.settle([job], of(job, "killed", error="it ended"))
    assert (1, 1) == (report.dead, report.killed)
    assert JobStatus.DEAD is left[job.id].status


async def test_a_lost_claim_changes_nothing_and_is_counted(caplog):
    claimed = Claimed()
    jobs = await claimed.jobs(5)
    await claimed.queue.requeue_stale(0)
    mine = await claimed.queue.dequeue("work", batch_size=3)
    report, left = await claimed.settle(jobs, *(of(job, "done") for job in jobs[:4]))
    assert BatchReport(claimed=5, lost=5) == report
    assert {job.id: job for job in mine}.items() <= left.items()
    assert 5 == len(left)
    assert 1 == caplog.text.count("lost before the batch ended")
    assert 1 == claimed.commits, "lost claims are not retried"


async def test_an_outcome_of_another_claim_is_ignored():
    claimed = Claimed()
    [job] = await claimed.jobs(1)
    report, _ = await claimed.settle([job], Outcome(job.id, job.attempt + 1, "done"))
    assert BatchReport(claimed=1, handed_back=1) == report


async def test_on_ack_jobs_are_added_in_the_same_commit():
    claimed = Claimed()
    jobs = await claimed.jobs(3)
    outcomes = [of(job, "done", added=(plain_of_enqueue(Enqueue("next", b"")),)) for job in jobs]
    report, left = await claimed.settle(jobs, *outcomes)
    assert BatchReport(claimed=3, done=3) == report
    assert ["next"] * 3 == [job.entrypoint for job in left.values()]
    assert 1 == claimed.commits


async def test_a_refused_on_ack_enqueue_fails_only_its_own_job():
    claimed = Claimed()
    await claimed.queue.enqueue("other", b"", unique_key="taken")
    jobs = await claimed.jobs(2)
    enqueue = Enqueue("next", b"", unique_key="taken", on_conflict="raise")
    report, left = await claimed.settle(
        jobs, of(jobs[0], "done"), of(jobs[1], "done", added=(plain_of_enqueue(enqueue),))
    )
    assert BatchReport(claimed=2, done=1, retried=1) == report
    assert DuplicateJobError.__name__ in (left[jobs[1].id].error or "")
    assert 2 == claimed.commits


async def test_a_job_whose_on_ack_enqueue_finds_the_queue_full_is_retried():
    claimed = Claimed(limits=Limits(blob_bytes=4000))
    jobs = await claimed.jobs(1)
    enqueue = Enqueue("next", b"x" * 4000)
    report, left = await claimed.settle(jobs, of(jobs[0], "done", added=(plain_of_enqueue(enqueue),)))
    assert BatchReport(claimed=1, retried=1) == report
    assert QueueFullError.__name__ in (left[jobs[0].id].error or "")


async def test_a_cancelled_job_is_removed_with_any_outcome():
    claimed = Claimed()
    jobs = await claimed.jobs(2)
    for job in jobs:
        await claimed.queue.cancel(job.id, running=True)
    report, left = await claimed.settle(jobs, of(jobs[0], "done"), of(jobs[1], "retried", error="no"))
    assert {} == left
    assert 2 == report.claimed == report.done + report.retried


@pytest.mark.parametrize("first", ["retried", "dead", "killed", "handed_back", "done"])
def test_a_successful_outcome_counts_before_others_of_the_same_job(first):
    one, two = Outcome("a", 1, first, error="one"), Outcome("a", 1, "done")
    assert "done" == best_of([one, two])["a"].kind == best_of([two, one])["a"].kind


def test_a_failed_outcome_counts_before_a_hand_back():
    one, two = Outcome("a", 1, "handed_back"), Outcome("a", 1, "retried")
    assert "retried" == best_of([one, two])["a"].kind == best_of([two, one])["a"].kind


def test_a_report_is_printed_in_plain_words():
    assert "no jobs were ready" == str(BatchReport(seconds=0.2))
    assert "1 job in 0.5 s: 1 done" == str(BatchReport(claimed=1, done=1, seconds=0.5))
    report = BatchReport(claimed=10_000, done=9_990, retried=8, dead=2, killed=3, seconds=1.834)
    assert "10,000 jobs in 1.83 s: 9,990 done, 8 to be tried again, 2 dead (3 ended their process)" == str(report)
    assert str(BatchReport(claimed=1, retried=1, killed=1)).endswith("1 to be tried again (1 ended its process)")
    error = BatchFailedError("the executors are gone", BatchReport(claimed=2, handed_back=2, seconds=2))
    assert "the executors are gone (2 jobs in 2 s: 2 handed back)" == str(error)
