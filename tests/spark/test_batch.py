"""`run_batch`: claims, outcomes, failures and limits, on an imitation of a Spark session."""

import asyncio
import os
import re
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, JobStatus, Limits, connect
from jqueue.domain.errors import InvalidJobError, InvalidURLError, QueueMissingError
from jqueue.operations import Enqueue
from jqueue.spark import BatchFailedError, run_batch
from jqueue.spark.batch.run import CLAIM_TIMEOUT
from jqueue.spark.batch.settling import HOLDERS, BatchClaims
from jqueue.spark.claims import claiming
from jqueue.spark.session import DESCRIPTION
from jqueue.spark.stream.query_claims import ClaimsOfQuery, Offset
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Context, Discard, Rate, Retry, Snooze, Worker
from tests.spark.imitated_session import Session
from tests.spark.spark_calls import call, enqueue, fill_segments, jobs_of, left_in, litter_of, version_of
from tests.virtual_world import in_virtual_time

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no child processes without fork")


def run(url, worker, session=None, **options):
    made = Session() if session is None else session
    return run_batch(made, url, worker, **options)  # type: ignore[arg-type]


def works(*payloads, entrypoint="work", **options):
    return [Enqueue(entrypoint, payload if isinstance(payload, bytes) else b"%d" % payload, **options)
            for payload in payloads]  # fmt: skip


def make_worker(**options):
    """A worker whose handler ends as the payload says."""
    worker = Worker(concurrency=5)

    @worker.handler("work", max_attempts=3, **options)
    async def work(payload: bytes, ctx: Context) -> object:
        if payload == b"kill":
            os._exit(1)
        raised = {
            b"fail": ValueError("no"),
            b"discard": Discard("never"),
            b"snooze": Snooze(60),
            b"exit": SystemExit(4),
        }
        raised |= {b"retry": Retry(after=60, reason="later")}
        if payload in raised:
            raise raised[payload]
        if payload == b"next":
            ctx.on_ack(Enqueue("next", b"after"))
        return {"of": payload.decode()}

    return worker


def fails_at(partition, error):
    def before(number):
        if number == partition:
            raise error

    return before


@pytest.fixture(params=["single jobs", "leases"])
def fill(request):
    """Enqueue jobs, of which a batch claims each by itself, or leases."""
    if request.param == "single jobs":
        return enqueue
    return lambda url, jobs: fill_segments(url, [job.payload for job in jobs], jobs[0].entrypoint)


# Success


def test_each_job_has_its_own_outcome_and_the_queue_is_told_in_few_commits(url, fill):
    odd = [b"kill", b"fail", b"discard", b"snooze", b"exit", b"retry", b"next"]
    fill(url, works(*range(600), *odd))
    version, session = version_of(url), Session()
    report = run(url, make_worker(), session, claim_timeout=300)
    assert (607, 601, 4, 1, 1, 1) == (
        report.claimed,
        report.succeeded,
        report.failed,
        report.dead,
        report.snoozed,
        report.killed,
    )
    left = left_in(url)
    assert {*odd[:-1], b"after"} == left.keys()
    assert "ProcessDied: the process of the handler ended with exit code 1" == left[b"kill"].error
    assert left[b"fail"].error.startswith("ValueError: no (")
    assert ("Discard: never", "Retry: later") == (left[b"discard"].error, left[b"retry"].error)
    assert {b"discard": JobStatus.DEAD} == {
        name: job.status for name, job in left.items() if job.status is not JobStatus.QUEUED
    }
    assert [0] == [left[b"snooze"].failures]
    assert {(1, 1)} == {(job.attempt, job.failures) for name, job in left.items() if name not in (b"snooze", b"after")}
    assert ([], []) == ([name for name in litter_of(url) if ".segments/" not in name], session.tags)
    assert version_of(url) - version <= (2 if fill is enqueue else 8)
    assert str(report).startswith("607 jobs in ")


