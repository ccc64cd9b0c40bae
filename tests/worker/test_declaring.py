"""Handlers are declared by decorators, can be called, and enqueue jobs; whatever is wrong is refused with advice."""

import asyncio
import functools
import inspect
import logging
import threading
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from pydantic import BaseModel

from jqueue import BrokerQueue, InMemoryStorage, InvalidJobError, Job
from jqueue.operations import Enqueue, SetLimits, SetSchedule
from jqueue.worker import BatchContext, Context, Exponential, Rate, Retry, Router, RunReport, Snooze, Worker
from tests.virtual_world import in_virtual_time
from tests.worker.scenes import broker, drained, only_job

worker = Worker()
AnyWorker: Any = Worker
"""Accepts wrong arguments."""

AnyRouter: Any = Router


class Email(BaseModel):
    to: str


@worker.handler(
    "send_email", max_attempts=8, priority=-3, keep_result=60, concurrency_limit=2, fair_by_concurrency_key=True
)
async def send_email(message: Email, ctx: Context) -> int:
    """Send it."""
    return len(message.to)


send: Any = send_email


async def test_a_handler_can_be_called_like_its_function():
    assert 3 == await send_email(Email(to="a@b"), Context(Job.new("send_email", b"")))
    assert ("send_email", "Send it.") == (send_email.__name__, send_email.__doc__)


@in_virtual_time
async def test_jobs_have_the_options_of_their_handler_unless_enqueue_overrides_them():
    options: dict[str, Any] = {"max_attempts": 8, "keep_result": 60, "encoding": "named"}
    assert (
        Enqueue("send_email", b'{"message":{"to":"x"}}', -3, job_id="a", **options)
        == send.using(job_id="a").call(Email(to="x")).operation()
    )
    async with broker() as queue:
        job = await send_email.using(
            queue, delay=60, priority=4, max_attempts=None, concurrency_key="a", deadline=5
        ).enqueue(Email(to="a@b"))
        assert await only_job(queue) == job
    assert (b'{"message":{"to":"a@b"}}', 4, None, 60) == (job.payload, job.priority, job.max_attempts, job.keep_result)
    assert ("a", 2, "a", True) == (job.concurrency_key, job.concurrency_limit, job.fair_key, job.run_at is not None)


def test_the_settings_of_a_worker_are_checked_frozen_and_replaced():
    own = Worker(concurrency=3, grace=timedelta(minutes=1))
    assert (3, timedelta(minutes=1), "worker") == (own.settings.concurrency, own.settings.grace, own.settings.name)
    own.settings = replace(own.settings, concurrency=4)
    assert (4, timedelta(minutes=1)) == (own.settings.concurrency, own.settings.grace)
    with pytest.raises(FrozenInstanceError):
        own.settings.concurrency = 5  # type: ignore[misc]
    with pytest.raises(InvalidJobError, match="concurrency"):
        replace(own.settings, concurrency=0)
    assert {"concurrency", "cancel_grace", "lifespan"} < set(inspect.signature(Worker).parameters)


# Wrong options


def handler(**options):
    return AnyWorker().handler("work", **options)


@pytest.mark.parametrize(
    "declare",
    [
        handler,
        functools.partial(AnyWorker().cron, "0 3 * * *"),
        send.using,
        AnyWorker,
        AnyRouter,
        functools.partial(BatchContext, "work", []),
    ],
)
def test_an_unknown_option_is_named(declare):
    with pytest.raises(TypeError, match="'xyz'"):
        declare(xyz=3)


