"""Decorated functions can be called, enqueue jobs with their options, and wait for results."""

import asyncio
import functools
import inspect
from dataclasses import fields, replace
from typing import Any

import pytest
from pydantic import BaseModel

from jqueue import InvalidJobError, Job
from jqueue.domain.errors import JobFailedError, ResultTimeoutError
from jqueue.operations import Enqueue
from jqueue.ports.queue import Capabilities, JobQueue
from jqueue.worker import Context, Discard, Exponential, Rate, RunReport, Snooze, Worker
from jqueue.worker.handler_options import EnqueueArguments, OperationArguments
from tests.virtual_world import in_virtual_time
from tests.worker.scenes import broker, only_job


class Email(BaseModel):
    to: str


def unchecked(handler) -> Any:
    """The same object as `Any`, so that type checkers accept wrong arguments."""
    return handler


worker = Worker()


@worker.handler("send_email", max_attempts=8, priority=-3, keep_result=60, concurrency_limit=2)
async def send_email(message: Email, ctx: Context) -> int:
    """Send it."""
    return len(message.to)


def test_calling_the_decorated_object_calls_the_function():
    assert 3 == asyncio.run(send_email(Email(to="a@b"), Context(Job.new("send_email", b""))))
    assert ("send_email", "Send it.") == (send_email.__name__, send_email.__doc__)


@in_virtual_time
async def test_enqueue_returns_the_job_with_the_options_of_its_handler():
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
async def test_options_of_enqueue_override_those_of_the_handler():
    async with broker() as queue:
        job = await send_email.enqueue(
            queue, Email(to="a@b"), delay=60, priority=4, max_attempts=None, concurrency_key="a", deadline=5
        )
        assert (4, None, "a", 2) == (job.priority, job.max_attempts, job.concurrency_key, job.concurrency_limit)
        assert job.run_at is not None


def test_operation_is_an_enqueue():
    operation = send_email.operation(Email(to="x"), priority=1, job_id="mail-1")
    wanted = Enqueue("send_email", b'{"to":"x"}', 1, job_id="mail-1", max_attempts=8, keep_result=60)
    assert wanted == operation


@in_virtual_time
async def test_result_waits_for_the_job_and_raises_its_error():
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
        unchecked(work).operation(5)
    with pytest.raises(InvalidJobError, match="none was given"):
        unchecked(send_email).operation()


def test_two_handlers_of_one_entrypoint_are_refused():
    with pytest.raises(InvalidJobError, match="already has a handler"):
        worker.handler("send_email")(lambda: None)


def test_decorating_without_a_name_raises_an_error_with_the_right_form():
    some: Any = Worker()
    for wrong in (lambda: some.handler(print), lambda: some.handler(), lambda: some.handler(max_attempts=3)):
        with pytest.raises(TypeError, match=r'write @worker.handler\("name"\)'):
            wrong()
    with pytest.raises(TypeError, match=r'write @worker.cron\("0 3 \* \* \*"\)'):
        some.cron()


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"retries": 3}, "'retries': it is 'max_attempts' here, which counts the first try as well"),
        (
            {"max_tries": 3},
            r"'max_tries': it is 'max_attempts' here \(the options are max_attempts, backoff, timeout, ",
        ),
        ({"job_timeout": 3}, "'job_timeout': it is 'timeout' here"),
        ({"queue": "mails"}, "'queue': make one queue object per queue"),
        ({"delay": 3}, "give 'delay' with each job"),
        ({"countdown": 3}, "give 'delay' with each job"),
        ({"max_runing": 3}, "did you mean 'max_running'"),
        ({"xyz": 3}, r"no option 'xyz' \(the options are"),
    ],
)
def test_an_unknown_handler_option_is_named_with_its_replacement(options, advice):
    with pytest.raises(TypeError, match=advice):
        unchecked(Worker()).handler("work", **options)
    with pytest.raises(TypeError, match=r"^cron: there is no option"):
        unchecked(Worker()).cron("0 3 * * *", **options)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"dely": 3}, "enqueue of the handler 'send_email': there is no option 'dely': did you mean 'delay'"),
        ({"countdown": 3}, r"'countdown': it is 'delay' here \(the options are priority, job_id, .*, deadline\)$"),
        ({"eta": 3}, "'eta': it is 'run_at' here"),
        ({"_defer_by": 3}, "'_defer_by': it is 'delay' here"),
        ({"timeout": 3}, "give 'timeout' to the handler"),
        ({"time_limit": 3}, "give 'timeout' to the handler"),
    ],
)
@in_virtual_time
async def test_an_unknown_enqueue_option_is_named_with_its_replacement(options, advice):
    async with broker() as queue:
        with pytest.raises(TypeError, match=advice):
            await unchecked(send_email).enqueue(queue, Email(to="a@b"), **options)
    with pytest.raises(TypeError, match="operation of the handler 'send_email'"):
        unchecked(send_email).operation(Email(to="a@b"), **options)


def test_a_payload_given_as_separate_fields_is_refused():
    with pytest.raises(TypeError, match=r"no option 'to'.*give it as one value before the options"):
        unchecked(send_email).operation(to="a@b")


def test_the_typed_options_are_those_of_the_queue():
    of_an_enqueue = [field.name for field in fields(Enqueue)][2:]
    assert of_an_enqueue == list(OperationArguments.__annotations__)
    of_the_verb = list(inspect.signature(JobQueue.enqueue).parameters)[3:]
    assert of_the_verb == list(EnqueueArguments.__annotations__)


