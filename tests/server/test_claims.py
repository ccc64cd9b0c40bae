"""Claims over HTTP whose answer is lost: the call is repeated by its name, or the jobs are handed back uncharged."""

import asyncio

import pytest

from jqueue import BrokerQueue, InMemoryStorage, JobStatus
from jqueue.server.access import Role, TokenFile
from jqueue.server.serving import broker
from jqueue.testing.virtual_time import VirtualClock
from tests.server.asgi import request

pytestmark = pytest.mark.virtual_time

JSON = {"content-type": "application/json"}


class SlowMemory(InMemoryStorage):
    """A storage whose writes are answered a second after they are done. Some event is set at that time."""

    slow, written = 0, asyncio.Event()

    def __init__(self):
        super().__init__(clock=VirtualClock())

    async def write(self, content, if_match=None):
        etag = await super().write(content, if_match)
        await asyncio.sleep(self.slow)
        self.written.set()
        return etag


async def claim(app, *, wait=0, token="", gone=None, **body):
    """The jobs of an answer, as ids and attempts; None if the client was gone."""
    headers = JSON | {"authorization": f"Bearer {token}"}
    answer = await request(app, "POST", f"/v1/claims?wait={wait}", headers=headers, body=body, gone=gone)
    return [(job["id"], job["attempt"]) for job in answer.values["jobs"]] if answer.status == 200 else None


async def enqueue(queue, *ids):
    for job_id in ids:
        await queue.enqueue("mail", b"", job_id=job_id, max_attempts=1)


async def test_a_repeated_call_gets_the_jobs_that_it_claimed_from_any_broker_and_only_with_its_token(tmp_path):
    for token in ("ann", "bob"):
        TokenFile.add(tmp_path / "tokens", Role.WORKER, "same-name", token)
    tokens, storage = TokenFile(tmp_path / "tokens"), SlowMemory()
    async with BrokerQueue(storage, clock=VirtualClock()) as queue:
        await enqueue(queue, "1", "2", "3")
        app = broker(queue, tokens)
        for _ in range(2):
            assert [("1", 1), ("2", 1)] == await claim(app, token="ann", call="c", batch_size=2)
        assert [("3", 1)] == await claim(app, token="bob", call="c", batch_size=2)
        await queue.ack("1")
    async with BrokerQueue(storage, clock=VirtualClock()) as queue:
        app = broker(queue, tokens)
        assert [("2", 1)] == await claim(app, token="ann", call="c", batch_size=2, wait=30)
        assert [] == await claim(app, token="ann", call="other")
        totals = (await queue.stats()).totals
        assert totals is not None
        assert 3 == totals.claimed


@pytest.mark.parametrize("body", [{}, {"call": "c"}])
@pytest.mark.parametrize("wait", [0, 30])
@pytest.mark.parametrize("before", [0.5, 0])
async def test_a_client_that_is_gone_when_its_claim_is_made_hands_it_back_uncharged(body, wait, before):
    storage = SlowMemory()
    async with BrokerQueue(storage, clock=VirtualClock()) as queue:
        await enqueue(queue, "1")
        storage.slow, storage.written = 1, asyncio.Event()
        gone = asyncio.Event() if before else storage.written
        if before:
            asyncio.get_running_loop().call_later(1 - before, gone.set)
        assert await claim(broker(queue), wait=wait, gone=gone, **body) is None
        await asyncio.sleep(2)
        [job] = (await queue.read_state()).jobs
        assert (JobStatus.QUEUED, 0) == (job.status, job.failures)


async def test_a_call_that_is_repeated_before_the_end_of_its_first_connection_is_noticed_keeps_its_jobs():
    storage, gone = SlowMemory(), asyncio.Event()
    async with BrokerQueue(storage, clock=VirtualClock()) as queue:
        app = broker(queue)
        first = asyncio.create_task(claim(app, call="c", wait=30, gone=gone))
        await asyncio.sleep(1)
        storage.slow = 1
        adding = asyncio.create_task(enqueue(queue, "1"))
        await asyncio.sleep(0.5)
        again = asyncio.create_task(claim(app, call="c", wait=30))
        await asyncio.sleep(0.1)
        gone.set()
        assert (None, [("1", 1)]) == (await first, await again)
        await adding
        await queue.heartbeat("1")


async def test_a_call_that_is_repeated_while_it_waits_waits_in_place_of_the_first():
    async with BrokerQueue(SlowMemory(), clock=VirtualClock()) as queue:
        app = broker(queue)
        first = asyncio.create_task(claim(app, call="c", wait=30))
        await asyncio.sleep(1)
        again = asyncio.create_task(claim(app, call="c", wait=30))
        await asyncio.sleep(1)
        await enqueue(queue, "1")
        assert ([], [("1", 1)]) == (await first, await again)
