"""Limits and cron entries hold in every version of a queue that many worker processes share."""

import asyncio
import random
import time
from contextlib import contextmanager

import pytest

from jqueue import BrokerQueue, LocalFileSystemStorage
from jqueue.adapters.storage.s3 import S3Storage
from jqueue.operations import Enqueue
from tests.object_stores import store_of
from tests.worker_processes.accounts import Accounts
from tests.worker_processes.claim_history import Lives, steps
from tests.worker_processes.history import Version, read_history
from tests.worker_processes.journal import journals
from tests.worker_processes.limits import CronAudit, LimitsAudit
from tests.worker_processes.processes import LONGEST, LOOK_EVERY, WorkerProcess
from tests.worker_processes.programs.limited import PER, RATE, RUNNING, TICK, TOCK
from tests.worker_processes.recording import SUFFIX, Log, RecordingStorage

pytestmark = pytest.mark.wide

KEYS = {"one": 1, "two": 2}
GROUP = pytest.mark.xdist_group("worker processes")


def some_work(number):
    """A few jobs of each kind, except the paced ones."""
    yield from (Enqueue("few", b"%d" % number, job_id=f"few-{number}-{place}") for place in range(4))
    yield Enqueue("free", b"%d" % number, job_id=f"free-{number}")
    yield Enqueue("paused", b"%d" % number, job_id=f"paused-{number}")
    for key, limit in KEYS.items():
        for kind in ("keyed", "also keyed"):
            yield Enqueue(
                kind, b"%d" % number, job_id=f"{kind}-{key}-{number}", concurrency_key=key, concurrency_limit=limit
            )


def paced_work(count):
    """Jobs that are enqueued at once, so that only the rate limits them."""
    return [Enqueue("paced", b"%d" % number, job_id=f"paced-{number}") for number in range(count)]


async def direct(queue, workers, rounds, seconds):
    """Enqueue, pause and resume while the workers work. Returns the ids, and the time until which all worked."""
    await until(lambda: all(worker.has_started for worker in workers))
    enqueued = [job.id for job in await queue.enqueue_many(paced_work(int(seconds * RATE / PER)))]
    started = time.time()
    for number in range(rounds):
        if number % 4 == 1:
            await queue.pause("paused")
        enqueued += [job.id for job in await queue.enqueue_many(some_work(number))]
        await until_done(queue, most=12, but=("paced", "paused"))
        if number % 4 == 3:
            await queue.resume("paused")
    await queue.resume("paused")
    await until_done(queue)
    await until(lambda: time.time() > started + seconds)
    ended = time.time()
    for worker in workers:
        worker.stop()
    await until(lambda: all(worker.has_ended for worker in workers))
    return enqueued, ended


async def until_done(queue, most=0, but=()):
    """Wait until at most `most` jobs are left, not counting those of cron entries and of the entrypoints in `but`."""
    give_up = time.monotonic() + LONGEST
    while sum(job.entrypoint not in ("tick", "tock", *but) for job in (await queue.read_state()).jobs) > most:
        assert time.monotonic() < give_up, "the jobs are not done"
        await asyncio.sleep(LOOK_EVERY)


async def until(condition):
    give_up = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < give_up, "the condition never became true"
        await asyncio.sleep(LOOK_EVERY)


@contextmanager
def workers_of(folder, count, url="queue.json", environment=None):
    workers = [
        WorkerProcess(folder, f"worker-{number}", "limited", url, environment=environment) for number in range(count)
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


def run(folder, storage, workers, rounds, seconds):
    """Return the ids of all enqueued jobs, the final content of the store, and the time at which workers stopped."""

    async def conduct():
        recorded = RecordingStorage(storage, Log(folder / f"conductor{SUFFIX}"))
        async with BrokerQueue(recorded, deadline=LONGEST) as queue:
            enqueued, ended = await direct(queue, workers, rounds, seconds)
            content, _ = await storage.read()
        return enqueued, content, ended

    return asyncio.run(conduct())


def audit(folder, workers, enqueued, content, ended):
    lives = Lives()
    limits = LimitsAudit({"few": RUNNING}, KEYS, {"paced": (RATE, PER)})
    cron = CronAudit({"tick": TICK, "tock": TOCK})
    last = Version()
    for before, last in steps(read_history(folder, content)):
        for auditor in (lives, limits, cron):
            auditor.see(before, last)
    limits.end()
    cron.end(ended)
    fired = [job_id for job_id in lives.enqueued if job_id.startswith("cron:")]
    latest = {job_id.split(":")[1]: job_id for job_id in fired}
    # An occurrence that fired when the workers were told to stop may wait for the next worker.
    waiting = last.jobs.keys() & latest.values()
    fates = {worker.name: worker.wait() for worker in workers}
    accounts = Accounts(lives, journals(folder), fates)
    claimers = {claim.by for claim in lives.claims.values()}
    print(
        f"{lives.versions} versions by {len(fates)} workers, {len(lives.claims)} claims by {len(claimers)} of them, "
        f"{len(lives.enqueued)} jobs, {len(fired)} of them by cron; the most at once: {dict(limits.most)}; versions "
        f"with paused jobs waiting: {dict(limits.held_back)}; skipped for lack of claims: {cron.skipped}"
    )
    assert [] == limits.faults[:10]
    assert [] == cron.faults[:10]
    assert [] == accounts.faults({*enqueued, *fired} - waiting, waiting)[:10]
    return limits, cron, claimers


@GROUP
def test_limits_and_cron_entries_hold_in_every_version_of_a_file_with_eight_workers(tmp_path):
    storage = LocalFileSystemStorage(tmp_path / "queue.json")
    with workers_of(tmp_path, 8) as workers:
        enqueued, content, ended = run(tmp_path, storage, workers, rounds=25, seconds=6)
    limits, cron, claimers = audit(tmp_path, workers, enqueued, content, ended)
    assert 8 == len(claimers)
    assert {"few": RUNNING, **KEYS} == {name: limits.most[name] for name in ("few", *KEYS)}
    assert RATE == limits.most["paced"]
    assert limits.held_back["paused"]
    assert len(cron.skipped) <= len(cron.fired["tick"]) // 4


@pytest.mark.full
def test_limits_and_cron_entries_hold_in_every_version_of_an_s3_object_with_three_workers(tmp_path, request):
    store = store_of(request, "seaweedfs")
    key = f"workers/{random.randrange(2**32)}.json"
    url = f"s3://{store.server.bucket}/{key}?endpoint_url={store.url}&region_name={store.server.region}"
    keys = {"AWS_ACCESS_KEY_ID": store.server.access_key, "AWS_SECRET_ACCESS_KEY": store.server.secret_key}
    storage = store.open(key)
    assert isinstance(storage, S3Storage)
    with workers_of(tmp_path, 3, url, keys) as workers:
        enqueued, content, ended = run(tmp_path, storage, workers, rounds=20, seconds=10)
    _, cron, claimers = audit(tmp_path, workers, enqueued, content, ended)
    assert 3 == len(claimers)
    assert len(cron.fired["tick"]) > 5


@pytest.mark.full
@GROUP
def test_limits_and_cron_entries_hold_in_every_version_for_a_minute(tmp_path):
    storage = LocalFileSystemStorage(tmp_path / "queue.json")
    with workers_of(tmp_path, 8) as workers:
        enqueued, content, ended = run(tmp_path, storage, workers, rounds=250, seconds=60)
    audit(tmp_path, workers, enqueued, content, ended)