@pytest.mark.parametrize(
    ("declare", "options"),
    [
        (handler, {"max_attempts": 0}),
        (handler, {"timeout": -1}),
        (handler, {"rate": 5}),
        (handler, {"rate_per_key": 3}),
        (handler, {"backoff": 5}),
        (handler, {"batch": 10_001}),
        (handler, {"batch_wait": 3}),
        (handler, {"middleware": print}),
        (handler, {"retry": ValueError}),
        (handler, {"retry": 60}),
        (handler, {"retry": {"ValueError": 60}}),
        (handler, {"retry": {ValueError: "soon"}}),
        (handler, {"retry": {ValueError: Snooze}}),
        (handler, {"retry": send_email.function}),
        (AnyWorker, {"retry": {ValueError: -1}}),
        (AnyWorker, {"concurrency": 0}),
        (AnyWorker, {"grace": -1}),
        (AnyWorker, {"claim_timeout": 0.01}),
        (AnyWorker, {"give_up_after": "soon"}),
        (AnyWorker, {"name": None}),
        (AnyWorker, {"health": "8080"}),
        (AnyWorker, {"metrics": print}),
        (AnyRouter, {"max_attempts": 0}),
        (Exponential, {"base": 5, "cap": 1}),
        (Rate, {"count": 0, "per": 1}),
        (Retry, {"after": -1}),
        (Snooze, {"delay": "soon"}),
    ],
)
def test_an_invalid_value_of_an_option_is_refused(declare, options):
    with pytest.raises((InvalidJobError, ValueError)):
        declare(*options.values()) if declare in (Rate, Snooze) else declare(**options)


# Wrong functions


def undefined(message: "Later") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def without_annotation(message): ...


def two_in_batch(messages: list[bytes], third: int = 3) -> None: ...


def odd_payload(message: Worker) -> None: ...


def odd_second(number: int, message: Worker) -> None: ...


def odd_item(messages: list[Worker]) -> None: ...


def odd_result() -> Worker: ...  # type: ignore[empty-body]


def generates(payload: bytes):
    yield payload


async def is_async() -> None: ...


def takes_one(payload: bytes) -> None: ...


def returns_one(payloads: list[bytes]) -> int:
    return len(payloads)


def takes_context(payloads: list[bytes], it: Context) -> None: ...


def takes_batch_context(payload: bytes, it: BatchContext) -> None: ...


def wraps_itself(payload: bytes) -> None: ...


def takes_any(payload: bytes, *rest: int) -> None: ...


def takes_any_name(**names: int) -> None: ...


wraps_itself.__wrapped__ = functools.partial(wraps_itself)  # type: ignore[attr-defined]
wraps_itself.__wrapped__.__wrapped__ = wraps_itself  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "options", "advice"),
    [
        (without_annotation, {}, "annotate its parameter 'message' as bytes, str, a pydantic model"),
        (two_in_batch, {"batch": 2}, r"'messages' as a list .* only this one, without third\. A payload of several"),
        (wraps_itself, {}, "its parameters cannot be read: wrap it in a Python function"),
        (undefined, {}, "'Later', which is not defined when it is decorated"),
        (odd_payload, {}, "handler 'odd_payload', parameter 'message': pydantic cannot validate"),
        (odd_second, {}, "handler 'odd_second', parameter 'message': pydantic cannot validate"),
        (odd_item, {"batch": 2}, "handler 'odd_item', parameter 'messages': pydantic cannot validate"),
        (odd_result, {"keep_result": 60}, "handler 'odd_result', return type: pydantic cannot validate"),
        (takes_any, {}, r"\*rest: int takes arguments without names: .* needs functools\.wraps"),
        (takes_any_name, {}, r"\*\*names: int takes arguments without names"),
        (functools.partial(generates), {}, "must not be a generator"),
        (5, {}, "must be a function"),
        (is_async, {"process": True}, "without async"),
        (functools.partial(takes_one), {"process": True}, "imported by its name"),
        (takes_one, {"batch": 2}, r"annotate its parameter 'payload' as a list .* as in `payload: list"),
        (returns_one, {"batch": 2}, "must return None, or a list with one result for each job"),
        (takes_context, {"batch": 2}, "annotate its parameter 'it' as BatchContext: it takes a batch"),
        (takes_batch_context, {}, r"annotate its parameter 'it' as Context: .* unless batch=\.\.\. is given"),
    ],
)
def test_a_function_that_cannot_be_a_handler_is_refused_with_the_right_form(function, options, advice):
    with pytest.raises(TypeError, match=advice):
        handler(**options)(function)


