"""The driver of a batch before, during and after the Spark job. A small class imitates the Spark session."""

import asyncio
import os
import re
import time
from collections import Counter
from typing import Any

import pytest

from jqueue import DirectQueue, connect
from jqueue.domain.errors import InvalidJobError, InvalidURLError
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.runtime.system import process_name
from jqueue.spark.batch.run import BatchFailedError, BatchReport
from jqueue.worker import Context, Rate, Worker
from tests.spark.batch.batch_scenes import (
    Session,
    enqueue,
    make_worker,
    names_beside,
    on_queue,
    run_batch,
    state_of,
    works,
)
from tests.spark.batch.child_scenes import needs_fork

pytestmark = [pytest.mark.wide, needs_fork]


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "queue.json")


def test_an_outdated_spark_is_refused_before_any_claim(url):
    session = Session(lambda number: pytest.fail("Spark was asked"))
    session.version = "4.1.4"
    with pytest.raises(ImportError, match=r"jqueue needs PySpark 4\.2 or newer, but this is '4\.1\.4'"):
        run_batch(session, url, make_worker())
    assert not os.path.exists(url)


# Success


def test_jobs_are_claimed_in_one_commit_and_ended_in_another(url):
    enqueue(url, *works(*[b""] * 20, b"kill", b"fail"))
    version = state_of(url).version
    session = Session()
    report = run_batch(session, url, make_worker())
    assert (22, 20, 2, 1) == (report.claimed, report.done, report.retried, report.killed)
    state = state_of(url)
    assert version + 2 == state.version
    assert {b"kill", b"fail"} == {job.payload for job in state.jobs}
    assert [(JobStatus.QUEUED, 1, 1)] * 2 == [(job.status, job.failures, job.attempt) for job in state.jobs]
    errors = {job.payload: job.error for job in state.jobs}
    assert "ProcessDied: the process of the handler ended with exit code 1" == errors[b"kill"]
    assert [] == names_beside(url)
    assert [] == session.tags
    assert [6, 6, 5, 5] == session.partitions


def test_only_jobs_with_a_handler_or_of_the_given_entrypoints_are_claimed(url):
    worker = make_worker()
    worker.handler("more")(worker.handlers["work"])
    enqueue(url, *works(b""), Enqueue("more", b""), Enqueue("stranger", b""))
    assert 1 == run_batch(Session(), url, worker, entrypoint="more").done
    assert ["stranger", "work"] == sorted(job.entrypoint for job in state_of(url).jobs)
    assert 1 == run_batch(Session(), url, worker, entrypoint=["more", "work"]).done
    assert [("stranger", 0)] == [(job.entrypoint, job.attempt) for job in state_of(url).jobs]


def test_max_jobs_limits_the_claims_to_the_first_jobs(url):
    enqueue(url, *(Enqueue("work", b"%d" % number, priority=-number) for number in range(10)))
    assert 3 == run_batch(Session(), url, make_worker(), max_jobs=3).done
    assert {b"%d" % number for number in range(7)} == {job.payload for job in state_of(url).jobs}


def test_the_first_partition_has_the_first_jobs(url, tmp_path):
    diary, worker = tmp_path / "diary", Worker(concurrency=1)

    @worker.handler("work")
    async def work(number: int) -> None:
        with diary.open("a") as file:
            file.write(f"{number}\n")

    enqueue(url, *(Enqueue("work", b"%d" % number, priority=number) for number in range(9)))
    run_batch(Session(), url, worker, partitions=3)
    assert list(map(str, range(9))) == diary.read_text().split()


def test_a_batch_without_ready_jobs_does_not_use_spark_and_writes_nothing(url):
    enqueue(url, Enqueue("work", b"", delay=60))
    version = state_of(url).version
    report = run_batch(Session(lambda number: pytest.fail("Spark was asked")), url, make_worker())
    assert (0, "no jobs were ready") == (report.claimed, str(report))
    assert version == state_of(url).version
    assert [] == names_beside(url)


def test_limits_and_schedules_are_declared_before_jobs_are_claimed(url):
    worker = Worker()

    @worker.handler("work", max_running=2, rate=Rate(100, per=60))
    async def work() -> None: ...

    @worker.handler("other", max_running=1)
    async def other() -> None: ...

    @worker.cron("0 3 * * *")
    async def nightly() -> None: ...

    enqueue(url, *works(*[b""] * 5))
    assert 2 == run_batch(Session(), url, worker, entrypoint=["work", "nightly"]).claimed
    state = state_of(url)
    assert (2, 100) == (state.entrypoints["work"].max_running, state.entrypoints["work"].rate)
    assert "other" not in state.entrypoints, "nothing is set for entrypoints outside the batch"
    assert ["nightly"] == list(state.schedules)


