"""The figures and the jobs that the dashboard sends to its page."""

import json

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.core.blob.follower import Follower
from jqueue.operations import Enqueue
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.server import dashboard
from jqueue.testing.faults import FaultyStorage
from tests.server.asgi import get

SECRET = b"hunter2"


async def fill(queue):
    """One job in each state: returns their ids by state."""
    await queue.configure(history=3600)
    dead = await queue.enqueue("mail", SECRET, headers={"trace": "af31"}, max_attempts=1)
    [claimed] = await queue.dequeue("mail")
    await queue.nack(claimed, error="no server at 10.0.0.7", dead=True)
    done = await queue.enqueue("sum", SECRET, keep_result=60)
    [claimed] = await queue.dequeue("sum")
    await queue.ack(claimed, result={"total": "forty-two"})
    running = await queue.enqueue("resize", SECRET)
    await queue.dequeue("resize")
    scheduled = await queue.enqueue("mail", SECRET, delay=3600)
    ready = await queue.enqueue("mail", SECRET, unique_key="mail:bob")
    return {
        "dead": dead.id, "completed": done.id, "in_progress": running.id, "scheduled": scheduled.id, "ready": ready.id,
    }  # fmt: skip


async def test_the_overview_has_the_figures_of_the_queue(queue, app):
    await fill(queue)
    await queue.schedule("nightly", "0 3 * * *", "report")
    await queue.limit("mail", running=2)
    values = (await get(app, "/api/overview")).values
    figures = values["figures"]
    assert (1, 1, 1, 1, 1) == tuple(
        figures[state] for state in ("ready", "scheduled", "in_progress", "dead", "completed")
    )
    assert {"enqueued": 5, "claimed": 3, "done": 1, "failed": 1}.items() <= figures["totals"].items()
    mail = next(row for row in values["entrypoints"] if row["name"] == "mail")
    assert (1, 2, False) == (mail["dead"], mail["limits"]["running"], mail["limits"]["paused"])
    assert ["nightly"] == [entry["name"] for entry in values["schedules"]]
    assert (await queue.stats()).size == values["store"]["size"]
    assert (await queue.stats()).version == values["version"]


async def test_the_overview_says_why_jobs_wait(queue, app):
    await queue.enqueue("mail", b"")
    await queue.pause("mail")
    assert {"mail": "paused"} == (await get(app, "/api/overview")).values["why_waiting"]


async def test_an_unchanged_queue_is_answered_with_304(queue, app):
    await queue.enqueue("mail", b"")
    first = await get(app, "/api/overview")
    again = await get(app, "/api/overview", headers={"If-None-Match": first.headers["etag"]})
    assert (304, b"") == (again.status, again.body)


async def test_a_change_of_another_program_is_seen(queue, other, app, monkeypatch):
    monkeypatch.setattr("jqueue.server.view.READ_EVERY", 0)
    await queue.enqueue("mail", b"")
    first = await get(app, "/api/overview")
    await other.enqueue("mail", b"")
    values = (await get(app, "/api/overview", headers={"If-None-Match": first.headers["etag"]})).values
    assert 2 == values["figures"]["ready"]


@pytest.mark.parametrize("state", ["ready", "scheduled", "in_progress", "dead", "completed"])
async def test_jobs_are_found_by_state(queue, app, state):
    ids = await fill(queue)
    found = (await get(app, f"/api/jobs?state={state}")).values
    assert [(ids[state], state)] == [(job["id"], job["state"]) for job in found["jobs"]]


async def test_jobs_are_found_by_text_in_id_key_error_and_holder(queue, app):
    ids = await fill(queue)
    for text, state in (("MAIL:BOB", "ready"), ("10.0.0.7", "dead"), (ids["scheduled"][4:20], "scheduled")):
        found = (await get(app, f"/api/jobs?text={text}")).values
        assert [ids[state]] == [job["id"] for job in found["jobs"]]
    [running] = (await get(app, "/api/jobs?state=in_progress")).values["jobs"]
    found = (await get(app, f"/api/jobs?holder={running['holder']}")).values
    assert [ids["in_progress"]] == [job["id"] for job in found["jobs"]]


@pytest.mark.parametrize("order", ["served", "oldest", "newest", "attempts", "id"])
async def test_a_list_has_every_job_in_each_order(queue, app, order):
    ids = [(await queue.enqueue("mail", b"", priority=number % 3)).id for number in range(7)]
    seen = [job["id"] for job in (await get(app, f"/api/jobs?order={order}")).values["jobs"]]
    assert sorted(ids) == sorted(seen)
    if order == "served":
        assert seen == [job.id for job in await queue.peek(batch_size=7)]
    if order in ("oldest", "newest"):
        assert ids == (seen if order == "oldest" else seen[::-1])


async def test_a_list_of_many_jobs_is_sent_a_page_at_a_time(queue, app):
    await queue.enqueue_many([Enqueue("mail", b"", priority=number) for number in range(2500)])
    first = (await get(app, "/api/jobs")).values
    last = (await get(app, "/api/jobs?start=2450")).values
    assert (2500, 50) == (first["total"], len(first["jobs"]))
    assert [*range(2450, 2500)] == [job["priority"] for job in last["jobs"]]


@pytest.mark.parametrize("query", ["order=x", "state=x", "start=-1", "start=x", "start=1e9"])
async def test_a_wrong_filter_is_refused_in_one_sentence(app, queue, query):
    await queue.enqueue("mail", b"")
    answer = await get(app, f"/api/jobs?{query}")
    assert (400, True) == (answer.status, bool(answer.values["error"]))


