"""After a simulated run, the metrics are the counts of the auditor's evidence: the versions, read as plain JSON."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.counters import KINDS
from jqueue.telemetry.prometheus import PrometheusMetrics
from jqueue.telemetry.recorder import Recorder
from tests.simulation.chain import COMPLETED, DEAD, IN_PROGRESS, QUEUED, status_of
from tests.simulation.runner import Settings, Simulation
from tests.telemetry.samples import samples_of

SEEDS = range(6)


class Observed(Simulation):
    """A simulation whose queue objects are observed."""

    def __init__(self, seed, settings):
        super().__init__(seed, settings)
        self.recorders = []

    def _start(self, loop):
        client, task = super()._start(loop)
        self.recorders.append(Recorder("q"))
        client.queue.observe(self.recorders[-1])
        return client, task

    def counted(self, name):
        samples = [sample for each in self.recorders for sample in each.samples() if sample.metric.name == name]
        return sum(sample.value for sample in samples)


def simulated(seed, rate):
    simulation = Observed(seed, Settings(rate=rate, steps=5, disturbances=False, old_format=0.0, contention=0.0))
    return simulation, simulation.run()


def metrics_of(content):
    """The metrics of a queue with this content."""

    async def read():
        storage = InMemoryStorage()
        await storage.write(content)
        metrics = PrometheusMetrics(every=None, commits=False)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(metrics.watch(DirectQueue(storage)))
            return samples_of(await metrics.fresh_text())

    return asyncio.run(read())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_metrics_are_the_counts_of_the_chain_of_versions(seed):
    simulation, _ = simulated(seed, 0.1)
    claims: Counter[str] = Counter()
    before: dict[str, dict[str, object]] = {}
    half = len(simulation.versions) // 2
    for version in simulation.versions:
        for job_id, job in version.jobs.items():
            known = before.get(job_id, {})
            if status_of(job) == IN_PROGRESS and known.get("attempt", 0) != job["attempt"]:
                claims[job["entrypoint"]] += 1
        before = version.jobs
        if version.index in (half, len(simulation.versions) - 1):
            check(metrics_of(simulation.world.network.landings[version.index].content), version, claims)


def check(found, version, claims):
    assert set(claims) <= version.counters.keys()
    for name in version.counters.keys() - {""}:
        assert claims[name] == found["jqueue_claimed_total", name] == found["jqueue_wait_seconds_count", name]
        for kind, label in enumerate(KINDS):
            assert version.total(name, kind) == found[f"jqueue_{label}_total", name]
    by_metric: Counter[str] = Counter()
    for key, number in found.items():
        if key[0] == "jqueue_jobs":
            by_metric[key[2]] += int(number)
    statuses = Counter(status_of(job) for job in version.jobs.values())
    assert [statuses[name] for name in (IN_PROGRESS, DEAD, COMPLETED)] == [
        by_metric[name] for name in (IN_PROGRESS, DEAD, COMPLETED)
    ]
    assert by_metric["ready"] + by_metric["scheduled"] <= statuses[QUEUED]  # some are past their expiry


@pytest.mark.parametrize("seed", SEEDS)
def test_without_faults_the_commits_of_all_processes_are_the_versions(seed):
    simulation, _ = simulated(seed, 0.0)
    writers = {client.process.name for client in simulation.clients}
    versions = sum(version.by in writers for version in simulation.versions)
    assert (versions, 0) == (simulation.counted("jqueue_commits"), simulation.counted("jqueue_commits_recognised"))
    assert versions > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_with_faults_a_commit_is_counted_at_most_once_and_recognised_ones_as_such(seed):
    simulation, report = simulated(seed, 0.3)
    assert simulation.counted("jqueue_commits_recognised") == report.recognised
    assert simulation.counted("jqueue_commits") <= len(simulation.versions)
