"""The figures and the jobs that the dashboard sends to its page."""

import asyncio
import json

from jqueue import DirectQueue, InMemoryStorage, Limits, LocalFileSystemStorage
from jqueue.domain.history import EVENTS_PER_OBJECT
from jqueue.operations import Enqueue
from jqueue.server import dashboard
from jqueue.server.past import KEPT
from jqueue.testing import FakeClock
from jqueue.testing.faults import FaultyObjects, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.server.asgi import act, get, post
from tests.virtual_world import in_virtual_time

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
    await queue.pause("mail")
    values = (await get(app, "/api/overview")).values
    assert (1, 1, 1, 1, 1) == tuple(
        values[state] for state in ("ready", "scheduled", "in_progress", "dead", "completed")
    )
    assert {"enqueued": 5, "claimed": 3, "done": 1, "failed": 1}.items() <= values["totals"].items()
    mail = values["entrypoints"]["mail"]
    assert (1, 2, True, "paused") == (mail["dead"], mail["max_running"], mail["paused"], mail["why_waiting"])
    assert ["nightly"] == [entry["name"] for entry in values["schedules"]]
    assert (await queue.stats()).size == values["size"]
    assert (await queue.stats()).version == values["version"]


async def test_a_job_shows_its_group_and_lists_are_filtered_by_it(queue, app):
    async with queue.group("parts") as group:
        job = await group.enqueue("work")
        await queue.enqueue("work")
    status = (await get(app, f"/api/job?id={job.id}")).values["group_status"]
    assert ("parts", 1, 1, True) == (status["id"], status["added"], status["waiting"], status["closed"])
    assert [job.id] == [each["id"] for each in (await get(app, "/api/jobs?group=parts")).values["jobs"]]


async def test_a_cron_entry_has_its_last_job_and_what_came_of_it():
    clock = FakeClock()
    clock.advance(7)
    async with DirectQueue(InMemoryStorage(clock=clock), clock=clock) as queue:
        app = dashboard(queue, authorize=lambda request: "viewer", clock=clock)
        await queue.schedule("hourly", "0 * * * *", "report")
        await queue.schedule("yearly", "0 0 1 1 *", "report")

        async def last():
            clock.advance(10)
            runs = (await get(app, "/api/overview")).values["last_runs"]
            assert runs["yearly"] is None
            return runs["hourly"]

        assert await last() is None
        clock.advance(3600)
        [job] = await queue.dequeue("report")
        run = await last()
        assert (job.id, "in_progress") == (run["id"], run["state"])
        assert 0 == run["at"] % 3600
        await queue.ack(job)
        assert "done" == (await last())["state"]


async def test_jobs_are_found_by_state_and_by_text_in_id_key_error_and_holder(queue, app):
    ids = await fill(queue)
    for state, job_id in ids.items():
        page = (await get(app, f"/api/jobs?state={state}")).values
        assert [(job_id, state)] == [(job["id"], job["status"]) for job in page["jobs"]]
    for text, state in (("MAIL:BOB", "ready"), ("10.0.0.7", "dead"), (ids["scheduled"][4:20], "scheduled")):
        found = (await get(app, f"/api/jobs?text={text}")).values
        assert [ids[state]] == [job["id"] for job in found["jobs"]]
    [running] = (await get(app, "/api/jobs?state=in_progress")).values["jobs"]
    found = (await get(app, f"/api/jobs?holder={running['holder']}")).values
    assert [ids["in_progress"]] == [job["id"] for job in found["jobs"]]


async def test_a_job_is_shown_with_its_life_and_without_its_payload(queue, app):
    ids = await fill(queue)
    answer = await get(app, f"/api/job?id={ids['dead']}")
    assert b"hunter2" not in answer.body
    job = answer.values
    assert ("dead", 1, "no server at 10.0.0.7", len(SECRET)) == (
        job["status"], job["attempts"], job["error"], job["payload_bytes"],
    )  # fmt: skip
    assert {"trace": "af31"} == job["headers"]
    assert [("no server at 10.0.0.7", 1)] == [(error["error"], error["attempt"]) for error in job["errors"]]
    events = (await get(app, f"/api/job/events?id={ids['dead']}")).values["events"]
    assert ["enqueue", "dequeue", "nack"] == [event["event"] for event in events][::-1]