async def test_a_job_is_shown_with_its_life_and_without_its_payload(queue, app):
    ids = await fill(queue)
    answer = await get(app, f"/api/job?id={ids['dead']}")
    assert b"hunter2" not in answer.body
    job = answer.values
    assert ("dead", 1, "no server at 10.0.0.7", len(SECRET)) == (
        job["state"], job["tries"], job["error"], job["payload_bytes"],
    )  # fmt: skip
    assert {"trace": "af31"} == job["headers"]
    assert [("no server at 10.0.0.7", 1)] == [(error["text"], error["attempt"]) for error in job["errors"]]
    events = (await get(app, f"/api/job/events?id={ids['dead']}")).values["events"]
    assert ["enqueue", "dequeue", "nack"] == [event["verb"] for event in events][::-1]


async def test_only_attempts_that_failed_are_shown_as_failed(queue, app):
    ids = await fill(queue)
    shown = {state: (await get(app, f"/api/job?id={job_id}")).values for state, job_id in ids.items()}
    expected = {"completed": (1, 0), "in_progress": (1, 0), "dead": (1, 1), "scheduled": (0, 0), "ready": (0, 0)}
    assert expected == {state: (job["tries"], job["failed"]) for state, job in shown.items()}


async def test_no_answer_has_a_payload_or_a_result_until_it_is_asked_for(queue, app):
    ids = await fill(queue)
    for target in ("/api/overview", "/api/jobs", "/api/dead", "/api/timeline", f"/api/job?id={ids['completed']}"):
        body = (await get(app, target)).body
        assert b"hunter2" not in body
        assert b"aHVudGVyMg" not in body
        assert b"forty-two" not in body
    assert "hunter2" == (await get(app, f"/api/job/payload?id={ids['ready']}")).values["text"]
    result = (await get(app, f"/api/job/result?id={ids['completed']}")).values
    assert {"total": "forty-two"} == json.loads(result["text"])


async def test_a_payload_that_is_no_text_is_sent_in_base64(queue, app):
    job = await queue.enqueue("mail", b"\xff\x00")
    found = (await get(app, f"/api/job/payload?id={job.id}")).values
    assert (None, "/wA=", 2) == (found["text"], found["base64"], found["bytes"])


async def test_a_finished_job_and_an_unknown_one_are_told_apart(queue, app):
    job = await queue.enqueue("mail", b"")
    [claimed] = await queue.dequeue("mail")
    await queue.ack(claimed)
    finished, unknown = await get(app, f"/api/job?id={job.id}"), await get(app, "/api/job?id=nobody")
    assert (404, "this job has finished") == (finished.status, finished.values["error"])
    assert (404, "there is no job with this id in the queue") == (unknown.status, unknown.values["error"])


async def test_dead_letters_are_grouped_by_error_without_its_numbers(queue, app):
    for number in range(5):
        await queue.enqueue("mail", b"", max_attempts=1)
        [claimed] = await queue.dequeue("mail")
        await queue.nack(claimed, error=f"no server at 10.0.0.{number}" if number < 4 else "disk full", dead=True)
    groups = (await get(app, "/api/dead")).values["groups"]
    assert [("no server at #.#.#.#", 4), ("disk full", 1)] == [(group["pattern"], group["jobs"]) for group in groups]


async def test_the_last_hour_comes_from_the_history(queue, app):
    await fill(queue)
    points = (await get(app, "/api/timeline")).values["points"]
    assert 60 == len(points)
    assert (2, 1) == (points[-1]["queued"], points[-1]["dead"])
    assert (5, 3, 1, 1) == tuple(
        round(sum(point[kind] for point in points) * 60) for kind in ("enqueued", "claimed", "done", "failed")
    )


async def test_the_last_hour_of_one_entrypoint_leaves_the_others_out(queue, app):
    await fill(queue)
    points = (await get(app, "/api/timeline?entrypoint=mail")).values["points"]
    assert (2, 1) == (points[-1]["queued"], points[-1]["dead"])
    assert (3, 1, 0, 1) == tuple(
        round(sum(point[kind] for point in points) * 60) for kind in ("enqueued", "claimed", "done", "failed")
    )
    assert (0, 0) == (points[0]["queued"], points[0]["dead"])


async def test_a_queue_without_history_has_no_past(queue, app):
    await queue.enqueue("mail", b"")
    assert [] == (await get(app, "/api/timeline")).values["points"]


async def test_a_queue_that_is_gone_is_an_error_and_not_an_empty_queue(queue, path, app, monkeypatch):
    monkeypatch.setattr("jqueue.server.view.READ_EVERY", 0)
    await queue.enqueue("mail", b"")
    assert 200 == (await get(app, "/api/overview")).status
    path.unlink()
    answer = await get(app, "/api/overview")
    assert (503, "store") == (answer.status, answer.values["kind"])
    assert "disappeared" in answer.values["error"]


async def test_viewers_share_the_reads_of_an_unchanged_queue(path):
    storage = FaultyStorage(LocalFileSystemStorage(path))
    async with DirectQueue(storage) as queue:
        await queue.enqueue("mail", b"")
        before = storage.reads
        app = dashboard(queue, authorize=lambda request: "viewer")
        for _ in range(20):
            await get(app, "/api/overview")
            await get(app, "/api/jobs")
        assert 5 > storage.reads - before


async def test_a_follower_parses_only_the_changed_lines(path, queue, other):
    for _ in range(20):
        await queue.enqueue("mail", b"")
    follower = Follower(queue.storage, SystemEntropy(), SystemClock(), call_timeout=10.0)
    assert await follower.refresh(5)
    parsed = follower._blob.lines_parsed
    assert not await follower.refresh(5)
    await other.dequeue("mail")
    assert await follower.refresh(5)
    assert (20, 1) == (parsed, follower._blob.lines_parsed - parsed)
