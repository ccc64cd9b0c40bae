"""Both queues keep the queue contract on every storage that needs no server; a plain queue refuses what it lacks."""

import dataclasses

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.domain.operations import UNCHANGED, Ack, Cancel, Enqueue, Nack
from jqueue.domain.rules import QueueSettings
from jqueue.ports.queue import Capabilities, JobQueue
from jqueue.testing.queue_contract import QueueContract
from tests.contract.places import InMemory, OnAFile, OnTwoMethods, without_waiting
from tests.contract.sample import sampled_at_first


@without_waiting
class InVirtualTime(InMemory, QueueContract):
    """The contract in memory, in virtual time."""


class TestDirectQueueInMemory(InVirtualTime):
    kind = DirectQueue


class TestBrokerQueueInMemory(InVirtualTime):
    kind = BrokerQueue


@pytest.mark.wide
class TestDirectQueueOnTwoMethods(OnTwoMethods, InVirtualTime):
    kind = DirectQueue


@pytest.mark.wide
class TestBrokerQueueOnTwoMethods(OnTwoMethods, InVirtualTime):
    kind = BrokerQueue


@sampled_at_first
class TestDirectQueueOnAFile(OnAFile, QueueContract):
    kind = DirectQueue


@sampled_at_first
class TestBrokerQueueOnAFile(OnAFile, QueueContract):
    kind = BrokerQueue


class PlainQueue(DirectQueue):
    """A queue like one on a foreign format: first in, first out, and few capabilities."""

    capabilities = Capabilities(
        priority=False,
        delay=False,
        expiry=False,
        headers=False,
        job_ids=False,
        unique_keys=False,
        dead_letters=False,
        errors=False,
        uncharged=False,
        heartbeat=False,
        claim_timeout=False,
        transactions=False,
        wait=False,
        size_limit=False,
        cancel_running=False,
        reschedule=False,
        limits=False,
        retention=False,
        results=False,
        schedules=False,
        staged=False,
        holders=False,
        objects=False,
    )

    def _require(self, **asked):
        """Raise for each given option whose capability is missing."""
        self.capabilities.require(*(name for name, value in asked.items() if value))

    async def enqueue(self, entrypoint, payload=b"", priority=0, **options):
        self._require(
            priority=priority,
            delay=options.get("delay") or options.get("run_at"),
            expiry=options.get("expires_at"),
            dead_letters=options.get("max_attempts"),
            headers=options.get("headers"),
            job_ids=options.get("job_id"),
            unique_keys=options.get("unique_key"),
            limits=options.get("concurrency_key"),
            results=options.get("keep_result") is not None,
            objects=not isinstance(payload, bytes | bytearray | memoryview),
        )
        return await super().enqueue(entrypoint, payload, priority, **options)

    async def dequeue(self, entrypoint=None, *, wait=None, claim_timeout=None, **options):
        self._require(wait=wait, claim_timeout=claim_timeout)
        return await super().dequeue(entrypoint, wait=wait, claim_timeout=claim_timeout, **options)

    async def nack(self, job_id, *, delay=None, error=None, dead=False, charge=True, deadline=None):
        self._require(delay=delay, errors=error, dead_letters=dead, uncharged=not charge)
        await super().nack(job_id, delay=delay, error=error, dead=dead, charge=charge, deadline=deadline)

    async def ack(self, job_id, *, result=None, deadline=None):
        self._require(results=result is not None)
        await super().ack(job_id, deadline=deadline)

    async def heartbeat(self, job_id, *, deadline=None):
        self.capabilities.require("heartbeat")

    async def heartbeat_many(self, jobs, *, deadline=None):
        self.capabilities.require("heartbeat")

    async def redrive(self, job_id=None, *, entrypoint=None, deadline=None):
        self.capabilities.require("dead_letters")

    async def purge(self, **options):
        self.capabilities.require("dead_letters")

    async def enqueue_many(self, jobs, *, deadline=None):
        self.capabilities.require("transactions")

    async def apply(self, *operations, deadline=None):
        self.capabilities.require("transactions")

    async def apply_each(self, *operations, deadline=None):
        """Call the verb of each operation, so that missing capabilities are refused here, too."""
        results = []
        for operation in operations:
            try:
                results.append(await self._apply(operation))
            except JQueueError as error:
                results.append(error)
        return results

    async def _apply(self, operation):
        given = {field.name: getattr(operation, field.name) for field in dataclasses.fields(operation)}
        match operation:
            case Enqueue():
                return await self.enqueue(**given)
            case Ack():
                return await self.ack(operation.job, result=operation.result)
            case Nack():
                options = {name: given[name] for name in ("delay", "error", "dead", "charge")}
                return await self.nack(operation.job, **options)
            case Cancel():
                return await self.cancel(**given)
        raise InvalidJobError(f"this queue has no place for {type(operation).__name__}")

    async def cancel(self, job_id, *, running=False, deadline=None):
        self._require(cancel_running=running)
        return await super().cancel(job_id, deadline=deadline)

    async def reschedule(self, job_id, **options):
        self.capabilities.require("reschedule")

    async def reprioritise(self, job_id, priority, *, deadline=None):
        self.capabilities.require("reschedule")

    async def pause(self, entrypoint, *, deadline=None):
        self.capabilities.require("limits")

    async def resume(self, entrypoint, *, deadline=None):
        self.capabilities.require("limits")

    async def limit(self, entrypoint, **options):
        self.capabilities.require("limits")

    async def configure(
        self,
        *,
        aging=UNCHANGED,
        dead_retention=UNCHANGED,
        blob_bytes=UNCHANGED,
        history=UNCHANGED,
        history_bytes=UNCHANGED,
        history_payloads=UNCHANGED,
        deadline=None,
    ):
        self._require(
            limits=aging is not UNCHANGED,
            retention=dead_retention is not UNCHANGED,
            size_limit=blob_bytes is not UNCHANGED,
            history={history, history_bytes, history_payloads} != {UNCHANGED},
        )
        return QueueSettings()

    async def schedule(self, name, cron, entrypoint, payload=b"", **options):
        self.capabilities.require("schedules")

    async def unschedule(self, name, *, deadline=None):
        self.capabilities.require("schedules")

    async def schedules(self, *, deadline=None):
        self.capabilities.require("schedules")

    async def result(self, job_id, *, timeout=None, deadline=None):
        self.capabilities.require("results")


@pytest.mark.wide
class TestAPlainQueue(InVirtualTime):
    kind = PlainQueue


def test_both_queues_are_job_queues_with_all_capabilities():
    for kind in (DirectQueue, BrokerQueue):
        queue = kind(InMemoryStorage())
        assert isinstance(queue, JobQueue)
        assert () == queue.capabilities.missing


def test_every_capability_has_a_test_of_its_refusal():
    from jqueue.testing._queue_contract.refusals import USES  # the contract has to be imported before its parts

    names = {field.name for field in dataclasses.fields(Capabilities)}
    through_apply = {"staged", "holders"}  # operations, which only `apply` takes: `transactions` has its refusal
    assert names - {"fencing"} - through_apply == set(USES)


def _typed(queue: DirectQueue | BrokerQueue) -> JobQueue:
    """Let the type checker compare every signature of the queues with the protocol's; never called."""
    return queue
