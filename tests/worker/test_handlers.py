"""Decorated functions: they can be called, enqueue jobs with their options, and wait for results."""

import asyncio
from dataclasses import replace

import pytest
from pydantic import BaseModel

from jqueue import Enqueue, InvalidJobError, Job
from jqueue.domain.errors import JobFailedError, ResultTimeoutError
from jqueue.ports.queue import Capabilities
from jqueue.worker import Context, Discard, Exponential, Rate, RunReport, Snooze, Worker
from tests.virtual_world import in_virtual_time
from tests.worker.scenes import broker, only_job


class Email(BaseModel):
    to: str


worker = Worker()


@worker.handler("send_email", max_attempts=8, priority=-3, keep_result=60, concurrency_limit=2)
async def send_email(message: Email, ctx: Context) -> int:
    """Send it."""
    return len(message.to)


def test_calling_the_decorated_object_calls_the_function():
    assert 3 == asyncio.run(send_email(Email(to="a@b"), Context(Job.new("send_email", b""))))
    assert ("send_email", "Send it.") == (send_email.__name__, send_email.__doc__)


@in_virtual_time
async def test_enqueue_returns_the_job_with_the_handlers_options():
    async with broker() as queue:
        job = await send_email.enqueue(queue, Email(to="a@b"))
        assert await only_job(queue) == job
        assert ("send_email", b'{"to":"a@b"}', 8, -3, 60) == (
            job.entrypoint,
            job.payload,
            job.max_attempts,
            job.priority,
            job.keep_result,
        )
        assert (None, None) == (job.concurrency_key, job.concurrency_limit)


@in_virtual_time
async def test_options_of_enqueue_override_the_handlers():
    async with broker() as queue:
        job = await send_email.enqueue(
            queue, {"to": "a@b"}, delay=60, priority=4, max_attempts=None, concurrency_key="a", deadline=5
        )
        assert (4, None, "a", 2) == (job.priority, job.max_attempts, job.concurrency_key, job.concurrency_limit)
        assert job.run_at is not None


def test_operation_is_an_enqueue():
    operation = send_email.operation(Email(to="x"), priority=1, job_id="mail-1")
    wanted = Enqueue("send_email", b'{"to":"x"}', 1, job_id="mail-1", max_attempts=8, keep_result=60)
    assert wanted == operation


@in_virtual_time
async def test_result_waits_and_raises_what_became_of_the_job():
    failing = Worker()

    @failing.handler("discard", keep_result=60)
    async def discard() -> int:
        raise Discard("never")

    async with broker() as queue:
        job = await discard.enqueue(queue)
        with pytest.raises(ResultTimeoutError):
            await discard.result(queue, job, timeout=5)
        await failing.run(queue, drain=True, signals=False)
        with pytest.raises(JobFailedError, match="never"):
            await discard.result(queue, job.id, timeout=5)


def test_a_payload_for_a_handler_that_takes_none_is_refused():
    @Worker().handler("work")
    async def work() -> None:
        pass

    with pytest.raises(InvalidJobError, match="takes no payload"):
        work.operation(5)
    with pytest.raises(InvalidJobError, match="none was given"):
        send_email.operation()


def test_two_handlers_of_one_entrypoint_are_refused():
    with pytest.raises(InvalidJobError, match="has a handler already"):
        worker.handler("send_email")(lambda: None)


def test_decorating_without_a_name_says_what_to_write():
    with pytest.raises(TypeError, match=r'write @worker.handler\("name"\)'):
        worker.handler(lambda: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"timeout": -1},
        {"max_running": 0},
        {"rate": 5},
        {"backoff": 5},
        {"priority": 2**40},
        {"keep_result": "long"},
        {"concurrency_limit": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidJobError):
        Worker().handler("work", **options)


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"grace": -1}, {"claim_timeout": "5"}, {"concurrency": 20_000}]
)
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidJobError):
        Worker(**options)


def test_rates_that_make_no_sense_are_refused():
    for wrong in ((0, 1), (1, 0), (1, -1)):
        with pytest.raises(InvalidJobError):
            Rate(*wrong)


class Poor:
    """A queue that lacks what its format has no place for, and would refuse to be asked for it."""

    def __init__(self, queue, **missing):
        self._queue = queue
        self.capabilities = replace(Capabilities(), **dict.fromkeys(missing, False))
        self.refused = []

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def heartbeat_many(self, jobs, **options):
        raise AssertionError("it knows no heartbeats")

    async def dequeue(self, *args, **options):
        assert not {"wait", "claim_timeout"} & set(options)
        return await self._queue.dequeue(*args, **options)

    async def apply_each(self, *operations, **options):
        for operation in operations:
            said = {name for name in ("delay", "error") if getattr(operation, name, None) is not None}
            assert not said
            assert not getattr(operation, "dead", False)
            assert getattr(operation, "charge", True)
        return await self._queue.apply_each(*operations, **options)


@in_virtual_time
async def test_what_a_queue_cannot_do_is_not_asked_of_it():
    own, done = Worker(claim_timeout=0.05), []

    @own.handler("work")
    async def work() -> None:
        await asyncio.sleep(1)
        done.append(1)
        if done.count(1) == 1:
            raise ValueError

    @own.handler("snoozed")
    async def snoozed() -> None:
        done.append(2)
        if done.count(2) < 3:
            raise Snooze(5)

    @own.handler("discarded", backoff=Exponential())
    async def discarded() -> None:
        raise Discard("never")

    async with broker() as queue:
        poor = Poor(
            queue,
            **dict.fromkeys(["heartbeat", "wait", "claim_timeout", "delay", "errors", "dead_letters", "uncharged"]),
        )
        for handler in (work, snoozed, discarded):
            await queue.enqueue(handler.entrypoint, b"")
        assert RunReport(succeeded=2, failed=1, snoozed=2, dead=1) == await own.run(poor, drain=True, signals=False)
        assert () == (await queue.read_state()).jobs


@in_virtual_time
async def test_limits_and_schedules_that_a_queue_cannot_keep_are_an_error():
    limited, scheduled = Worker(), Worker()

    @limited.handler("work", max_running=1)
    async def work() -> None:
        pass

    @scheduled.cron("0 3 * * *")
    async def nightly() -> None:
        pass

    async with broker() as queue:
        with pytest.raises(InvalidJobError, match="no limits"):
            await limited.run(Poor(queue, limits=1, wait=1, claim_timeout=1), signals=False)
        with pytest.raises(InvalidJobError, match="no schedules"):
            await scheduled.run(Poor(queue, schedules=1, wait=1, claim_timeout=1), signals=False)
