"""Metrics for Prometheus: what they count is what happened."""

import asyncio

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, LocalFileSystemStorage
from jqueue.connect import connect
from jqueue.operations import Ack, Enqueue
from jqueue.ports.observer import Observer
from jqueue.telemetry.prometheus import MOST, OTHERS, PrometheusMetrics
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.worker import Exponential, Worker
from tests.shared_memory import SharedMemory
from tests.telemetry.samples import samples_of


async def scraped(*queues, **options):
    """The samples of some queues, each of which does its work within the watch: `(queue, work)`."""
    metrics = PrometheusMetrics(every=None, **options)
    for queue, work in queues:
        async with metrics.watch(queue):
            await work(queue)
            found = samples_of(await metrics.fresh_text())
    return found


async def _nothing(queue):
    pass


async def test_workers_of_several_queue_objects_count_what_was_done_on_a_file(tmp_path):
    """The commits of all queue objects are the versions of the queue, and the totals are the runs of the handlers."""
    storage, jobs, both = LocalFileSystemStorage(tmp_path / "queue.json"), 60, asyncio.Barrier(2)

    async def enqueue(queue):
        await queue.enqueue_many([Enqueue("even" if number % 2 else "odd", b"") for number in range(jobs)])

    async def work(queue):
        worker = Worker(concurrency=4)

        @worker.handler("even")
        async def even(): ...

        @worker.handler("odd", max_attempts=2, backoff=Exponential(1e-9))
        async def odd():
            raise ValueError("always")

        await worker.run(queue, drain=True, signals=False)
        await both.wait()  # the broker of the two may commit for the other one until then

    async def observed(do):
        async with BrokerQueue(storage) as queue:
            return await scraped((queue, do))

    scrapes = [await observed(enqueue), *await asyncio.gather(observed(work), observed(work))]
    final = await scraped((DirectQueue(storage), _nothing))
    assert final["jqueue_version",] == sum(scrape.get(("jqueue_commits_total",), 0) for scrape in scrapes)
    for name, expected in {"enqueued": 30, "done": 0, "failed": 60, "retried": 30, "dead": 30}.items():
        assert expected == final[f"jqueue_{name}_total", "odd"], name
    for name, expected in {"enqueued": 30, "done": 30, "failed": 0, "claimed": 30}.items():
        assert expected == final[f"jqueue_{name}_total", "even"], name
    for name, count in {"even": 30, "odd": 60}.items():
        assert count == final["jqueue_wait_seconds_count", name] == final["jqueue_run_seconds_count", name]
    assert 30 == final["jqueue_jobs", "odd", "dead"]


async def test_a_batch_is_one_commit_with_all_its_calls():
    async def batch(queue):
        async with queue:
            await asyncio.gather(*(queue.enqueue("t", b"") for _ in range(100)))

    found = await scraped((BrokerQueue(InMemoryStorage()), batch))
    assert (1, 100) == (found["jqueue_commits_total",], found["jqueue_commit_calls_sum",])
    assert (0, 1) == (found["jqueue_commit_calls_bucket", "64.0"], found["jqueue_commit_calls_bucket", "128.0"])


@pytest.mark.parametrize(("fault", "errors", "recognised"), [(Fault.LOST_REQUEST, 1, 0), (Fault.LOST_ANSWER, 1, 1)])
async def test_an_error_of_the_store_is_counted_and_a_commit_whose_answer_was_lost_once(fault, errors, recognised):
    storage = FaultyStorage(InMemoryStorage())
    storage.on_write(fault)

    async def enqueue(queue):
        await queue.enqueue("t", b"")

    found = await scraped((DirectQueue(storage), enqueue))
    names = ("commits_total", "commits_recognised_total", "version")
    assert (1, recognised, 1) == tuple(found[f"jqueue_{name}",] for name in names)
    assert errors == sum(value for key, value in found.items() if key[0] == "jqueue_store_errors_total")


async def test_labels_are_bounded_and_sums_stay_exact():
    async def many(queue):
        jobs = [Enqueue(f"entrypoint {number}", b"") for number in range(MOST + 50)]
        await queue.enqueue_many(jobs)

    found = await scraped((DirectQueue(InMemoryStorage()), many))
    ready = {key[1]: value for key, value in found.items() if key[0] == "jqueue_jobs" and key[2] == "ready"}
    assert MOST + 1 == len(ready)
    assert (50, MOST + 50) == (ready[OTHERS], sum(ready.values()))
    assert MOST + 50 == sum(value for key, value in found.items() if key[0] == "jqueue_enqueued_total")


