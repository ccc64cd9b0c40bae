"""The lifespan and context variables of handlers; limits and schedules set when a worker starts."""

import asyncio
import contextvars
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from jqueue import InvalidJobError, connect
from jqueue.worker import Context, RunReport, Worker
from tests.worker.scenes import broker, working

pytestmark = pytest.mark.virtual_time

number = contextvars.ContextVar("number", default=0)


@pytest.mark.parametrize(("phase", "attempts"), [("opening", [0]), ("closing", [])])
async def test_a_lifespan_that_fails_ends_the_worker_before_any_claim_or_after_all_outcomes(phase, attempts):
    @asynccontextmanager
    async def lifespan():
        if phase == "opening":
            raise ConnectionError("no database")
        yield
        raise ConnectionError("no database")

    worker = Worker(lifespan=lifespan)

    @worker.handler("work")
    async def work() -> None: ...

    async with broker() as queue:
        await work.using(queue).enqueue()
        with pytest.raises(ConnectionError, match="no database"):
            await worker.run(queue, drain=True, signals=False)
        assert attempts == [job.attempt for job in (await queue.read_state()).jobs]


async def test_each_job_has_its_own_context_variables():
    worker, seen = Worker(), []

    def note(payload: int) -> None:
        seen.append(number.get())
        number.set(payload)

    @worker.handler("on the loop")
    async def on_the_loop(payload: int) -> None:
        note(payload)

    handlers = [on_the_loop, worker.handler("in a thread")(note)]
    number.set(-1)
    async with broker() as queue:
        await queue.enqueue_many([handler.call(value) for value in range(1, 10) for handler in handlers])
        await worker.run(queue, drain=True, signals=False)
    assert [-1] * 18 == seen
    assert -1 == number.get()


async def test_a_cron_handler_is_scheduled_at_the_start_and_runs_when_due():
    worker, fired = Worker(), []

    @worker.cron("10 1 * * *", timezone="Europe/Berlin", payload={"full": True}, unique_key="backup", max_attempts=2)
    async def nightly(options: dict[str, bool], ctx: Context) -> None:
        fired.append((options, ctx.headers["jqueue-scheduled-for"]))

    async with broker() as queue, working(worker, queue):
        await asyncio.sleep(700)
        [schedule] = await queue.schedules()
    assert ("nightly", 2, "backup") == (schedule.name, schedule.max_attempts, schedule.unique_key)
    assert [({"full": True}, datetime(2026, 1, 1, 0, 10, tzinfo=UTC).isoformat())] == fired


@pytest.mark.parametrize("phase", ["opening", "closing"])
async def test_a_worker_with_a_hanging_lifespan_can_be_stopped(phase):
    worker, reached = Worker(grace=5), asyncio.Event()

    @worker.lifespan
    @asynccontextmanager
    async def resources():
        for here in ("opening", "closing"):
            if here == phase:
                reached.set()
                await asyncio.sleep(10**6)
            if here == "opening":
                yield

    @worker.handler("work")
    async def work() -> None: ...

    async with broker() as queue:
        task = asyncio.create_task(worker.run(queue, signals=False))
        if phase == "closing":
            await asyncio.sleep(1)
            worker.stop()
        await reached.wait()
        worker.stop()
        assert RunReport() == await asyncio.wait_for(task, 60)


async def test_limits_and_schedules_are_refused_by_a_queue_without_them(tmp_path):
    limited, scheduled = Worker(), Worker()

    @limited.handler("work", max_running=1)
    async def work() -> None:
        pass

    @scheduled.cron("0 3 * * *")
    async def nightly() -> None:
        pass

    queue = connect(f"vsqs://{tmp_path}/queue")
    with pytest.raises(InvalidJobError, match="no limits"):
        await limited.run(queue, signals=False)
    with pytest.raises(InvalidJobError, match="no schedules"):
        await scheduled.run(queue, signals=False)
