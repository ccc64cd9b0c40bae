"""`GET /v1/object`: looks at the whole queue by clients that cannot reach its store, and what each role may see."""

from datetime import timedelta

import pytest
from starlette.routing import Route, Router

from jqueue import BrokerQueue, DirectQueue, JobStatus, LocalFileSystemStorage, connect
from jqueue.core.blob.codec import decode
from jqueue.domain.errors import StorageFatalError
from jqueue.operations import Enqueue
from jqueue.server.access import Role
from jqueue.server.calls import WholeObject
from jqueue.server.intake import TokenGate
from jqueue.testing.tuning import tune
from tests.server.asgi import get
from tests.server.served import TOKENS, serving, token_file

SECRET = b"the secret"


def client_of(broker, role):
    return connect(f"jqueue+{broker.url}", DirectQueue, token=TOKENS[role])


async def test_a_viewer_sees_jobs_and_figures_without_payloads_headers_and_results(queue, broker):
    await queue.configure(history=timedelta(days=1), history_payloads=True)
    await queue.schedule("nightly", "0 3 * * *", "mail", SECRET, headers={"a": SECRET.decode()})
    waiting = await queue.enqueue("mail", SECRET, headers={"a": SECRET.decode()})
    done = await queue.enqueue("report", b"", keep_result=timedelta(hours=1))
    await queue.ack(*await queue.dequeue("report"), result=SECRET.decode())
    answer = await broker.get("/v1/object", Role.VIEWER)
    assert SECRET in (await broker.get("/v1/object", Role.WORKER)).body.replace(b"dGhlIHNlY3JldA==", SECRET)
    assert {name.lower() for name in answer.headers} >= {"etag"}, answer
    assert not any(each in answer.body for each in (SECRET, b"dGhlIHNlY3JldA=="))
    assert {waiting.id, done.id} == {job.id for job in decode(answer.body).jobs}
    async with client_of(broker, Role.VIEWER) as viewer:
        figures = await viewer.stats()
        assert (1, 1) == (figures.ready, figures.completed)
        [job] = [job async for job in viewer.iterate_jobs(JobStatus.QUEUED)]
        assert (waiting.id, b"", {}) == (job.id, job.payload, dict(job.headers))
        assert job.payload_object is not None
        assert len(SECRET) == job.payload_object.size
        assert ["nightly"] == list((await viewer.read_state()).schedules)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.WORKER])
async def test_the_jobs_of_segments_stand_among_the_others(path, tmp_path, role):
    storage = LocalFileSystemStorage(path)
    async with tune(BrokerQueue(storage), hot_bytes=0, fewest_rows=1, chunk_rows=4) as queue:
        added = list(await queue.enqueue_many([Enqueue("mail", b"%d" % number) for number in range(40)]))
        while not (await queue.read_state(hot=True)).segments:
            added.append(await queue.enqueue("mail", b"one more"))
        async with serving(queue, token_file(tmp_path)) as broker, client_of(broker, role) as client:
            state = await client.read_state()
            assert {job.id for job in added} <= {job.id for job in state.jobs}
            assert len(added) == len(state.jobs) == (await client.stats()).ready
            assert (await queue.read_state()).version == state.version
            assert not state.segments
            assert (role is Role.WORKER) == all(job.payload for job in state.jobs)


async def test_more_jobs_in_segments_than_are_sent_are_a_clear_error(path):
    async with tune(BrokerQueue(LocalFileSystemStorage(path)), hot_bytes=0, fewest_rows=1) as queue:
        while not (await queue.read_state(hot=True)).segments:
            await queue.enqueue_many([Enqueue("mail") for _ in range(20)])
        app = TokenGate(Router([Route("/v1/object", WholeObject(queue, most_rows=3))]), None, ())
        answer = await get(app, "/v1/object")
        assert 413 == answer.status
        assert "at most 3 are sent" in answer.values["detail"]


async def test_a_refused_look_names_the_reason(broker, queue):
    await queue.enqueue("mail")
    async with client_of(broker, Role.PRODUCER) as producer:
        with pytest.raises(StorageFatalError, match="a producer may not do GET /v1/object"):
            await producer.stats()