def in_wrapper(function):
    """The function in a wrapper, as most decorators make it."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Counting:
    """A callable object."""

    def __init__(self):
        self.seen = []

    async def __call__(self, number: int, ctx: Context) -> None:
        self.seen.append((number, ctx.entrypoint))


@in_virtual_time
async def test_coroutine_functions_are_awaited_behind_wrappers_partials_and_objects():
    own, counting = Worker(), Counting()

    async def count(store: list[Any], number: int, ctx: Context, *, times: int = 1) -> None:
        store.append((number * times, ctx.entrypoint))

    wrapped = own.handler("wrapped")(in_wrapper(functools.partial(count, counting.seen)))
    partial = own.handler("partial")(functools.partial(in_wrapper(count), counting.seen, times=10))
    preset = own.handler("preset")(functools.partial(count, counting.seen, number=7, times=1))
    called = own.handler("called")(counting)
    assert ["loop"] * 4 == [handler.home for handler in own.handlers.values()]
    assert ["count", "Counting"] == [partial.__name__, called.__name__]
    async with broker() as queue:
        for handler in (wrapped, partial, called):
            await unchecked(handler).enqueue(queue, 2)
        await unchecked(preset).enqueue(queue)
        assert RunReport(succeeded=4) == await own.run(queue, drain=True, signals=False)
    assert [(2, "called"), (2, "wrapped"), (7, "preset"), (20, "partial")] == sorted(
        counting.seen, key=lambda seen: (seen[0], seen[1])
    )


@in_virtual_time
async def test_a_plain_function_that_returns_an_unawaited_coroutine_fails():
    own = Worker()

    async def work() -> None:
        raise AssertionError("nobody awaits it")

    own.handler("hidden", max_attempts=1)(lambda: work())
    async with broker() as queue:
        await queue.enqueue("hidden", b"")
        assert RunReport(dead=1) == await own.run(queue, drain=True, signals=False)
        assert "that was never awaited" in str((await only_job(queue)).error)


def test_generators_are_refused():
    def plain():
        yield

    async def with_async():
        yield

    for generator in (plain, with_async, in_wrapper(plain), functools.partial(with_async)):
        with pytest.raises(TypeError, match="must not be a generator"):
            Worker().handler("work")(generator)


def test_a_process_handler_that_cannot_be_found_by_name_is_refused():
    for function, reason in (
        (functools.partial(lambda: None), "imported by its name"),
        (in_wrapper(Counting()), "async"),
    ):
        with pytest.raises(TypeError, match=reason):
            Worker().handler("work", process=True)(function)


def test_a_handler_that_is_not_a_function_is_refused():
    for wrong in (5, Counting):
        with pytest.raises(TypeError, match="must be a function"):
            unchecked(Worker()).handler("work")(wrong)


def test_a_handler_decorated_again_is_a_handler_of_the_inner_function():
    one, other, third = Worker(), Worker(), Worker()

    @third.cron("0 3 * * *")
    @other.handler("outer", priority=2)
    @one.handler("inner", priority=1)
    async def work() -> None:
        pass

    assert (["inner"], ["outer"], ["work"]) == (list(one.handlers), list(other.handlers), list(third.handlers))
    functions = {worker.handlers[name].function for worker, name in ((one, "inner"), (other, "outer"), (third, "work"))}
    assert [work.function] == list(functions)
    assert inspect.isfunction(work.function)
    assert (1, 2) == (one.handlers["inner"].options.priority, other.handlers["outer"].options.priority)


def test_attributes_of_a_function_do_not_override_those_of_its_handler():
    async def work() -> None:
        pass

    unchecked(work).entrypoint = unchecked(work).options = "its own"
    handler = Worker().handler("work", priority=4)(work)
    assert ("work", 4) == (handler.entrypoint, handler.options.priority)


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
def test_invalid_handler_options_are_refused(options):
    with pytest.raises(InvalidJobError):
        Worker().handler("work", **options)


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"grace": -1}, {"claim_timeout": "5"}, {"concurrency": 20_000}]
)
def test_invalid_worker_settings_are_refused(options):
    with pytest.raises(InvalidJobError):
        Worker(**options)


def test_invalid_rates_are_refused():
    for wrong in ((0, 1), (1, 0), (1, -1)):
        with pytest.raises(InvalidJobError):
            Rate(*wrong)


class QueueWithout:
    """A queue without some features, which asserts that none of them is requested."""

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
async def test_a_worker_calls_only_the_features_that_its_queue_has():
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
        limited_queue = QueueWithout(
            queue,
            **dict.fromkeys(["heartbeat", "wait", "claim_timeout", "delay", "errors", "dead_letters", "uncharged"]),
        )
        for handler in (work, snoozed, discarded):
            await queue.enqueue(handler.entrypoint, b"")
        assert RunReport(succeeded=2, failed=1, snoozed=2, dead=1) == await own.run(
            limited_queue, drain=True, signals=False
        )
        assert () == (await queue.read_state()).jobs


@in_virtual_time
async def test_limits_and_schedules_are_refused_by_a_queue_without_them():
    limited, scheduled = Worker(), Worker()

    @limited.handler("work", max_running=1)
    async def work() -> None:
        pass

    @scheduled.cron("0 3 * * *")
    async def nightly() -> None:
        pass

    async with broker() as queue:
        with pytest.raises(InvalidJobError, match="no limits"):
            await limited.run(QueueWithout(queue, limits=1, wait=1, claim_timeout=1), signals=False)
        with pytest.raises(InvalidJobError, match="no schedules"):
            await scheduled.run(QueueWithout(queue, schedules=1, wait=1, claim_timeout=1), signals=False)