async def test_hostile_names_are_escaped():
    """Another program may have written them. An enqueue refuses such names."""
    storage = InMemoryStorage()
    await DirectQueue(storage).enqueue('a"b_mark', b"")
    content, etag = await storage.read()
    await storage.write(content.replace(b"_mark", b"\\u001b[2J\\n#"), if_match=etag)
    found = await scraped((DirectQueue(storage), _nothing))
    names = {key[1] for key in found if key[0] == "jqueue_jobs"}
    assert {'a"b\\x1b[2J\\n#'} == names


async def test_a_queue_that_cannot_be_read_is_down_with_its_last_figures_and_comes_back():
    storage = InMemoryStorage()
    queue = DirectQueue(storage)
    metrics = PrometheusMetrics(every=None)
    async with metrics.watch(queue):
        assert ("jqueue_figures_age_seconds",) not in samples_of(metrics.text())
        await queue.enqueue("t", b"")
        assert 1 == samples_of(await metrics.fresh_text())["jqueue_version",]
        content, etag = await storage.read()
        broken = await storage.write(b"no queue", if_match=etag)
        down = samples_of(await metrics.fresh_text())
        assert (0, 1) == (down["jqueue_up",], down["jqueue_version",])
        assert down["jqueue_figures_age_seconds",] < samples_of(metrics.text())["jqueue_figures_age_seconds",]
        await storage.write(content, if_match=broken)
        assert 1 == samples_of(await metrics.fresh_text())["jqueue_up",]


async def test_a_scrape_does_not_wait_for_a_silent_store_and_asks_it_once_at_a_time():
    storage, metrics = FaultyStorage(InMemoryStorage()), PrometheusMetrics(every=None)
    queue = DirectQueue(storage)
    async with metrics.watch(queue):
        await queue.enqueue("t", b"")
        await metrics.fresh_text()
        storage.on_read(*[Fault.HANGS] * 3)
        asked = storage.reads
        for _ in range(3):
            found = samples_of(await metrics.fresh_text(0))
            assert (1, 1) == (found["jqueue_jobs", "t", "ready"], found["jqueue_version",])
    assert 1 == storage.reads - asked


async def test_only_the_broker_counts_the_commits_of_its_clients_and_who_they_are():
    storage = SharedMemory()
    async with BrokerQueue(storage) as broker, BrokerQueue(storage) as client:
        service = broker.service()
        broker.offer()
        async with asyncio.timeout(60):
            while storage.handle is None:
                await asyncio.sleep(0.01)
        ours, theirs = PrometheusMetrics(every=None), PrometheusMetrics(every=None)
        async with ours.watch(broker, broker=service), theirs.watch(client):
            waiting = asyncio.create_task(client.dequeue("t", wait=60))
            while not service.waiting_claims:
                await asyncio.sleep(0.01)
            found = samples_of(ours.text())
            assert (1, 1) == (found["jqueue_broker_clients",], found["jqueue_broker_waiting_claims",])
            await client.enqueue("t", b"")
            await waiting
            assert 1 <= samples_of(ours.text())["jqueue_commits_total",]
            assert not [name for name, *_ in samples_of(theirs.text()) if "commit" in name or "conflicts" in name]


async def test_a_queue_that_is_watched_twice_has_each_sample_once():
    storage, metrics = InMemoryStorage(), PrometheusMetrics(every=None)
    first = DirectQueue(storage)
    async with metrics.watch(first), metrics.watch(DirectQueue(storage)):
        await first.enqueue("t", b"")
        assert 1 == samples_of(await metrics.fresh_text())["jqueue_commits_total",]


async def test_an_observer_is_told_of_the_operations_and_their_results_and_its_errors_disturb_no_commit(caplog):
    seen = []
    queue = DirectQueue(InMemoryStorage())

    class Listening(Observer):
        def committed(self, commit):
            seen.append(commit)
            raise RuntimeError

    observer = Listening()
    queue.observe(observer)
    queue.observe(observer)
    job = await queue.enqueue("t", b"")
    (claimed,) = await queue.dequeue("t")
    await queue.ack(claimed)
    queue.unobserve(observer)
    await queue.enqueue("t", b"")
    assert [1, 2, 3] == [commit.version for commit in seen]
    ((operations, results),) = seen[0].calls
    assert ("Enqueue", job.id) == (type(operations[0]).__name__, results[0].id)
    assert isinstance(seen[2].calls[0][0][0], Ack)
    assert "the observer Listening of a queue failed" in caplog.text


async def test_a_queue_in_an_older_format_has_no_totals(tmp_path):
    metrics = PrometheusMetrics(every=None)
    async with connect(f"vsqs://{tmp_path}") as queue, metrics.watch(queue):
        assert 1 == samples_of(await metrics.fresh_text())["jqueue_up",]
        await queue.enqueue("t", b"{}")
        found = samples_of(await metrics.fresh_text())
    assert (1, 1) == (found["jqueue_up",], sum(value for key, value in found.items() if key[0] == "jqueue_jobs"))
    assert not any(key[0].endswith("_total") for key in found)
