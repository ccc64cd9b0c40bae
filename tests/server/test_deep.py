"""The dashboard of a queue whose waiting jobs are in segments: numbers of all, and a list of the next."""

import pytest

from jqueue import DirectQueue, InMemoryStorage, Limits, LocalFileSystemStorage
from jqueue.operations import Enqueue
from jqueue.server import dashboard
from tests.server.asgi import act, get
from tests.tiny_segments import spilled, tiny_queue

NUMBER = 30


@pytest.fixture
async def queue(path):
    async with tiny_queue(LocalFileSystemStorage(path)) as queue:
        await queue.enqueue_many([Enqueue("mail", b"%d" % each, job_id=f"mail-{each:02}") for each in range(NUMBER)])
        await queue.enqueue_many([Enqueue("report", b"", delay=3600) for _ in range(4)])
        await spilled(queue)
        yield queue


async def test_jobs_of_segments_are_counted_listed_and_cancelled(queue, app):
    overview = (await get(app, "/api/overview")).values
    assert (NUMBER, 4) == (overview["ready"], overview["scheduled"])
    job = (await get(app, "/api/job?id=mail-20")).values
    assert 1 == (await act(app, "cancel", {"id": "mail-20", "seen": job["seen"]})).values["done"]
    page = (await get(app, "/api/jobs?entrypoint=mail")).values
    assert (NUMBER - 1, 0) == (page["total"], page["beyond"])
    answer = (await act(app, "cancel", {"query": {"entrypoint": "mail"}, "seen_at": page["now"]})).values
    assert (NUMBER - 1, False) == (answer["done"], answer["left"])
    assert 0 == (await queue.stats()).entrypoints["mail"].depth


async def test_a_segment_with_changed_rows_is_named_once_a_list_needed_them(queue, app, path):
    folder = path.with_name(f"{path.name}.segments")
    mail = next(each for each in folder.iterdir() if b'"entrypoint":"mail"' in each.read_bytes())
    content = bytearray(mail.read_bytes())
    content[content.index(b"payload")] ^= 1
    mail.write_bytes(content)
    assert 200 == (await get(app, "/api/jobs")).status
    [alert] = (await get(app, "/api/overview")).values["warnings"]
    assert f"segment .segments/{mail.name} (mail) cannot be read, and {NUMBER} jobs in it wait" in alert
    body = {"query": {}, "seen_at": (await get(app, "/api/jobs")).values["now"]}
    answer = (await act(app, "cancel", body)).values  # those of the other segment
    assert 4 == answer["done"]
    assert mail.name in answer["why"]


@pytest.mark.wide
async def test_of_very_many_jobs_the_next_are_listed_and_the_others_are_found_by_their_whole_ids():
    number = 12_000
    async with DirectQueue(InMemoryStorage(), limits=Limits(hot_bytes=1)) as queue:
        await queue.enqueue_many([Enqueue("mail", b"", job_id=f"mail-{each:05}") for each in range(number)])
        await spilled(queue)
        app = dashboard(queue, authorize=lambda request: "operator")
        page = (await get(app, "/api/jobs")).values
        assert (number, number - 1000) == (page["total"], page["beyond"])
        assert [f"mail-{each:05}" for each in range(10)] == [job["id"] for job in page["jobs"]][:10]
        page = (await get(app, "/api/jobs?text=mail-11999")).values
        assert ["mail-11999"] == [job["id"] for job in page["jobs"]]
        assert "ready" == (await get(app, "/api/job?id=mail-11998")).values["status"]
        assert 404 == (await get(app, "/api/job?id=mail-12000")).status
