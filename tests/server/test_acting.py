"""The actions of the dashboard: each is one commit, made only if what the operator saw still holds."""

from collections.abc import Awaitable, Callable
from typing import Any

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


OPEN = {"paused": False, "running": None, "rate": None, "per": None}


async def rules(queue):
    found = (await queue.read_state()).entrypoints.get("mail")
    return None if found is None else (found.paused, found.max_running, found.rate, found.per)


async def test_jobs_are_cancelled_by_filters_except_those_that_changed_or_came_since(queue, other, app):
    ids = [(await queue.enqueue("mail", b"", priority=number)).id for number in range(3)]
    others = [(await queue.enqueue("resize", b"")).id, (await queue.enqueue("mail", b"", delay=60)).id]
    later = await queue.enqueue("mail", b"")
    seen_at = later.created_at.timestamp() - 0.000_001
    [claimed] = await other.dequeue("mail")
    before = await version(queue)
    body = {"query": {"entrypoint": "mail", "state": "ready"}, "seen_at": seen_at}
    answer = await act(app, "cancel-found", body)
    assert ({"done": 2, "changed": 0, "refused": 0, "left": 0}, before + 1) == (answer.values, await version(queue))
    assert claimed.id == ids[0]
    assert {claimed.id, later.id, *others} == {job.id for job in (await queue.read_state()).jobs}


async def test_a_wrong_argument_is_refused_in_one_sentence(queue, app):
    await queue.enqueue("mail", b"", job_id="a")
    before = await version(queue)
    for action, body in (
        ("cancel", {}),
        ("reschedule", {"id": "a", "run_at": "soon"}),
        ("reprioritise", {"id": "a", "priority": float("nan")}),
        ("limit", {"entrypoint": "mail", "seen": OPEN, "rate": 7}),
        ("purge", {"seen_at": 1e300}),
        ("cancel-found", {"query": {"state": "x"}, "seen_at": 1}),
    ):
        answer = await act(app, action, body)
        assert (answer.status, answer.values["kind"]) in ((400, "invalid"), (409, "changed")), action
    assert before == await version(queue)


async def test_each_action_on_a_job_does_its_work_in_one_commit_if_the_job_is_as_it_was_seen(queue, other, app):
    for action, body, (field, expected) in (
        ("remove", {}, ("id", None)),
        ("redrive", {}, ("status", JobStatus.QUEUED)),
        ("reprioritise", {"priority": -5}, ("priority", -5)),
        ("cancel", {}, ("id", None)),
    ):
        job_id = await kill(queue) if action in ("redrive", "remove") else (await queue.enqueue("mail", b"")).id
        shown = await seen(app, job_id)
        before = await version(queue)
        answers = [await act(app, action, {"id": job_id, "seen": shown["seen"], **body}) for _ in range(2)]
        assert [200, 409] == [answer.status for answer in answers], action
        assert before + 1 == await version(queue)
        assert expected == getattr(await queue.find(job_id), field, None)


async def test_entrypoints_are_paused_resumed_and_limited_if_nobody_else_has_changed_them(queue, other, app):
    await act(app, "pause", {"entrypoint": "mail", "seen": OPEN})
    assert (True, None, None, None) == await rules(queue)
    await act(app, "resume", {"entrypoint": "mail", "seen": {**OPEN, "paused": True}})
    await act(app, "limit", {"entrypoint": "mail", "seen": OPEN, "running": 2, "rate": 100, "per": 60})
    assert (False, 2, 100, 60.0) == await rules(queue)
    assert 409 == (await act(app, "limit", {"entrypoint": "mail", "seen": OPEN, "running": 3})).status
    assert (False, 2, 100, 60.0) == await rules(queue)
