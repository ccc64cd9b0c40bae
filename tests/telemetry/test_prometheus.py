"""Metrics for Prometheus: what they count is what happened."""

import asyncio
from collections import Counter

import prometheus_client
import pytest

from jqueue import BrokerQueue, CASConflictError, DirectQueue, InMemoryStorage, LocalFileSystemStorage, QueueSet
from jqueue.connect import connect_queue
from jqueue.core.queue_options import QueueOptions
from jqueue.domain.errors import StorageFatalError, StorageThrottledError
from jqueue.operations import Ack, Enqueue
from jqueue.ports.observer import Observer
from jqueue.telemetry.catalog import METRICS
from jqueue.telemetry.figures import MOST, OTHERS
from jqueue.telemetry.prometheus import PrometheusMetrics
from jqueue.telemetry.recorder import Recorder
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.worker import Worker
from tests.telemetry.samples import samples_of


async def scraped(*queues, **options):
    """The samples of some queues, each of which does its work within the watch: `(queue, work)`."""
    metrics = PrometheusMetrics(every=None, **options)
    for queue, work in queues:
        async with metrics.watch(queue):
            await work(queue)
            found = samples_of(await metrics.fresh_text())
    return found


async def test_workers_of_several_queue_objects_count_what_was_done_on_a_file(tmp_path):
    """The sum over the queue objects is the number of versions, and the totals are those of the handlers' runs."""
    path, jobs = tmp_path / "queue.json", 60
    ran: Counter[str] = Counter()
    places = [BrokerQueue(LocalFileSystemStorage(path)) for _ in range(3)]
    metrics = [PrometheusMetrics(every=None) for _ in places]
    async with places[0] as producer:
        async with metrics[0].watch(producer):
            await producer.enqueue_many([Enqueue("even" if number % 2 else "odd", b"") for number in range(jobs)])
        made = samples_of(metrics[0].text())
    assert {} == made  # nothing is watched any longer

    async def work(queue, exporter):
        worker = Worker(concurrency=4)

        @worker.handler("even")
        async def even():
            ran["even"] += 1

        @worker.handler("odd", max_attempts=2, backoff=_AtOnce())
        async def odd():
            ran["odd"] += 1
            raise ValueError("always")

        async with queue, exporter.watch(queue):
            await worker.run(queue, drain=True, signals=False)
            return samples_of(await exporter.fresh_text())

    first = (await DirectQueue(LocalFileSystemStorage(path)).stats()).version
    scrapes = await asyncio.gather(*(work(*pair) for pair in zip(places, metrics, strict=True)))
    last = max(found["jqueue_version",] for found in scrapes)
    final = await scraped((DirectQueue(LocalFileSystemStorage(path)), _nothing))
    assert final["jqueue_version",] >= last
    assert {"even": jobs // 2, "odd": jobs} == ran
    for name, expected in {"enqueued": 30, "done": 0, "failed": 60, "retried": 30, "dead": 30}.items():
        assert expected == final[f"jqueue_{name}_total", "odd"], name
    for name, expected in {"enqueued": 30, "done": 30, "failed": 0, "claimed": 30}.items():
        assert expected == final[f"jqueue_{name}_total", "even"], name
    for name, count in {"even": 30, "odd": 60}.items():
        assert count == final["jqueue_wait_seconds_count", name] == final["jqueue_run_seconds_count", name]
        assert count == final["jqueue_wait_seconds_bucket", name, "+Inf"]
    assert 30 == final["jqueue_jobs", "odd", "dead"]
    assert first == 1


class _AtOnce:
    def bound(self, failures):
        return 0.0


async def _nothing(queue):
    pass


async def test_the_commits_of_all_queue_objects_are_the_versions_of_the_queue(tmp_path):
    storage = LocalFileSystemStorage(tmp_path / "queue.json")
    queues = [BrokerQueue(storage), BrokerQueue(storage), DirectQueue(storage)]
    metrics = [PrometheusMetrics(every=None) for _ in queues]

    async def work(queue, exporter):
        async with queue, exporter.watch(queue):
            await asyncio.gather(*(queue.enqueue("t", b"") for _ in range(20)))
            return samples_of(exporter.text())

    found = await asyncio.gather(*(work(*pair) for pair in zip(queues, metrics, strict=True)))
    version = (await DirectQueue(storage).stats()).version
    assert version == sum(each["jqueue_commits_total",] for each in found)
    assert 60 == sum(each["jqueue_commit_calls_sum",] for each in found)
    writes = sum(each["jqueue_store_seconds_count", "write"] for each in found)
    assert version + sum(each["jqueue_conflicts_total",] for each in found) == writes


async def test_a_batch_is_one_commit_with_all_its_calls():
    async def batch(queue):
        async with queue:
            await asyncio.gather(*(queue.enqueue("t", b"") for _ in range(100)))

    found = await scraped((BrokerQueue(InMemoryStorage()), batch))
    assert (1, 100) == (found["jqueue_commits_total",], found["jqueue_commit_calls_sum",])
    assert (0, 1) == (found["jqueue_commit_calls_bucket", "64.0"], found["jqueue_commit_calls_bucket", "128.0"])


async def test_a_commit_whose_answer_was_lost_is_counted_once_and_as_recognised():
    storage = FaultyStorage(InMemoryStorage())
    storage.on_write(Fault.LOST_ANSWER)

    async def enqueue(queue):
        await queue.enqueue("t", b"")

    found = await scraped((DirectQueue(storage), enqueue))
    assert (1, 1, 1) == tuple(
        found[f"jqueue_{name}",] for name in ("commits_total", "commits_recognised_total", "version")
    )


async def test_errors_of_the_store_are_counted_by_kind():
    recorder = Recorder("q")
    for error in (StorageThrottledError("x"), TimeoutError(), StorageFatalError("x"), OSError(), RuntimeError()):
        recorder.store_called("write", 0.1, error)
    recorder.store_called("write", 0.1, CASConflictError("x"))
    recorder.store_called("read", 0.1, asyncio.CancelledError())
    errors = {sample.labels[1:]: sample.value for sample in recorder.samples() if "errors" in sample.metric.name}
    assert {"throttled", "timeout", "fatal", "transient", "other"} == {kind for _, kind in errors}
    assert {1} == set(errors.values())
    assert [1] == [sample.value for sample in recorder.samples() if "conflicts" in sample.metric.name]


async def test_calls_for_objects_beside_the_queue_are_timed():
    async def large(queue):
        await queue.enqueue("t", b"x" * 200_000)
        await queue.ack((await queue.dequeue("t"))[0])

    found = await scraped((DirectQueue(InMemoryStorage()), large))
    counts = {key[1]: value for key, value in found.items() if key[0] == "jqueue_store_seconds_count"}
    assert (1, 1) == (counts["create"], counts["fetch"])


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


async def test_a_queue_that_cannot_be_read_is_down_and_comes_back():
    storage = InMemoryStorage()
    queue = DirectQueue(storage, deadline=5)
    metrics = PrometheusMetrics(every=None)
    async with metrics.watch(queue):
        await queue.enqueue("t", b"")
        content, etag = await storage.read()
        broken = await storage.write(b"no queue", if_match=etag)
        down = samples_of(await metrics.fresh_text())
        assert (0, False) == (down["jqueue_up",], ("jqueue_version",) in down)
        await storage.write(content, if_match=broken)
        assert 1 == samples_of(await metrics.fresh_text())["jqueue_up",]


async def test_metrics_go_into_the_registry_of_a_program_and_follow_the_queue():
    """Without a call of ours, the figures in it are at most `every` old."""
    registry = prometheus_client.CollectorRegistry()
    queue = DirectQueue(InMemoryStorage())
    labels = {"queue": "memory", "entrypoint": "t"}
    async with PrometheusMetrics(registry, every=0.01).watch(queue), asyncio.timeout(60):
        await queue.enqueue("t", b"")
        while registry.get_sample_value("jqueue_enqueued_total", labels) != 1:
            await asyncio.sleep(0.01)


async def test_an_observer_that_fails_disturbs_no_commit(caplog):
    class Failing(Observer):
        def committed(self, commit):
            raise RuntimeError

    queue = DirectQueue(InMemoryStorage())
    queue.observe(Failing())
    job = await queue.enqueue("t", b"")
    assert [job.id] == [claimed.id for claimed in await queue.dequeue()]
    assert "the observer Failing of a queue failed" in caplog.text


async def test_an_observer_is_told_of_the_operations_and_their_results():
    seen = []
    queue = DirectQueue(InMemoryStorage())

    class Listening(Observer):
        def committed(self, commit):
            seen.append(commit)

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
    assert ("NewJob", job.id) == (type(operations[0]).__name__, results[0].id)
    assert isinstance(seen[2].calls[0][0][0], Ack)


async def test_a_set_of_queues_shows_its_figures_together():
    members = [DirectQueue(InMemoryStorage()) for _ in range(2)]
    for queue in members:
        await queue.enqueue("t", b"")
    metrics = PrometheusMetrics(every=None)
    async with QueueSet(*members) as together, metrics.watch(together):
        found = samples_of(await metrics.fresh_text())
    assert (1, 2) == (found["jqueue_up",], found["jqueue_jobs", "t", "ready"])


async def test_a_queue_in_an_older_format_has_no_totals(tmp_path):
    metrics = PrometheusMetrics(every=None)
    async with connect_queue(f"vsqs://{tmp_path}") as queue, metrics.watch(queue):
        assert 1 == samples_of(await metrics.fresh_text())["jqueue_up",]
        await queue.enqueue("t", b"{}")
        found = samples_of(await metrics.fresh_text())
    assert (1, 1) == (found["jqueue_up",], sum(value for key, value in found.items() if key[0] == "jqueue_jobs"))
    assert not any(key[0].endswith("_total") for key in found)


def test_every_metric_has_a_name_of_its_own():
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert all(name.startswith("jqueue_") and name.isidentifier() for name in names)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_of_seconds_or_bytes_says_so(metric):
    assert ("s" == metric.unit) == metric.name.endswith("_seconds")
    assert ("By" == metric.unit) == metric.name.endswith("_bytes")


def test_queue_options_have_no_observer():
    assert "observer" not in QueueOptions.__dataclass_fields__
