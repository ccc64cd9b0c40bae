"""The actions of the dashboard: each is one commit, made only if what the operator saw still holds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jqueue import DirectQueue, JobStatus, LocalFileSystemStorage
from jqueue.server import dashboard
from tests.server.asgi import act, get


async def seen(app, job_id):
    """The job as an operator's page shows it now."""
    return (await get(app, f"/api/job?id={job_id}")).values


async def on_job(app, action, job_id, **body):
    job = await seen(app, job_id)
    return await act(app, action, {"id": job_id, "seen": job["seen"], **body})


async def version(queue):
    return (await queue.stats()).version


async def kill(queue, entrypoint="mail", error="no server"):
    job = await queue.enqueue(entrypoint, b"", max_attempts=1)
    [claimed] = await queue.dequeue(entrypoint)
    await queue.nack(claimed, error=error, dead=True)
    return job.id


async def test_cancel_removes_the_job_in_one_commit(queue, app):
    job = await queue.enqueue("mail", b"")
    before = await version(queue)
    answer = await on_job(app, "cancel", job.id)
    assert (200, {"done": 1}, before + 1) == (answer.status, answer.values, await version(queue))
    assert await queue.find(job.id) is None


async def test_a_job_in_progress_is_told_to_stop_only_if_the_operator_says_so(queue, app):
    job = await queue.enqueue("mail", b"")
    await queue.dequeue("mail")
    refused = await on_job(app, "cancel", job.id)
    assert (409, "changed") == (refused.status, refused.values["kind"])
    assert 200 == (await on_job(app, "cancel", job.id, running=True)).status
    [held] = (await queue.read_state()).in_progress_jobs()
    assert held.cancel_requested


async def test_a_job_that_was_claimed_meanwhile_is_not_cancelled_and_the_operator_is_told(queue, other, app):
    job = await queue.enqueue("mail", b"")
    shown = await seen(app, job.id)
    await other.dequeue("mail")
    before = await version(queue)
    answer = await act(app, "cancel", {"id": job.id, "seen": shown["seen"], "running": True})
    assert (409, "changed") == (answer.status, answer.values["kind"])
    assert "in progress now" in answer.values["error"]
    assert before == await version(queue)


class Interrupted(LocalFileSystemStorage):
    """A file whose first write waits until another program has done something."""

    first: Callable[[], Awaitable[Any]] | None = None

    async def write(self, content, if_match=None):
        if self.first is not None:
            first, self.first = self.first, None
            await first()
        return await super().write(content, if_match)


async def test_the_commit_itself_compares_the_job_with_what_was_seen(path, other):
    """Another program claims the job after the dashboard has read the queue, and before it writes."""
    storage = Interrupted(path)
    async with DirectQueue(storage) as queue:
        job = await queue.enqueue("mail", b"")
        app = dashboard(queue, authorize=lambda request: "operator")
        shown = await seen(app, job.id)
        storage.first = lambda: other.dequeue("mail")
        answer = await act(app, "cancel", {"id": job.id, "seen": shown["seen"], "running": True})
        assert (409, "changed") == (answer.status, answer.values["kind"])
        assert "has changed meanwhile" in answer.values["error"]
        [held] = (await queue.read_state()).in_progress_jobs()
        assert not held.cancel_requested


async def test_two_operators_cancel_one_job_and_one_of_them_is_told(queue, app):
    job = await queue.enqueue("mail", b"")
    shown = await seen(app, job.id)
    body = {"id": job.id, "seen": shown["seen"]}
    answers = await asyncio.gather(act(app, "cancel", body), act(app, "cancel", body))
    assert [200, 409] == sorted(answer.status for answer in answers)


async def test_redrive_queues_a_dead_job_again(queue, app):
    job_id = await kill(queue)
    assert 200 == (await on_job(app, "redrive", job_id)).status
    assert JobStatus.QUEUED is (await queue.find(job_id)).status


async def test_a_group_of_dead_jobs_is_queued_again_without_the_others(queue, app):
    same = [await kill(queue, error=f"no server {number}") for number in range(3)]
    others = [await kill(queue, error="disk full"), await kill(queue, "resize", "no server 1")]
    before = await version(queue)
    seen_at = (await get(app, "/api/dead")).values["now"] + 1
    body = {"entrypoint": "mail", "pattern": "no server #", "seen_at": seen_at}
    answer = await act(app, "redrive-group", body)
    assert ({"done": 3, "changed": 0, "refused": 0, "left": 0}, before + 1) == (answer.values, await version(queue))
    assert (409, before + 1) == ((await act(app, "redrive-group", body)).status, await version(queue))
    assert {JobStatus.QUEUED} == {(await queue.find(job_id)).status for job_id in same}
    assert {JobStatus.DEAD} == {(await queue.find(job_id)).status for job_id in others}


