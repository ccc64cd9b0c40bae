"""The actions of the dashboard: each is one commit, made only if what the operator saw still holds."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jqueue import DirectQueue, InMemoryStorage, JobStatus, LocalFileSystemStorage
from jqueue.domain.errors import StorageFatalError
from jqueue.domain.header import WorkerRecord
from jqueue.operations import Enqueue, Nack
from jqueue.server import dashboard
from jqueue.server.access import Role, TokenFile, Tokens
from jqueue.testing import FakeClock
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


async def test_the_commit_itself_compares_jobs_limits_and_a_cron_entry_with_what_was_seen(path, other):
    """Another program changes them after the dashboard has read the queue, and before it writes."""
    storage = Interrupted(path)
    async with DirectQueue(storage) as queue:
        job = await queue.enqueue("mail", b"", job_id="a")
        await queue.schedule("nightly", "0 3 * * *", "report")
        app = dashboard(queue, authorize=lambda request: "operator")
        shown = await seen(app, job.id)
        for action, body, meanwhile in (
            ("cancel", {"jobs": [["a", shown["seen"]]]}, lambda: other.reprioritise("a", 1)),
            ("cancel", {"query": {}, "seen_at": shown["now"] + 1}, lambda: other.reprioritise("a", 2)),
        ):
            storage.first = meanwhile
            assert {"done": 0, **DONE, "changed": 1} == (await act(app, action, body)).values
        shown = await seen(app, job.id)
        for action, body, meanwhile in (
            ("cancel", {"id": "a", "seen": shown["seen"]}, lambda: other.dequeue("mail")),
            ("limit", {"entrypoint": "mail", "seen": OPEN, "max_running": 5}, lambda: other.limit("mail", running=9)),
            (
                "unschedule",
                {"name": "nightly", "seen": ["0 3 * * *", "UTC", "report", 0]},
                lambda: other.schedule("nightly", "0 4 * * *", "report"),
            ),
        ):
            storage.first = meanwhile
            answer = await act(app, action, body)
            assert (409, "ChangedMeanwhileError") == answer.problem
            assert "meanwhile" in answer.values["detail"]
        state = await queue.read_state()
        [held] = state.in_progress_jobs()
        assert ("a", 2, False) == (held.id, held.priority, held.cancel_requested)
        assert 9 == state.entrypoints["mail"].max_running
        assert "0 4 * * *" == state.schedules["nightly"].cron


DONE = {"changed": 0, "refused": 0, "why": None, "left": False}


async def test_dead_jobs_are_queued_again_by_entrypoint_error_and_age_without_the_others(queue, app):
    same = [await kill(queue, error=f"no server {number}") for number in range(3)]
    others = [await kill(queue, error="disk full"), await kill(queue, "resize", "no server 1")]
    before = await version(queue)
    seen_at = (await get(app, "/api/dead")).values["now"] + 1
    query = {"state": "dead", "entrypoint": "mail", "pattern": "no server #"}
    body = {"query": {**query, "older": "60"}, "seen_at": seen_at}
    assert 409 == (await act(app, "redrive", body)).status  # none is dead for a minute
    body = {"query": {**query, "older": "0.5"}, "seen_at": seen_at}
    answer = await act(app, "redrive", body)
    assert ({"done": 3, **DONE}, before + 1) == (answer.values, await version(queue))
    assert (409, before + 1) == ((await act(app, "redrive", body)).status, await version(queue))
    assert {JobStatus.QUEUED} == {(await queue.find(job_id)).status for job_id in same}
    assert {JobStatus.DEAD} == {(await queue.find(job_id)).status for job_id in others}


async def test_a_dead_job_is_queued_again_with_a_corrected_payload_and_only_one_at_a_time(queue, app):
    job_id = await kill(queue)
    [job] = [[job_id, (await seen(app, job_id))["seen"]]]
    assert 422 == (await act(app, "edit", {"jobs": [job], "payload": "{}", "json": True})).status
    body = {"id": job_id, "seen": job[1], "json": True}
    assert 422 == (await act(app, "edit", {**body, "payload": "{"})).status
    assert 200 == (await act(app, "edit", {**body, "payload": '{"to":"ada"}'})).status
    assert [(job_id, b'{"to":"ada"}')] == [(each.id, each.payload) for each in await queue.dequeue()]


async def test_selected_jobs_are_changed_in_one_commit_except_those_that_changed_meanwhile(queue, other, app):
    ids = [(await queue.enqueue("mail", b"")).id for _ in range(3)]
    jobs = [[job_id, (await seen(app, job_id))["seen"]] for job_id in ids]
    await other.reprioritise(ids[1], 7)
    before = await version(queue)
    answer = await act(app, "reprioritise", {"jobs": jobs, "priority": -2})
    assert ({"done": 2, **DONE, "changed": 1}, before + 1) == (answer.values, await version(queue))
    assert [-2, 7, -2] == [(await queue.find(job_id)).priority for job_id in ids]
    many = await act(app, "cancel", {"jobs": jobs * 20})
    assert (422, "at most 50 jobs can be selected") == (many.status, many.values["detail"])


async def test_redriven_jobs_become_ready_at_the_rate_that_was_entered(queue, app):
    for _ in range(3):
        await kill(queue)
    body = {"query": {"state": "dead"}, "seen_at": (await get(app, "/api/dead")).values["now"] + 1}
    assert 422 == (await act(app, "redrive", {**body, "rate": 0})).status
    assert 3 == (await act(app, "redrive", {**body, "delay": "1m", "rate": 10, "before": 1})).values["done"]
    jobs = sorted((await queue.read_state()).queued_jobs(), key=lambda job: job.sequence)
    assert [66, 72, 78] == [(job.run_at - job.queued_at).total_seconds() for job in jobs]


async def test_all_jobs_that_match_are_changed_a_thousand_in_a_commit_even_behind_refused_ones(queue, app):
    jobs = await queue.enqueue_many(
        [Enqueue("mail", b"", unique_key=f"u{number // 2}") for number in range(0, 2500, 2)]
    )
    claimed = await queue.dequeue("mail", batch_size=len(jobs))
    await queue.apply(*(Nack(job, dead=True) for job in claimed))
    await queue.enqueue_many([Enqueue("mail", b"", unique_key=job.unique_key) for job in claimed[:1000]])
    before = await version(queue)
    body = {"query": {"state": "dead"}, "seen_at": (await get(app, "/api/dead")).values["now"] + 1}
    answer = (await act(app, "redrive", body)).values
    assert (250, 1000, False) == (answer["done"], answer["refused"], answer["left"])
    assert before + 1 == await version(queue)
    assert 1250 == (await queue.stats()).ready
    cancelled = await act(app, "cancel", {"query": {"entrypoint": "mail"}, "seen_at": body["seen_at"] + 9})
    assert (1250, before + 3) == (cancelled.values["done"], await version(queue))


async def test_an_action_on_all_that_match_never_reaches_jobs_of_other_states(queue, app):
    dead = await kill(queue)
    await queue.enqueue("mail", b"")
    answer = await act(app, "cancel", {"query": {}, "seen_at": (await get(app, "/api/jobs")).values["now"] + 1})
    assert 1 == answer.values["done"]
    assert [dead] == [job.id for job in (await queue.read_state()).jobs]
    refused = await act(app, "cancel", {"query": {"state": "dead"}, "seen_at": 1})
    assert (422, "this is for jobs that are expired or ready or scheduled or waiting") == (
        refused.status,
        refused.values["detail"],
    )


async def test_removing_all_leaves_the_jobs_that_died_after_the_operator_looked(path, other):
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
        answer = await act(app, "remove", {"query": {"state": "dead"}, "seen_at": seen_at})
        assert {"done": 2, **DONE} == answer.values
        assert later == [job.id for job in (await queue.read_state()).dead_jobs()]


class Tiring(InMemoryStorage):
    """A store whose writes take a while, and fail after some."""

    tired: FakeClock
    seconds = 0.0
    writes = 10**9

    async def write(self, content, if_match=None):
        if self.writes == 0:
            raise StorageFatalError("the store is away")
        self.writes -= 1
        self.tired.advance(self.seconds)
        return await super().write(content, if_match)


@pytest.fixture
async def tiring(monkeypatch):
    monkeypatch.setattr("jqueue.server.actions.CHUNK", 10)
    clock = FakeClock()
    storage = Tiring(clock=clock)
    storage.tired = clock
    async with DirectQueue(storage, clock=clock) as queue:
        yield storage, queue, dashboard(queue, authorize=lambda request: "operator", clock=clock)


@pytest.mark.parametrize(
    ("action", "values"),
    [("reprioritise", {"priority": 7}), ("reschedule", {"delay": "2h"}), ("run-now", {}), ("stop", {}), ("cancel", {})],
)
async def test_a_long_action_ends_after_ten_seconds_and_goes_on_until_each_job_was_changed_once(tiring, action, values):
    storage, queue, app = tiring
    delay = 3600 if action == "run-now" else 0
    await queue.enqueue_many([Enqueue("mail", b"", delay=delay) for _ in range(21)])
    if action == "stop":
        await queue.dequeue("mail", batch_size=21)
    storage.tired.advance(60)
    storage.seconds = 11.0
    body = {"query": {}, "seen_at": (await get(app, "/api/jobs")).values["now"], **values}
    answers: list[Any] = []
    while not answers or (answers[-1]["left"] and len(answers) < 9):
        answers.append((await act(app, action, body)).values)
        body |= answers[-1].get("again", {})  # as the page does
    assert [10, 10, 1] == [answer["done"] for answer in answers]
    assert 409 == (await act(app, action, body)).status  # nothing is left to do
    jobs = (await queue.read_state()).jobs
    if action == "reschedule":
        assert 1 == len({job.run_at for job in jobs})


async def test_a_store_that_fails_partway_leaves_the_rest_and_says_what_was_done(tiring):
    storage, queue, app = tiring
    await queue.enqueue_many([Enqueue("mail", b"") for _ in range(15)])
    storage.tired.advance(60)
    body = {"query": {}, "seen_at": (await get(app, "/api/jobs")).values["now"]}
    storage.writes = 1
    answer = (await act(app, "cancel", body)).values
    assert (10, True) == (answer["done"], answer["left"])
    assert "the store is away" in answer["why"]
    failed = await act(app, "cancel", body)
    assert (503, "StorageFatalError") == failed.problem
    assert 5 == (await queue.stats()).ready
    storage.writes = 10**9
    assert 5 == (await act(app, "cancel", body)).values["done"]


OPEN = {"paused": False, **dict.fromkeys(("max_running", "rate", "per", "key_rate", "key_per"))}


async def rules(queue):
    found = (await queue.read_state()).entrypoints.get("mail")
    return None if found is None else (found.paused, found.max_running, found.rate, found.per)


async def test_a_wrong_argument_is_refused_in_one_sentence(queue, app):
    await queue.enqueue("mail", b"", job_id="a")
    before = await version(queue)
    for action, body in (
        ("cancel", {}),
        ("reschedule", {"id": "a", "run_at": "soon"}),
        ("reprioritise", {"id": "a", "priority": float("nan")}),
        ("reprioritise", {"id": "a", "priority": 1.5}),
        ("reschedule", {"id": "a", "delay": "1 fortnight"}),
        ("cancel", {"jobs": ["a"]}),
        ("limit", {"entrypoint": "mail", "seen": OPEN, "rate": 7}),
        ("schedule", {"name": "nightly", "seen": None, "cron": "soon", "entrypoint": "mail"}),
        ("schedule", {"name": "nightly", "seen": None, "entrypoint": "mail"}),
        ("run-schedule", {"name": "no entry", "seen": None}),
        ("unschedule", {"name": "no entry"}),
        ("enqueue", {"entrypoint": ""}),
        ("enqueue", {"entrypoint": "mail", "payload": ["hunter2"]}),
        ("enqueue", {"entrypoint": "mail", "json": "yes"}),
        ("enqueue", {"entrypoint": "mail", "payload": "hunter2", "json": True}),
        ("requeue-stale", {}),
        ("remove", {"query": {}, "seen_at": 1e300}),
        ("cancel", {"query": {"state": "x"}, "seen_at": 1}),
        ("cancel", {"query": {"state": 7}, "seen_at": 1}),
    ):
        answer = await act(app, action, body)
        assert answer.problem in ((422, "InvalidJobError"), (409, "ChangedMeanwhileError")), action
        assert b"hunter2" not in answer.body
    wrong = await act(app, "reprioritise", {"id": "a", "seen": [], "priority": "high"})
    assert "the action needs 'priority' of the kind 'integer'" == wrong.values["detail"]
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
    await act(app, "limit", {"entrypoint": "mail", "seen": OPEN, "max_running": 2, "rate": 100, "per": "1m"})
    assert (False, 2, 100, 60.0) == await rules(queue)
    assert 409 == (await act(app, "limit", {"entrypoint": "mail", "seen": OPEN, "max_running": 3})).status
    assert (False, 2, 100, 60.0) == await rules(queue)


async def test_a_change_of_a_job_or_of_limits_is_undone_unless_somebody_else_has_changed_it_since(queue, other, app):
    job_id = (await queue.enqueue("mail", b"", delay=3600, priority=3)).id
    planned = (await queue.find(job_id)).run_at
    for action, body in (
        ("run-now", {}),
        ("reschedule", {"delay": "2h"}),
        ("reprioritise", {"priority": -1}),
    ):
        undo = (await on_job(app, action, job_id, **body)).values["undo"]
        changed = await queue.find(job_id)
        assert (planned, 3) != (changed.run_at, changed.priority)
        assert 200 == (await act(app, undo["action"], undo["body"])).status
        back = await queue.find(job_id)
        assert (planned, 3) == (back.run_at, back.priority)
    undo = (await act(app, "pause", {"entrypoint": "mail", "seen": OPEN})).values["undo"]
    assert 200 == (await act(app, undo["action"], undo["body"])).status
    await queue.limit("mail", running=2, rate=3, per=0.1)
    known = {**OPEN, "max_running": 2, "rate": 3, "per": 0.1}
    undo = (await act(app, "limit", {"entrypoint": "mail", "seen": known})).values["undo"]
    assert (False, None, None, None) == (await rules(queue) or (False, None, None, None))
    assert 200 == (await act(app, undo["action"], undo["body"])).status
    assert (False, 2, 3, 0.1) == await rules(queue)
    assert (await queue.read_state()).entrypoints["mail"].declared is None
    undo = (await on_job(app, "reprioritise", job_id, priority=9)).values["undo"]
    await other.reprioritise(job_id, 4)
    assert 409 == (await act(app, undo["action"], undo["body"])).status


async def test_what_an_operator_has_set_is_marked_and_reset_and_an_entry_is_paused(queue, app):
    await queue.limit("mail", running=2)
    known = {**OPEN, "max_running": 2}
    await act(app, "limit", {"entrypoint": "mail", "seen": known, "max_running": 5})
    await act(app, "schedule", {"name": "nightly", "seen": None, "cron": "0 3 * * *", "entrypoint": "mail"})
    shown = (await get(app, "/api/overview")).values
    assert [True, True] == [shown["entrypoints"]["mail"]["by_operator"], shown["schedules"][0]["by_operator"]]
    await act(app, "reset-limits", {"entrypoint": "mail", "seen": {**OPEN, "max_running": 5}})
    assert (False, 2, None, None) == await rules(queue)
    body = {"name": "nightly", "seen": ["0 3 * * *", "UTC", "mail", 0]}
    for action, paused in (("pause-schedule", True), ("resume-schedule", False)):
        assert 200 == (await act(app, action, body)).status
        assert paused is (await get(app, "/api/overview")).values["schedules"][0]["paused"]
    assert 200 == (await act(app, "reset-schedule", body)).status
    assert (await queue.schedules())[0].declared is None


async def test_a_job_is_added_with_payload_priority_and_delay(queue, app):
    body = {"entrypoint": "mail", "payload": '{"to": "é"}', "json": True, "priority": -3, "delay": "15m"}
    added = (await act(app, "enqueue", body)).values["name"]
    [job] = (await queue.read_state()).jobs
    assert added == job.id
    assert ("mail", '{"to": "é"}'.encode(), -3) == (job.entrypoint, job.payload, job.priority)
    assert 900 == round((job.run_at - job.created_at).total_seconds())
    assert 200 == (await act(app, "enqueue", {"entrypoint": "mail"})).status
    job = (await queue.read_state()).jobs[-1]
    assert (b"", 0, None) == (job.payload, job.priority, job.run_at)


async def test_a_cron_entry_is_added_changed_run_and_removed_if_it_is_as_it_was_seen(queue, app):
    body = {"name": "nightly", "seen": None, "cron": "0 3 * * *", "entrypoint": "report", "payload": "x", "priority": 2}
    assert 200 == (await act(app, "schedule", body)).status
    assert 409 == (await act(app, "schedule", body)).status  # it is there now
    await queue.schedule("nightly", "0 3 * * *", "report", b"x", priority=2, headers={"by": "ops"}, max_attempts=4)
    seen = ["0 3 * * *", "UTC", "report", 2]
    change = {"name": "nightly", "seen": seen, "cron": "0 4 * * *", "timezone": "Europe/Berlin", "entrypoint": "report"}
    assert 200 == (await act(app, "schedule", change)).status
    [entry] = await queue.schedules()
    assert ("0 4 * * *", "Europe/Berlin", b"x", 0) == (entry.cron, entry.timezone, entry.payload, entry.priority)
    assert ({"by": "ops"}, 4) == (dict(entry.headers), entry.max_attempts)
    assert 409 == (await act(app, "unschedule", {"name": "nightly", "seen": seen})).status
    now = ["0 4 * * *", "Europe/Berlin", "report", 0]
    assert 200 == (await act(app, "run-schedule", {"name": "nightly", "seen": now})).status
    assert [("report", b"x")] == [(job.entrypoint, job.payload) for job in (await queue.read_state()).jobs]
    assert {"done": 1, "name": "nightly"} == (await act(app, "unschedule", {"name": "nightly", "seen": now})).values
    assert [] == await queue.schedules()


async def test_claims_without_a_heartbeat_are_taken_back(queue, other, app):
    job = await queue.enqueue("mail", b"")
    await other.dequeue("mail")
    assert {"done": 0} == (await act(app, "requeue-stale", {"timeout": "1h"})).values
    assert {"done": 1} == (await act(app, "requeue-stale", {"timeout": "0s"})).values
    assert JobStatus.QUEUED is (await queue.find(job.id)).status


async def test_a_worker_is_told_to_stop_unless_it_has_left(queue, app):
    queue.attend("r1", lambda at: WorkerRecord("mailer", "east", 7, at=at), lambda: None)
    await queue.enqueue("mail", b"")
    overview = (await get(app, "/api/overview")).values
    [shown] = overview["workers_seen"]
    body = {"worker": shown["holder"]}
    assert {"done": 1, "name": "mailer@east:7"} == (await act(app, "stop-worker", body)).values
    assert [True] == [worker.stopping for worker in (await queue.stats()).workers]
    queue.leave("r1")
    await queue.enqueue("mail", b"")
    gone = await act(app, "stop-worker", body)
    assert (404, "WorkerNotFoundError") == gone.problem


async def test_the_history_names_the_token_of_the_user_who_asked(queue, tmp_path):
    await queue.configure(history=60)
    jobs = [await queue.enqueue("mail", b"") for _ in range(3)]
    TokenFile.add(tmp_path / "tokens", Role.OPERATOR, "alice", "hunter2")
    app = dashboard(queue, authorize=(tokens := Tokens(TokenFile(tmp_path / "tokens"), "cookie", "secret")))
    headers = {"cookie": f"cookie={tokens.session('hunter2')}"}
    first, *rest = (await get(app, "/api/jobs", headers=headers)).values["jobs"]
    await act(app, "cancel", {"id": first["id"], "seen": first["seen"]}, headers=headers)
    await act(app, "cancel", {"jobs": [[job["id"], job["seen"]] for job in rest]}, headers=headers)
    asked = {event.job_id: event.asked_by async for event in queue.history() if event.verb == "cancel"}
    assert dict.fromkeys((job.id for job in jobs), "alice") == asked