def test_claims_have_the_worker_its_driver_and_the_batch_as_holder_and_its_timeout(url):
    seen = []
    enqueue(url, *works(b"", b""))
    run_batch(Session(lambda number: seen.extend(state_of(url).jobs)), url, make_worker(), claim_timeout=77)
    assert {77.0} == {job.claim_timeout for job in seen}
    assert all(re.fullmatch(rf"worker@{process_name()} outcomes-[0-9a-f-]+", job.holder) for job in seen)
    enqueue(url, *works(b""))
    run_batch(Session(lambda number: seen.extend(state_of(url).jobs)), url, make_worker(claim_timeout=55))
    assert 55.0 == seen[-1].claim_timeout


def test_claims_are_kept_alive_while_spark_works(url):
    def rival(number):
        until = time.monotonic() + 2.5
        queue = connect(url, DirectQueue)

        async def go():
            while time.monotonic() < until:
                assert [] == await queue.dequeue("work"), "a job with heartbeats is not claimed again"
                await asyncio.sleep(0.05)

        asyncio.run(go())

    enqueue(url, *works(b"", b""))
    assert BatchReport(claimed=2, done=2) == timeless(
        run_batch(Session(rival), url, make_worker(), claim_timeout=1, partitions=1)
    )


def timeless(report):
    assert report.seconds > 0
    return BatchReport(**{**{name: getattr(report, name) for name in report.__dataclass_fields__}, "seconds": 0.0})


def test_progress_is_reported_from_zero_to_all_jobs(url):
    told: list[tuple[int, int]] = []
    enqueue(url, *works(*[b""] * 4))

    def before(number):
        while not told:
            time.sleep(0.01)

    run_batch(Session(before), url, make_worker(), progress=lambda done, total: told.append((done, total)))
    assert (0, 4) == told[0]
    assert (4, 4) == told[-1]
    assert sorted(told) == told


def test_results_and_on_ack_jobs_reach_the_queue(url):
    worker = Worker()

    @worker.handler("work", keep_result=60)
    async def work(number: int, ctx: Context) -> int:
        ctx.on_ack(Enqueue("next", b"%d" % number))
        return 2 * number

    enqueue(url, *(worker.handlers["work"].operation(number) for number in range(3)))
    assert 3 == run_batch(Session(), url, worker).done
    jobs = state_of(url).jobs
    assert {0, 2, 4} == {job.result for job in jobs if job.status is JobStatus.COMPLETED}
    assert {b"0", b"1", b"2"} == {job.payload for job in jobs if job.entrypoint == "next"}


# Failure


def fails_at(partition, error):
    def before(number):
        if number == partition:
            raise error

    return before


def test_finished_jobs_are_acked_and_others_handed_back_uncharged_when_spark_fails(url):
    enqueue(url, *works(*[b""] * 6, b"kill", b""))
    session = Session(fails_at(2, RuntimeError("Job aborted due to stage failure:\nlong story")))
    with pytest.raises(BatchFailedError) as caught:
        run_batch(session, url, make_worker(), partitions=4)
    assert BatchReport(claimed=8, done=4, handed_back=4) == timeless(caught.value.report)
    assert re.fullmatch(
        r"Job aborted due to stage failure: long story \(8 jobs in .* s: 4 done, 4 handed back\)", str(caught.value)
    )
    assert isinstance(caught.value.cause, RuntimeError)
    jobs = state_of(url).jobs
    assert [(JobStatus.QUEUED, 1, 0, None)] * 4 == [(job.status, job.attempt, job.failures, job.error) for job in jobs]
    assert [] == names_beside(url)
    assert 1 == len(session.interrupted)
    assert 4 == run_batch(Session(), url, make_worker()).claimed