def test_what_is_no_function_no_name_or_a_name_twice_is_refused():
    with pytest.raises(TypeError, match=r'write @worker.handler or @worker.handler\("name"\), got int'):
        AnyWorker().handler(5)
    with pytest.raises(TypeError, match="must be a function"):
        AnyWorker().handler(Email)
    with pytest.raises(TypeError, match=r'write @worker.cron\("0 3 \* \* \*"\)'):
        AnyWorker().cron(takes_one)
    with pytest.raises(InvalidJobError, match=rf"{__name__}.send_email, line \d+. Give {__name__}.is_async, line \d+"):
        worker.handler("send_email")(is_async)
    with pytest.raises(InvalidJobError, match="not a cron expression"):
        Worker().cron("at three")(is_async)
    with pytest.raises(InvalidJobError, match="Field required"):
        Worker().cron("0 3 * * *")(takes_one)


# Functions in wrappers


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
        self.seen.append((ctx.entrypoint, number))


@in_virtual_time
async def test_coroutine_functions_are_awaited_behind_wrappers_partials_and_objects():
    own, counting = Worker(), Counting()

    async def count(store: list[Any], number: int, ctx: Context, *, times: int = 1) -> None:
        store.append((ctx.entrypoint, number * times))

    own.handler("wrapped")(in_wrapper(functools.partial(count, counting.seen, times=3)))
    own.handler("partial")(functools.partial(in_wrapper(count), counting.seen, times=10))
    own.handler("called")(counting)
    own.handler("preset")(functools.partial(count, counting.seen, number=7, times=1))
    async with broker() as queue:
        for name in own.handlers:
            await queue.enqueue(name, b"2")
        assert RunReport(succeeded=4) == await drained(own, queue)
    assert [("called", 2), ("partial", 20), ("preset", 7), ("wrapped", 6)] == sorted(counting.seen)


def running(function):
    """The coroutine function as one without async, which runs an event loop of its own."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return asyncio.run(function(*args, **kwargs))

    return wrapper


async def test_the_outermost_function_decides_where_a_handler_runs():
    own, seen = Worker(), {}

    async def on_loop(ctx: Context) -> None:
        seen[ctx.entrypoint] = asyncio.get_running_loop() is loop

    def in_thread(ctx: Context) -> None:
        seen[ctx.entrypoint] = threading.current_thread() is threading.main_thread()

    own.handler("passes on")(in_wrapper(on_loop))
    own.handler("runs")(running(on_loop))
    own.handler("sync_to_async")(sync_to_async(in_thread, thread_sensitive=False))
    own.handler("twice")(in_wrapper(sync_to_async(in_thread, thread_sensitive=False)))
    loop = asyncio.get_running_loop()
    async with BrokerQueue(InMemoryStorage()) as queue:
        for name in own.handlers:
            await queue.enqueue(name, b"")
        assert RunReport(succeeded=4) == await own.run(queue, drain=True, signals=False)
    assert {"passes on": True, "runs": False, "sync_to_async": False, "twice": False} == seen


@in_virtual_time
async def test_an_operators_limit_and_cron_entry_stay_when_a_worker_starts_and_it_logs_so(caplog):
    caplog.set_level(logging.WARNING, "jqueue.worker")
    own = Worker()

    @own.handler(max_running=5, rate_per_key=Rate(2, per=60))
    async def mail() -> None: ...

    @own.cron("0 3 * * *")
    async def nightly() -> None: ...

    async with broker() as queue:
        await drained(own, queue)
        rules = (await queue.read_state()).entrypoints["mail"]
        assert ([], 5, 2, 60) == (caplog.messages, rules.max_running, rules.key_rate, rules.key_per)
        await queue.apply(
            SetLimits("mail", running=2, by="operator"), SetSchedule("nightly", "0 4 * * *", "nightly", by="operator")
        )
        await drained(own, queue)
        state = await queue.read_state()
    assert (2, "0 4 * * *") == (state.entrypoints["mail"].max_running, state.schedules["nightly"].cron)
    assert [
        "the limits of mail: an operator's value holds, not this program's. `jqueue limit URL mail --reset` ends that",
        "the cron entry nightly: an operator's value holds, not this program's."
        " `jqueue schedule URL nightly --reset` ends that",
    ] == sorted(caplog.messages, reverse=True)
