"""A batch on a deep queue: its partitions are ranges, which their tasks read and end."""

import asyncio

import pytest

from jqueue import BrokerQueue, DirectQueue, Limits, connect
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.batch.partition_rows import PartitionRows
from jqueue.spark.batch.range_results import RangeResult, end_ranges
from jqueue.spark.batch.range_rows import Entries
from jqueue.spark.batch.run import BatchFailedError
from jqueue.spark.batch.settling import outcome_of_job
from jqueue.worker import Context, Worker
from tests.spark.batch.batch_scenes import Session, run_batch
from tests.spark.batch.child_scenes import needs_fork

pytestmark = [pytest.mark.wide, needs_fork]

NUMBER = 1500


def make_worker(**options):
    worker = Worker(concurrency=5, cancel_grace=0.5)

    @worker.handler("work", max_attempts=3, **options)
    async def work(number: int, ctx: Context) -> int:
        if number == 7:
            import os

            os._exit(3)
        if number in (8, 1208):
            raise ValueError("on purpose")
        if number == 9:
            ctx.on_ack(Enqueue("next", b"after 9"))
        if number == 10:
            await asyncio.sleep(3600)
        return number

    return worker


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "queue.json")


def fill(url, numbers, **options):
    """Put jobs into segments, by a queue that keeps hardly any in its object."""

    async def add():
        async with connect(url, BrokerQueue, limits=Limits(batch_size=100, hot_bytes=1)) as queue:
            await queue.enqueue_many(Enqueue("work", b"%d" % number, **options) for number in numbers)

    asyncio.run(add())


async def jobs_in(url):
    return [job async for job in connect(url, DirectQueue).iterate_jobs()]


def left_in(url):
    """The jobs of the queue, by payload."""
    return {job.payload: job for job in asyncio.run(jobs_in(url))}


def test_each_partition_is_a_range_and_each_job_has_its_own_outcome(url):
    fill(url, (number for number in range(NUMBER) if number != 10))
    session = Session()
    report = run_batch(session, url, make_worker(), max_jobs=2000)
    assert [1] * 4 == session.partitions, "the claims alone were sent"
    assert (1499, 1496, 3, 1) == (report.claimed, report.done, report.retried, report.killed)
    left = left_in(url)
    assert {b"7", b"8", b"1208", b"after 9"} == left.keys()
    assert "ProcessDied: the process of the handler ended with exit code 3" == left[b"7"].error
    assert left[b"8"].error.startswith("ValueError: on purpose (")
    assert {(JobStatus.QUEUED, 1, 1)} == {
        (job.status, job.attempt, job.failures) for job in left.values() if job.entrypoint == "work"
    }


def test_a_failed_batch_acks_the_jobs_that_are_done_and_hands_back_the_others_unharmed(url):
    fill(url, range(100, NUMBER))

    def before(number):
        if number == 5:  # the second range; the last 252 jobs, too few for a range, are in four partitions
            raise ConnectionError("an executor was lost")

    with pytest.raises(BatchFailedError) as caught:
        run_batch(Session(before), url, make_worker(), max_jobs=1020, partitions=4)
    report = caught.value.report
    assert (1020, 508, 512) == (report.claimed, report.done, report.handed_back)
    left = left_in(url)
    assert {b"%d" % number for number in (*range(356, 868), *range(1120, NUMBER))} == left.keys()
    assert {(JobStatus.QUEUED, 0)} == {(job.status, job.failures) for job in left.values()}


def test_jobs_whose_results_are_kept_are_claimed_one_by_one(url):
    fill(url, range(100, 500))
    report = run_batch(Session(), url, make_worker(keep_result=600), max_jobs=400)
    assert (400, 400) == (report.claimed, report.done)
    jobs = asyncio.run(jobs_in(url))
    assert {(number, JobStatus.COMPLETED) for number in range(100, 500)} == {(job.result, job.status) for job in jobs}


def test_a_handler_that_hangs_without_a_timeout_has_that_of_the_batch(url):
    fill(url, range(10, 310))
    report = run_batch(Session(), url, make_worker(), max_jobs=300, timeout=1)
    assert (300, 299, 1) == (report.claimed, report.done, report.retried)
    [(payload, job)] = left_in(url).items()
    assert (b"10", "timed out after 1 s") == (payload, job.error)


def test_the_driver_tells_an_end_that_the_task_has_told_already_and_nothing_changes(url):
    fill(url, range(300))
    worker, entropy = make_worker(), SystemEntropy()

    async def check():
        async with connect(url, DirectQueue) as queue:
            claim = await queue.claim_range("work", 300)
            assert claim is not None
            blocks = [Entries(rows) async for rows in queue.read_packed_range(claim)]
            rows = PartitionRows.of_range(claim, blocks)
            assert list(rows.payloads) == [job.payload async for job in queue.read_range(claim)]
            outcomes = [outcome_of_job(rows.job(place), None, worker, entropy) for place in range(200, 300)]
            result = RangeResult.decode(RangeResult.of(claim, rows, outcomes).encode())
            assert len(result.others) == 300
            ended = result.operation(claim)
            assert ended is not None
            await queue.apply(ended)
            version = (await queue.read_state()).version

            async def end(operations):
                return await queue.apply_each(*operations)

            def decide(job, outcome):
                return outcome_of_job(job, outcome, worker, entropy)

            counts, kept, _ = await end_ranges([claim], {claim.id: result}, decide, end)
            assert ({"handed_back": 300}, []) == ({kind: count for kind, count in counts.items() if count}, kept)
            assert version == (await queue.read_state()).version

    asyncio.run(check())


def test_jobs_that_are_cancelled_while_a_range_is_at_work_are_stopped_or_not_begun(url, tmp_path):
    fill(url, range(300))
    worker, told = Worker(concurrency=2, claim_timeout=9), tmp_path / "told"

    @worker.handler("work", timeout=60)
    async def work(number: int) -> None:
        if number == 0:  # waits, and is told
            await cancel_some(url, {b"0", b"299"})
            try:
                await asyncio.Event().wait()
            finally:
                told.touch()
        if number == 1:  # holds the other slot until the first one is told
            while not told.exists():
                await asyncio.sleep(0.01)
        if number == 299:
            raise ValueError("it was begun")

    report = run_batch(Session(), url, worker, max_jobs=300, partitions=1)
    assert (300, 298, 2) == (report.claimed, report.done, report.cancelled)
    assert {} == left_in(url)


async def cancel_some(url, payloads):
    async with connect(url, DirectQueue) as queue:
        for job in [job async for job in queue.iterate_jobs() if job.payload in payloads]:
            await queue.cancel(job.id, running=True)