def test_ctrl_c_stops_spark_and_hands_back_unfinished_jobs(url, caplog):
    enqueue(url, *works(*[b""] * 6))
    session = Session(fails_at(1, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run_batch(session, url, make_worker(), partitions=3)
    jobs = state_of(url).jobs
    assert [(JobStatus.QUEUED, 0)] * 4 == [(job.status, job.failures) for job in jobs]
    assert 1 == len(session.interrupted)
    assert [] == session.tags == names_beside(url)
    assert "a batch was interrupted: 6 jobs" in caplog.text


def test_a_worker_that_fails_on_executors_gives_a_one_line_error_and_charges_no_job(url):
    worker = make_worker()

    @worker.lifespan
    def lifespan():
        raise ConnectionError("the database is away")

    enqueue(url, *works(b"", b""))
    with pytest.raises(BatchFailedError, match=r"^the worker failed: ConnectionError: the database is away") as caught:
        run_batch(Session(), url, worker)
    assert "\n" not in str(caught.value)
    assert [(JobStatus.QUEUED, 0)] * 2 == [(job.status, job.failures) for job in state_of(url).jobs]


def test_claims_lost_during_a_batch_are_counted_and_commit_nothing(url):
    enqueue(url, *works(*[b""] * 3))

    def before(number):
        if number == 0:
            on_queue(url, "queue.requeue_stale(0)")
            on_queue(url, "queue.dequeue('work', batch_size=2)")

    report = run_batch(Session(before), url, make_worker(), partitions=1)
    assert BatchReport(claimed=3, lost=3) == timeless(report)
    assert Counter({JobStatus.IN_PROGRESS: 2, JobStatus.QUEUED: 1}) == Counter(job.status for job in state_of(url).jobs)


@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 3)], ids=["gone", "cut short"])
def test_jobs_with_unreadable_staged_outcomes_are_handed_back_and_others_acked(url, damage):
    enqueue(url, *works(*[b""] * 6))

    def before(number):
        if number == 2:
            [first] = [name for name in names_beside(url) if re.search(r"-0-\d+-\w+$", name)]
            damage(os.path.join(os.path.dirname(url), first))

    with pytest.raises(BatchFailedError, match="damaged or incomplete") as caught:
        run_batch(Session(before), url, make_worker(), partitions=3)
    assert (4, 2) == (caught.value.report.done, caught.value.report.handed_back)
    assert [0, 0] == [job.failures for job in state_of(url).jobs]


def test_a_failure_before_the_spark_job_hands_all_jobs_back(url):
    class Connect(Session):
        def createDataFrame(self, table):
            raise ValueError("the session has been stopped")

    enqueue(url, *works(b"", b""))
    with pytest.raises(BatchFailedError, match=r"^the session has been stopped"):
        run_batch(Connect(), url, make_worker())
    assert [(JobStatus.QUEUED, 0)] * 2 == [(job.status, job.failures) for job in state_of(url).jobs]


# Wrong arguments


def test_wrong_arguments_are_refused_before_any_claim(url):
    enqueue(url, *works(b""))
    worker = make_worker()
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"entrypoint": "wrok"}, "the worker has no handler for 'wrok' (its handlers: 'work')"),
        ({"entrypoint": []}, "the worker has no handler (its handlers: 'work')"),
        ({"max_jobs": 0}, "max_jobs must be from 1 to 10000000, got 0"),
        ({"partitions": 0}, "partitions must be from 1 to 10000000, got 0"),
        ({"claim_timeout": "long"}, "claim_timeout must be a timedelta or a number of seconds, got str"),
        ({"worker": Worker()}, "the worker has no handler (its handlers: none)"),
        ({"worker": "app:worker"}, "run_batch needs a jqueue.worker.Worker, got str"),
    ]
    for wrong, told in wrongs:
        with pytest.raises(InvalidJobError) as caught:
            run_batch(Session(), url, **{"worker": worker, **wrong})
        assert told == str(caught.value)
    assert [0] == [job.attempt for job in state_of(url).jobs]


def test_a_queue_unreachable_for_executors_is_refused():
    with pytest.raises(InvalidURLError, match="memory"):
        run_batch(Session(), "memory://a", make_worker())


def test_a_session_without_a_known_number_of_cores_requires_partitions(url):
    from pyspark.errors import PySparkAttributeError

    class Remote(Session):
        def __getattribute__(self, name):
            if name != "sparkContext":
                return super().__getattribute__(name)
            raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"})

    enqueue(url, *works(b""))
    with pytest.raises(InvalidJobError, match="give the number of partitions="):
        run_batch(Remote(), url, make_worker())
    assert 1 == run_batch(Remote(), url, make_worker(), partitions=1).done