def test_jobs_are_begun_in_order_and_the_first_partition_has_the_first(url, tmp_path):
    diary, worker, session = tmp_path / "diary", Worker(concurrency=1), Session()

    @worker.handler("work")
    async def work(number: int) -> None:
        with diary.open("a") as file:
            file.write(f"{number}\n")

    enqueue(url, [Enqueue("work", b"%d" % number, priority=number % 7) for number in range(14)])
    run(url, worker, session, partitions=3)
    assert sorted(range(14), key=lambda number: number % 7) == list(map(int, diary.read_text().split()))
    assert [5, 5, 4] == session.partitions


def test_only_ready_jobs_of_the_wanted_entrypoints_are_claimed_up_to_the_largest_number(url):
    worker = make_worker()
    worker.handler("more")(worker.handlers["work"])
    enqueue(url, [*works(1, 2), *works(3, entrypoint="more"), *works(4, entrypoint="other"), *works(5, delay=60)])
    assert 1 == run(url, worker, entrypoint="more").succeeded
    assert 1 == run(url, worker, max_jobs=1).succeeded
    assert 1 == run(url, worker, entrypoint=["more", "work"]).succeeded
    assert {b"4", b"5"} == left_in(url).keys()
    version = version_of(url)
    unused = Session(lambda number: pytest.fail("Spark was asked"))
    assert "no jobs were ready" == str(run(url, worker, unused))
    assert (version, []) == (version_of(url), litter_of(url))


def test_limits_and_schedules_of_the_worker_are_declared_for_the_entrypoints_of_the_batch(url):
    worker = Worker()

    @worker.handler("work", max_running=2, rate=Rate(100, per=60))
    async def work() -> None: ...

    @worker.handler("other", max_running=1)
    async def other() -> None: ...

    @worker.cron("0 3 * * *")
    async def nightly() -> None: ...

    enqueue(url, [Enqueue("work", b"")] * 5)
    assert 2 == run(url, worker, entrypoint=["work", "nightly"]).claimed
    state = call(url, DirectQueue.read_state)
    assert (2, 100) == (state.entrypoints["work"].max_running, state.entrypoints["work"].rate)
    assert "other" not in state.entrypoints
    assert ["nightly"] == list(state.schedules)


def test_children_get_the_results_of_jobs_whether_they_came_before_or_after_the_claim(url, fill, tmp_path):
    """A parent is done again if its first child has come meanwhile: by then, its result was not kept."""
    worker, diary, late = make_worker(), tmp_path / "diary", tmp_path / "late"

    @worker.handler("double")  # type: ignore[untyped-decorator]
    async def double(number: int, ctx: Context) -> int | None:
        if number == 1 and not late.exists():
            late.touch()
            await ctx.queue.enqueue("total", b"", after=[ctx.job])
        return 2 * number if number else None

    @worker.handler("total")  # type: ignore[untyped-decorator]
    async def total(ctx: Context) -> None:
        with diary.open("a") as file:
            file.write(f"{list(ctx.parents.values())}\n")

    ids = fill(url, works(*range(300), entrypoint="double"))
    enqueue(url, [Enqueue("total", b"", after=[ids[0], ids[2]])])
    assert [300, 2, 1] == [run(url, worker).claimed for _ in range(3)]
    assert "[None, 4]\n[2]\n" == diary.read_text()
    assert {job.status for job in jobs_of(url)} <= {JobStatus.COMPLETED}, "the result is kept for a second more"


# Failure