async def test_a_group_of_dead_jobs_is_removed_without_those_that_died_since(queue, app):
    for number in range(3):
        await kill(queue, error=f"no server {number}")
    seen_at = (await get(app, "/api/dead")).values["now"] + 0.001
    await asyncio.sleep(0.005)
    stay = {await kill(queue, error="no server 9"), await kill(queue, error="disk full")}
    body = {"entrypoint": "mail", "pattern": "no server #", "seen_at": seen_at}
    assert 3 == (await act(app, "remove-group", body)).values["done"]
    assert stay == {job.id for job in (await queue.read_state()).dead_jobs()}


async def test_one_dead_job_is_removed_for_good(queue, app):
    job_id, other_id = await kill(queue), await kill(queue)
    assert {"done": 1} == (await on_job(app, "remove", job_id)).values
    assert [other_id] == [job.id for job in (await queue.read_state()).dead_jobs()]


async def test_purge_leaves_the_jobs_that_died_after_the_operator_looked(path, other):
    """One job dies before the action, and one between its first write, which is lost, and its commit."""
    storage = Interrupted(path)
    async with DirectQueue(storage) as queue:
        app = dashboard(queue, authorize=lambda request: "operator")
        await kill(queue)
        await kill(queue, "resize")
        seen_at = (await get(app, "/api/dead")).values["now"]
        later = [await kill(queue)]

        async def meanwhile():
            later.append(await kill(other))

        storage.first = meanwhile
        assert {"done": 1} == (await act(app, "purge", {"entrypoint": "mail", "seen_at": seen_at})).values
        assert {"done": 1} == (await act(app, "purge", {"entrypoint": None, "seen_at": seen_at})).values
        assert later == [job.id for job in (await queue.read_state()).dead_jobs()]


async def test_a_job_that_died_while_the_page_was_read_counts_as_later(path, other, app):
    class Slow(LocalFileSystemStorage):
        async def read(self):
            found = await super().read()
            await kill(other)
            return found

    async with DirectQueue(Slow(path)) as queue:
        await kill(other)
        seen = (await get(dashboard(queue, authorize=lambda request: "operator"), "/api/dead")).values
        assert 1 == seen["total"]
        assert {"done": 1} == (await act(app, "purge", {"entrypoint": None, "seen_at": seen["now"]})).values
        assert 1 == len((await other.read_state()).dead_jobs())


async def test_reschedule_can_be_undone_with_the_answer(queue, app):
    job = await queue.enqueue("mail", b"", delay=3600)
    run_at = (await queue.find(job.id)).run_at
    now = await on_job(app, "reschedule", job.id, run_at=None)
    assert (await queue.find(job.id)).run_at is None
    back = await act(app, "reschedule", {"id": job.id, "seen": now.values["seen"], "run_at": run_at.timestamp()})
    assert 200 == back.status
    assert run_at == (await queue.find(job.id)).run_at


async def test_an_undo_is_refused_if_another_operator_has_changed_the_job(queue, other, app):
    job = await queue.enqueue("mail", b"", delay=3600)
    now = await on_job(app, "reschedule", job.id, run_at=None)
    await other.reprioritise(job.id, 7)
    back = await act(app, "reschedule", {"id": job.id, "seen": now.values["seen"], "run_at": 4102444800})
    assert (409, "changed") == (back.status, back.values["kind"])


async def test_a_priority_is_changed(queue, app):
    job = await queue.enqueue("mail", b"")
    assert 200 == (await on_job(app, "reprioritise", job.id, priority=-5)).status
    assert -5 == (await queue.find(job.id)).priority


OPEN = {"paused": False, "running": None, "rate": None, "per": None}


async def rules(queue):
    found = (await queue.read_state()).entrypoints.get("mail")
    return None if found is None else (found.paused, found.max_running, found.rate, found.per)


async def test_pause_and_resume(queue, app):
    assert 200 == (await act(app, "pause", {"entrypoint": "mail", "seen": OPEN})).status
    assert (True, None, None, None) == await rules(queue)
    assert 200 == (await act(app, "resume", {"entrypoint": "mail", "seen": {**OPEN, "paused": True}})).status
    assert await rules(queue) is None


