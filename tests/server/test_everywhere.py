"""The dashboard below a path of another application, and on queues that are not one object."""

import pytest
from fastapi import FastAPI, Request

from jqueue.connect import connect
from jqueue.server import dashboard
from jqueue.server.actions import ACTIONS
from tests.server.asgi import act, get, request


@pytest.fixture
def mounted(queue):
    def authorize(request: Request) -> str | None:
        return {"ada": "operator"}.get(request.headers.get("x-user", ""))

    app = FastAPI()
    app.mount("/admin/queue", dashboard(queue, authorize=authorize))
    return app


async def test_the_page_works_below_a_path(queue, mounted):
    job = await queue.enqueue("mail", b"")
    user = {"x-user": "ada"}
    assert 307 == (await get(mounted, "/admin/queue")).status
    index = await get(mounted, "/admin/queue/")
    assert (200, True) == (index.status, index.headers["content-type"].startswith("text/html"))
    assert b"<html" in index.body
    assert b'src="/' not in index.body
    assert b'href="/' not in index.body
    assert 200 == (await get(mounted, "/admin/queue/app.js")).status
    assert 1 == (await get(mounted, "/admin/queue/api/overview", headers=user)).values["ready"]
    shown = (await get(mounted, f"/admin/queue/api/job?id={job.id}", headers=user)).values
    headers = {"x-jqueue-dashboard": "1", **user}
    body = {"id": job.id, "seen": shown["seen"]}
    done = await request(mounted, "POST", "/admin/queue/api/actions/cancel", headers=headers, body=body)
    assert (200, None) == (done.status, await queue.find(job.id))


NAMES = {"vsqs": "mail", "textq": "default"}


@pytest.mark.parametrize("scheme", NAMES)
async def test_a_queue_of_an_older_program_is_shown_with_the_actions_that_it_has(tmp_path, scheme):
    place = tmp_path / "old"
    async with connect(f"{scheme}://{place}", create=True) as queue:
        app = dashboard(queue, authorize=lambda request: "operator")
        job = await queue.enqueue(NAMES[scheme], b"hello")
        values = (await get(app, "/api/overview")).values
        assert 1 == values["ready"]
        assert {"cancel"} <= set(values["actions"]) < set(ACTIONS)
        [row] = (await get(app, "/api/jobs")).values["jobs"]
        assert job.id == row["id"]
        assert 200 == (await get(app, f"/api/job?id={job.id}")).status
        assert [] == (await get(app, f"/api/job/events?id={job.id}")).values["events"]
        assert [] == (await get(app, "/api/timeline")).values["points"]
        assert "hello" in (await get(app, f"/api/job/payload?id={job.id}")).values["text"]
        assert 200 == (await act(app, "cancel", {"id": job.id, "seen": row["seen"]})).status
        assert 0 == (await get(app, "/api/overview")).values["ready"]