@pytest.mark.parametrize("kind", ["single jobs", "leases"])
def test_finished_jobs_are_acked_and_others_handed_back_uncharged_when_spark_gives_up(url, kind):
    """In its second task. A job of the third partition would have ended its process."""
    if kind == "leases":
        fill_segments(url, range(1024))
    else:
        enqueue(url, works(*range(6), b"kill", 7))
    session = Session(fails_at(2, RuntimeError("Job aborted due to stage failure:\nlong story")))
    with pytest.raises(BatchFailedError) as caught:
        run(url, make_worker(), session, partitions=4)
    report = caught.value.report
    assert report.claimed == report.succeeded + report.handed_back
    assert report.succeeded == report.claimed // 2
    words = r"Job aborted due to stage failure: long story \(.* succeeded, .* handed back\)"
    assert re.fullmatch(words, str(caught.value))
    assert isinstance(caught.value.cause, RuntimeError)
    left = jobs_of(url)
    assert report.handed_back == len(left)
    assert {(JobStatus.QUEUED, 1, 0, None)} == {(job.status, job.attempt, job.failures, job.error) for job in left}
    assert ([], 1) == (litter_of(url), len(session.interrupted))


def test_ctrl_c_stops_spark_and_hands_back_unfinished_jobs(url, caplog):
    enqueue(url, works(*range(6)))
    session = Session(fails_at(1, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(url, make_worker(), session, partitions=3)
    assert [(JobStatus.QUEUED, 0)] * 4 == [(job.status, job.failures) for job in jobs_of(url)]
    assert ([], [], 1) == (session.tags, litter_of(url), len(session.interrupted))
    assert "a batch was interrupted: 6 jobs" in caplog.text


def test_a_worker_that_stops_hands_back_what_is_left_of_a_range_as_a_run(url):
    worker = Worker(concurrency=1)

    @worker.handler("work")
    async def work(number: int) -> None:
        if number == 300:
            worker.stop()
            await asyncio.sleep(0.05)

    fill_segments(url, range(1024))
    report = run(url, worker, max_jobs=1024, partitions=1)
    assert (1024, 1024) == (report.claimed, report.succeeded + report.handed_back)
    assert 700 < report.handed_back
    hot = call(url, lambda queue: queue.read_state(hot=True))
    assert len(hot.jobs) < 50, "they wait in their segment"
    assert {(JobStatus.QUEUED, 0)} == {(job.status, job.failures) for job in jobs_of(url)}


def test_a_lifespan_that_fails_charges_no_job_and_one_that_fails_at_its_end_fails_none(url):
    def worker_that_fails(*, at_its_end):
        worker = make_worker()

        @worker.lifespan
        @asynccontextmanager
        async def lifespan():
            if at_its_end:
                yield
            raise ConnectionError("the database is away: caf\udce9")  # as in the name of a file that is not UTF-8

        return worker

    enqueue(url, works(1, 2))
    with pytest.raises(BatchFailedError, match=r"^the worker failed: ConnectionError: the database is away: caf\?.*$"):
        run(url, worker_that_fails(at_its_end=False))
    assert [(JobStatus.QUEUED, 0)] * 2 == [(job.status, job.failures) for job in jobs_of(url)]
    assert 2 == run(url, worker_that_fails(at_its_end=True)).succeeded


def test_claims_that_others_have_taken_are_counted_and_change_nothing(url, caplog):
    enqueue(url, works(*range(3)))

    def before(number):
        call(url, lambda queue: queue.requeue_stale(0))
        call(url, lambda queue: queue.dequeue("work", batch_size=2))

    report = run(url, make_worker(), Session(before), partitions=1)
    assert (3, 3, 0) == (report.claimed, report.lost, report.succeeded)
    assert Counter({JobStatus.IN_PROGRESS: 2, JobStatus.QUEUED: 1}) == Counter(job.status for job in jobs_of(url))
    assert "lost before the batch ended" in caplog.text


def test_an_enqueue_on_ack_that_is_refused_fails_its_own_job_and_other_operations_are_none(url):
    """Its values may be of derived classes, such as a text that Django has marked as safe."""
    worker, text = Worker(), type("SafeText", (str,), {})

    @worker.handler("work")
    async def work(number: int, ctx: Context) -> None:
        ctx.on_ack(Enqueue("next", b"", unique_key=text("taken" if number else "free"), on_conflict="raise"))

    enqueue(url, [*works(0, 1), Enqueue("other", b"", unique_key="taken")])
    report = run(url, worker)
    assert (1, 1) == (report.succeeded, report.failed)
    assert "DuplicateJobError" in left_in(url)[b"1"].error


@pytest.mark.wide
def test_claims_are_kept_alive_and_jobs_cancelled_meanwhile_are_stopped_or_not_begun(url, tmp_path):
    """Of a range and of single jobs: the first of each runs, and waits for its cancel, the last is never begun."""
    fill_segments(url, range(300))
    enqueue(url, [Enqueue("work", b"300", priority=-1, keep_result=60), Enqueue("work", b"301", keep_result=60)])
    worker, stopped = Worker(concurrency=3), tmp_path / "stopped"
    stopped.mkdir()

    async def held(queue):
        return {job.payload: job async for job in queue.iterate_jobs() if job.holder}

    @worker.handler("work", timeout=300)
    async def work(number: int) -> None:
        if number in (0, 300):
            try:
                await asyncio.Event().wait()
            finally:
                (stopped / str(number)).touch()
        elif number == 1:
            async with connect(url, DirectQueue) as queue:
                jobs = await held(queue)
                assert {9.0} == {job.claim_timeout for job in jobs.values()}
                for payload in (b"0", b"299", b"300", b"301"):
                    await queue.cancel(jobs[payload].id, running=True)
                while len(list(stopped.iterdir())) < 2:
                    await asyncio.sleep(0.1)
                while not all(job.heartbeat_at > jobs[name].heartbeat_at for name, job in (await held(queue)).items()):
                    await asyncio.sleep(0.1)
        elif number in (299, 301):
            raise ValueError("it was begun")

    report = run(url, worker, partitions=1, claim_timeout=9)
    assert (302, 298, 4) == (report.claimed, report.succeeded, report.cancelled)
    assert {} == left_in(url)


@pytest.mark.parametrize(("alive", "in_segments"), [(False, False), (False, True), (True, True)])
@in_virtual_time
async def test_a_rerun_gets_the_jobs_of_a_dead_driver_when_their_claims_have_lasted(alive, in_segments):
    """It waits for them, but not for a driver that sends heartbeats."""
    clock, worker = VirtualClock(), make_worker()
    storage = InMemoryStorage(clock=clock)

    def claims(number):
        return BatchClaims(DirectQueue(storage, clock=clock), worker, ("work",), CLAIM_TIMEOUT, f"{HOLDERS}{number}")

    limits = Limits(batch_size=100, hot_bytes=1) if in_segments else Limits()
    async with BrokerQueue(storage, clock=clock, limits=limits) as queue:
        await queue.enqueue_many(works(*range(600)))
    first, again = claims(1), claims(2)
    if alive:
        await first.begin(1000, 2)
    else:
        await first.queue.apply(claiming(("work",), 1000, CLAIM_TIMEOUT, f"{HOLDERS}1"))
    began = clock.monotonic()
    await again.begin(1000, 2)
    waited = clock.monotonic() - began
    claimed = first if alive else again
    assert (600, in_segments) == (claimed.held.number, bool(claimed.held.leases))
    assert (again.held.number == 0 and waited < 12) if alive else 20 < waited < 35
    await first.close()
    await again.close()


@pytest.mark.parametrize("in_segments", [False, True])
@in_virtual_time
async def test_short_runs_get_jobs_whose_claims_are_stale_by_the_clock_of_the_store(in_segments):
    """Whoever has held them: a batch, and a query that takes only the jobs of now, wait ten seconds for them."""
    clock = VirtualClock()
    storage = InMemoryStorage(clock=clock)
    limits = Limits(batch_size=100, hot_bytes=1) if in_segments else Limits()
    async with BrokerQueue(storage, clock=clock, limits=limits) as queue:
        await queue.enqueue_many(works(*range(600)))
    await DirectQueue(storage, clock=clock).apply(claiming(("work",), 1000, 60.0, "another"))
    batch = BatchClaims(DirectQueue(storage, clock=clock), make_worker(), ("work",), 5.0, f"{HOLDERS}2")
    await batch.begin(1000, 2)
    assert (0, 600) == (batch.held.number, batch.others)
    await batch.close()
    await asyncio.sleep(130)
    began = clock.monotonic()
    query = ClaimsOfQuery(DirectQueue(storage, clock=clock), ("work",), 60.0, 1.0)
    await query.freeze()
    query.begin("source")
    end = await query.after(Offset("source", 0, ""), 1000)
    assert 600 == (await query.batch_of(end)).number
    assert 9 < clock.monotonic() - began < 13
    await query.stop()
    await asyncio.sleep(130)
    batch = BatchClaims(DirectQueue(storage, clock=clock), make_worker(), ("work",), 5.0, f"{HOLDERS}2")
    await batch.begin(1000, 2)
    assert 600 == batch.held.number
    await batch.close()


# Segments that cannot be read


def test_jobs_that_cannot_be_read_are_handed_back_unharmed_and_all_others_are_done(url, caplog):
    fill_segments(url, range(600))
    [segment] = Path(f"{url}.segments").iterdir()
    content = segment.read_bytes()
    session = Session(lambda number: None if number else segment.unlink())
    report = run(url, make_worker(), session, max_jobs=600, partitions=2)
    assert 600 == report.claimed == report.succeeded + report.handed_back
    assert report.handed_back >= 256
    [line] = [each for each in caplog.messages if segment.name in each]
    assert "cannot be read" in line
    assert 0 == run(url, make_worker(), max_jobs=600).claimed
    segment.write_bytes(content)
    assert [(JobStatus.QUEUED, 0)] * report.handed_back == [(job.status, job.failures) for job in jobs_of(url)]
    assert report.handed_back == run(url, make_worker(), max_jobs=600).succeeded


# Wrong calls


@pytest.mark.parametrize("own", [None, "nightly"])
def test_the_stages_of_a_batch_have_a_name_in_the_interface_of_spark(url, own):
    enqueue(url, works(1))
    names = []
    session = Session(lambda number: names.append(session.properties[DESCRIPTION]))
    session.properties[DESCRIPTION] = own
    run(url, make_worker(), session)
    assert [own or "jqueue: run_batch"] == names
    assert own == session.properties[DESCRIPTION]


def test_a_batch_of_a_queue_that_does_not_exist_is_refused_and_creates_none(url):
    with pytest.raises(QueueMissingError, match=f"there is no queue at {url}: check the URL"):
        run(url, make_worker())
    assert not Path(url).exists()


def test_wrong_arguments_are_refused_before_any_claim(url):
    enqueue(url, works(1))
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"entrypoint": "wrok"}, "the worker has no handler for 'wrok' (its handlers: 'work')"),
        ({"max_jobs": 0}, "max_jobs must be from 1 to 10000000, got 0"),
        ({"worker": "app:worker"}, "run_batch needs a jqueue.worker.Worker, got str"),
        ({"session": Session(cores=None)}, "Spark Connect does not report the number of cores: give the number of pa"),
    ]
    for wrong, words in wrongs:
        with pytest.raises(InvalidJobError) as caught:
            run(url, **{"worker": make_worker(), **wrong})
        assert str(caught.value).startswith(words)
    with pytest.raises(InvalidURLError, match="memory"):
        run("memory://a", make_worker())
    old = Session()
    old.version = "4.1.4"
    with pytest.raises(ImportError, match=r"jqueue needs PySpark 4\.2 or newer, but this is '4\.1\.4'"):
        run(url, make_worker(), old)
    assert [0] == [job.attempt for job in jobs_of(url)]
    assert 1 == run(url, make_worker(), Session(cores=None), partitions=1).succeeded
