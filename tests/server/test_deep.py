"""The dashboard of a queue whose waiting jobs are in segments: numbers of all, and a list of the next."""

import pytest

from jqueue import LocalFileSystemStorage
from jqueue.operations import Enqueue
from jqueue.server import dashboard, waiting
from jqueue.testing.faults import FaultyObjects
from tests.server.asgi import act, get
from tests.server.test_page_alone import read_by_script, viewed  # noqa: F401 - a fixture
from tests.tiny_segments import spilled, tiny_queue

NUMBER = 30


@pytest.fixture
def storage(path):
    return FaultyObjects(LocalFileSystemStorage(path))


@pytest.fixture
async def queue(storage, monkeypatch):
    monkeypatch.setattr(waiting, "LISTED", 10)
    monkeypatch.setattr(waiting, "FEW", 10)
    async with tiny_queue(storage) as queue:
        await queue.enqueue_many([Enqueue("mail", b"%d" % each, job_id=f"mail-{each:02}") for each in range(NUMBER)])
        await queue.enqueue_many([Enqueue("report", b"", delay=3600, job_id=f"report-{each}") for each in range(4)])
        await spilled(queue)
        yield queue


@pytest.fixture
def app(queue):
    return dashboard(queue, authorize=lambda request: "operator")


async def test_the_figures_count_all_jobs_and_the_list_has_the_next_ones(app):
    overview = (await get(app, "/api/overview")).values
    assert (NUMBER, 4) == (overview["figures"]["ready"], overview["figures"]["scheduled"])
    assert NUMBER + 4 == overview["store"]["segment_jobs"]
    page = (await get(app, "/api/jobs")).values
    assert [f"mail-{each:02}" for each in range(10)] == [job["id"] for job in page["jobs"]][:10]
    assert (34, 14, 20) == (page["total"], page["listed"], page["beyond"])
    page = (await get(app, "/api/jobs?state=scheduled")).values
    assert (4, 4, 0) == (page["total"], page["listed"], page["beyond"])
    page = (await get(app, "/api/jobs?state=ready&entrypoint=report")).values
    assert (0, 0, 0) == (page["total"], page["listed"], page["beyond"])


async def test_a_job_behind_those_that_are_listed_is_found_by_its_whole_id(queue, storage, app):
    page = (await get(app, "/api/jobs?text=mail-29")).values
    assert ["mail-29"] == [job["id"] for job in page["jobs"]]
    assert (1, 20) == (page["total"], page["beyond"])
    details = (await get(app, "/api/job?id=mail-28")).values
    assert ("ready", 2) == (details["state"], details["payload_bytes"])
    storage.object_calls.clear()
    await queue.pause("another")  # the next look is at another version
    assert "mail-28" == (await get(app, "/api/job?id=mail-28")).values["id"]
    assert [] == storage.object_calls
    assert 404 == (await get(app, "/api/job?id=mail-30")).status


async def test_one_job_in_a_segment_is_cancelled_and_then_all_others(queue, app):
    job = (await get(app, "/api/job?id=mail-20")).values
    answer = await act(app, "cancel", {"id": "mail-20", "seen": job["seen"]})
    assert {"done": 1} == answer.values
    page = (await get(app, "/api/jobs?entrypoint=mail")).values
    body = {"query": {"entrypoint": "mail"}, "seen_at": page["now"]}
    answer = (await act(app, "cancel-found", body)).values
    assert (NUMBER - 1, 0) == (answer["done"], answer["left"])
    assert 0 == (await queue.stats()).entrypoints["mail"].depth


async def test_jobs_in_progress_in_a_range_are_counted_and_found(queue, app):
    claim = await queue.claim_range("mail", 8, holder="importer")
    assert claim is not None
    overview = (await get(app, "/api/overview")).values
    assert (NUMBER - claim.rows, claim.rows) == tuple(overview["figures"][name] for name in ("ready", "in_progress"))
    page = (await get(app, "/api/jobs")).values
    assert NUMBER + 4 == page["total"]
    job = (await get(app, "/api/job?id=mail-00")).values
    assert ("in_progress", "importer") == (job["state"], job["holder"])


async def test_the_page_without_a_server_counts_the_jobs_in_segments(queue, path, read_by_script):  # noqa: F811
    await queue.dequeue("mail", batch_size=3)
    assert (await queue.claim_range("mail", 5, holder="importer")).rows == 5
    view = await viewed(path)
    found = read_by_script(path.read_text(), view.now.timestamp(), [{}, {"state": "ready"}])
    figures = found["overview"]["figures"]
    assert (NUMBER - 8, 4, 8) == (figures["ready"], figures["scheduled"], figures["in_progress"])
    assert view.stats.holders == found["overview"]["holders"]
    assert [(34, 3, 31), (22, 0, 22)] == [(each["total"], each["listed"], each["beyond"]) for each in found["lists"]]
    [warning] = found["overview"]["store"]["warnings"]
    assert "26 waiting jobs are in segments" in warning


def segment_of(path, entrypoint):
    folder = path.with_name(f"{path.name}.segments")
    return next(each for each in folder.iterdir() if f'"entrypoint": "{entrypoint}"'.encode() in each.read_bytes())


async def test_a_segment_with_changed_rows_is_named_once_a_list_needed_them(queue, app, path):
    mail = segment_of(path, "mail")
    content = bytearray(mail.read_bytes())
    content[content.index(b"\1")] ^= 1
    mail.write_bytes(content)
    assert 200 == (await get(app, "/api/jobs")).status
    assert 200 == (await get(app, "/api/jobs?text=unknown")).status
    [alert] = (await get(app, "/api/overview")).values["alerts"]
    assert f"Segment .segments/{mail.name} (mail) cannot be read, and {NUMBER} jobs in it wait" in alert
    assert "the checksum does not match" in alert


async def test_the_segments_are_listed_once_a_minute_and_not_at_each_look(queue, app, storage):
    await get(app, "/api/overview")
    storage.object_calls.clear()
    await queue.pause("another")  # the next look is at another version
    await get(app, "/api/overview")
    assert [] == storage.object_calls