async def test_limits_are_replaced(queue, app):
    body = {"entrypoint": "mail", "seen": OPEN, "running": 2, "rate": 100, "per": 60}
    assert 200 == (await act(app, "limit", body)).status
    assert (False, 2, 100, 60.0) == await rules(queue)


async def test_limits_that_another_operator_has_changed_are_not_overwritten(queue, other, app):
    await other.limit("mail", running=3)
    answer = await act(app, "limit", {"entrypoint": "mail", "seen": OPEN, "running": 2})
    assert (409, "changed", (False, 3, None, None)) == (answer.status, answer.values["kind"], await rules(queue))


async def test_jobs_are_cancelled_by_filters_except_those_that_changed_or_came_since(queue, other, app):
    ids = [(await queue.enqueue("mail", b"", priority=number)).id for number in range(3)]
    others = [(await queue.enqueue("resize", b"")).id, (await queue.enqueue("mail", b"", delay=60)).id]
    seen_at = (await get(app, "/api/jobs")).values["now"] + 0.001
    await asyncio.sleep(0.005)
    later = await queue.enqueue("mail", b"")
    [claimed] = await other.dequeue("mail")
    before = await version(queue)
    body = {"query": {"entrypoint": "mail", "state": "ready"}, "seen_at": seen_at}
    answer = await act(app, "cancel-found", body)
    assert ({"done": 2, "changed": 0, "refused": 0, "left": 0}, before + 1) == (answer.values, await version(queue))
    assert claimed.id == ids[0]
    assert {claimed.id, later.id, *others} == {job.id for job in (await queue.read_state()).jobs}


async def test_a_cron_entry_is_removed_if_it_is_still_as_it_was_seen(queue, other, app):
    await queue.schedule("nightly", "0 3 * * *", "report")
    body = {"name": "nightly", "seen": ["0 3 * * *", "UTC", "report"]}
    await other.schedule("nightly", "0 4 * * *", "report")
    assert 409 == (await act(app, "unschedule", body)).status
    assert {"done": 1} == (await act(app, "unschedule", {**body, "seen": ["0 4 * * *", "UTC", "report"]})).values
    assert [] == await queue.schedules()


async def test_a_cron_entry_is_run_now_if_it_is_still_as_it_was_seen(queue, other, app):
    await queue.schedule("nightly", "0 3 * * *", "report")
    [entry] = (await get(app, "/api/overview")).values["schedules"]
    body = {"name": "nightly", "seen": [entry["cron"], entry["timezone"], entry["entrypoint"]]}
    added = (await act(app, "run-schedule", body)).values["id"]
    assert "report" == (await queue.find(added)).entrypoint
    await other.schedule("nightly", "0 4 * * *", "report")
    assert 409 == (await act(app, "run-schedule", body)).status


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("cancel", {}),
        ("cancel", {"id": 7}),
        ("reschedule", {"id": "a", "run_at": "soon"}),
        ("reschedule", {"id": "a", "run_at": 1e300}),
        ("reprioritise", {"id": "a"}),
        ("reprioritise", {"id": "a", "priority": 1.5}),
        ("limit", {"entrypoint": "mail", "seen": OPEN, "rate": 7}),
        ("limit", {"entrypoint": "mail", "seen": OPEN, "running": True}),
        ("purge", {}),
        ("purge", {"seen_at": 1e300}),
        ("purge", {"seen_at": 1e14}),
        ("reprioritise", {"id": "a", "priority": float("nan")}),
        ("redrive-group", {}),
        ("cancel-found", {"seen_at": 1}),
        ("cancel-found", {"query": {"state": 7}, "seen_at": 1}),
        ("cancel-found", {"query": {"state": "x"}, "seen_at": 1}),
    ],
)
async def test_a_wrong_argument_is_refused_in_one_sentence(queue, app, action, body):
    await queue.enqueue("mail", b"", job_id="a")
    before = await version(queue)
    answer = await act(app, action, body)
    assert (400, "invalid") == (answer.status, answer.values["kind"]) or (409, "changed") == (
        answer.status, answer.values["kind"],
    )  # fmt: skip
    assert before == await version(queue)


async def test_an_unknown_action_and_a_body_that_is_no_object_are_refused(app):
    assert 404 == (await act(app, "drop-everything", {})).status
    assert 400 == (await act(app, "cancel", [1])).status
    assert 413 == (await act(app, "cancel", {"id": "x" * 100_000})).status