async def test_no_answer_but_the_list_of_an_operator_has_a_payload_or_a_result_until_it_is_asked_for(
    queue, app, viewer
):
    ids = await fill(queue)
    assert SECRET.decode() in {job["text"] for job in (await get(app, "/api/jobs")).values["jobs"]}
    for target in ("/api/overview", "/api/jobs", "/api/dead", "/api/timeline", f"/api/job?id={ids['completed']}"):
        body = (await get(viewer if target == "/api/jobs" else app, target)).body
        assert b"hunter2" not in body
        assert b"aHVudGVyMg" not in body
        assert b"forty-two" not in body
    assert "hunter2" == (await get(app, f"/api/job/payload?id={ids['ready']}")).values["text"]
    result = (await get(app, f"/api/job/result?id={ids['completed']}")).values
    assert {"total": "forty-two"} == json.loads(result["text"])


async def test_an_operator_searches_payloads_of_a_number_of_jobs_and_learns_how_many(queue, app, monkeypatch):
    monkeypatch.setattr("jqueue.server.jobs.SEARCHED", searched := 100)
    many = [Enqueue("mail", b'{"to": "Bob%d"}' % number) for number in range(searched)]
    await queue.enqueue_many([*many, *(Enqueue("resize", b"") for _ in range(3))])
    for text, number in (("bOB77.", 0), ('bOB77"', 1)):
        found = (await post(app, "/api/jobs", {"payload": text, "entrypoint": "mail"})).values
        assert (number, searched, 0) == (found["total"], found["searched"], found["beyond"])
    found = (await post(app, "/api/jobs", {"payload": 'bob77"'})).values
    assert (1, searched, 3) == (found["total"], found["searched"], found["beyond"])
    async with asyncio.timeout(60):  # the search goes on between the answers
        while (found := (await post(app, "/api/jobs", {"payload": '0"', "all": "1"})).values)["beyond"]:
            assert found["searched"] < searched + 3
    assert (searched // 10, searched + 3, searched // 10) == (found["total"], found["searched"], found["listed"])
    body = {"query": {"payload": 'bob77"'}, "seen_at": found["now"]}
    refused = await act(app, "cancel", body)  # more jobs may have it
    assert (422, False) == (refused.status, "bob77" in refused.values["detail"])
    body["query"]["entrypoint"] = "mail"
    assert 1 == (await act(app, "cancel", body)).values["done"]
    assert 422 == (await get(app, "/api/jobs?payload=bob")).status  # it would stand in logs
    assert 422 == (await post(app, "/api/jobs", {"payload": "bob", "state": 7})).status


async def test_jobs_are_found_by_key_by_error_and_by_values_in_payloads_of_json(queue, app):
    ids = await fill(queue)
    nested = await queue.enqueue("order", b'{"order": {"id": 7, "to": "Bob"}}')
    for payload in (b'{"order": {"id": 77, "to": "Bob"}}', b"{", b"\xff", b"[" * 5000, b"7"):
        await queue.enqueue("order", payload)
    for target, state in (("key=mail:bob", "ready"), ("error=NO%20server", "dead")):
        found = (await get(app, f"/api/jobs?{target}")).values
        assert ([ids[state]], 1) == ([job["id"] for job in found["jobs"]], found["total"])
    found = (await post(app, "/api/jobs", {"args.order.id": "7", "args.order.to": "Bob"})).values
    assert ([nested.id], 11) == ([job["id"] for job in found["jobs"]], found["searched"])
    assert 422 == (await get(app, "/api/jobs?args.order.id=7")).status  # it would stand in logs
    done = await act(app, "cancel", {"query": {"args.order.id": "7"}, "seen_at": found["now"]})
    assert 1 == done.values["done"]


async def test_a_payload_is_shown_as_text_as_json_for_people_or_in_base64_and_never_whole_if_it_is_large(queue, app):
    cases = (
        (
            b'{"id": 12345678901234567890, "to": ["\\ud800", "\xc3\xa9"]}',
            ("text", '{\n  "id": 12345678901234567890,\n'),
        ),
        (b"[1, 2", ("text", "[1, 2")),
        (b"\xff\x00", ("base64", "/wA=")),
        (b"x" + "é".encode() * (33 << 10), ("text", "x" + "é" * ((32 << 10) - 1))),
        (b"[" * 900 + b"1" + b"]" * 900, ("text", "[\n  [\n    [")),
        (b"[" * 30_000 + b"]" * 30_000, ("text", "[[[")),
    )
    jobs = await queue.enqueue_many([Enqueue("mail", payload) for payload, _ in cases])
    for job, (payload, (kind, shown)) in zip(jobs, cases, strict=True):
        values = (await get(app, f"/api/job/payload?id={job.id}")).values
        assert values[kind].startswith(shown)
        assert len(values[kind]) < 200_000
        assert len(payload) == values["bytes"]


async def test_dead_letters_are_grouped_by_error_without_its_numbers(queue, app):
    for error in ("no server at 10.0.0.1", "no server at 10.0.0.2", "disk full"):
        await queue.enqueue("mail", b"")
        [claimed] = await queue.dequeue("mail")
        await queue.nack(claimed, error=error, dead=True)
    groups = (await get(app, "/api/dead")).values["groups"]
    assert [("no server at #.#.#.#", 2), ("disk full", 1)] == [(group["pattern"], group["jobs"]) for group in groups]


async def test_the_last_hour_comes_from_the_history(queue, app):
    await fill(queue)
    points = (await get(app, "/api/timeline")).values["points"]
    assert 60 == len(points)
    assert (2, 1) == (points[-1]["queued"], points[-1]["dead"])
    assert (5, 3, 1, 1) == tuple(
        round(sum(point[kind] for point in points) * 60) for kind in ("enqueued", "claimed", "done", "failed")
    )
    bounds = {2.0**bucket / 1000 for bucket in range(42)}  # those of the counters, so that the two are one line
    assert {point[kind] for point in points for kind in ("wait50", "run95")} - {None} <= bounds
    for span in (900, 86400, 604800):
        points = (await get(app, f"/api/timeline?span={span}")).values["points"]
        assert (60, 5) == (len(points), round(sum(point["enqueued"] for point in points) * span / 60))
    assert 422 == (await get(app, "/api/timeline?span=7")).status


async def test_viewers_share_the_reads_of_an_unchanged_queue_and_get_304_for_it(path):
    storage = FaultyStorage(LocalFileSystemStorage(path))
    async with DirectQueue(storage) as queue:
        await queue.enqueue("mail", b"")
        before = storage.reads
        app = dashboard(queue, authorize=lambda request: "operator")
        for _ in range(20):
            await get(app, "/api/overview")
            await get(app, "/api/jobs")
        assert 5 > storage.reads - before
        first = await get(app, "/api/overview")
        assert 304 == (await get(app, "/api/overview", headers={"If-None-Match": first.headers["etag"]})).status
        await act(app, "enqueue", {"entrypoint": "mail"})
        later = await get(app, "/api/overview", headers={"If-None-Match": first.headers["etag"]})
        assert 2 == later.values["ready"]


@in_virtual_time
async def test_pages_of_a_job_read_each_object_of_the_history_since_its_enqueue_once_and_none_after_its_end():
    storage = FaultyObjects(InMemoryStorage(clock=VirtualClock()))
    limits = Limits(hot_bytes=None, batch_size=30_000)

    async def fill_objects(number):
        for _ in range(number):
            await queue.enqueue_many([Enqueue("other", b"") for _ in range(EVENTS_PER_OBJECT + 1)])
            await asyncio.sleep(10)
        await queue.pause("other")  # the move lands with the next commit
        storage.object_calls.clear()

    async def look(job_id, times=20):
        """What two pages show that look each second, and the number of objects that were read meanwhile."""
        for _ in range(times):
            shown, _ = await asyncio.gather(*(get(app, f"/api/job/events?id={job_id}") for _ in range(2)))
            await asyncio.sleep(1)
        reads = [name for name, _ in storage.object_calls].count("read_object")
        storage.object_calls.clear()
        return [event["event"] for event in shown.values["events"]], reads

    async with DirectQueue(storage, clock=VirtualClock(), limits=limits) as queue:
        app = dashboard(queue, authorize=lambda request: "viewer", clock=VirtualClock())
        await queue.configure(history=3600 * 24)
        await fill_objects(6)
        job = await queue.enqueue("mail", b"", priority=-1)
        await fill_objects(3)
        assert (["enqueue"], 2) == await look(job.id)
        await queue.resume("other")
        [claimed] = await queue.dequeue("mail")
        assert (["dequeue", "enqueue"], 0) == await look(job.id)
        await queue.ack(claimed)
        assert (["ack", "dequeue", "enqueue"], 0) == await look(job.id)
        await fill_objects(2)
        assert (["ack", "dequeue", "enqueue"], 0) == await look(job.id)
        await asyncio.sleep(KEPT)
        story, reads = await look(job.id)  # a page that is opened later reads back to the enqueue
        assert (["ack", "dequeue", "enqueue"], 5) == (story, reads)
