"""Cloud Storage takes about one write a second of an object, and answers more with 429. Callers do not see that."""

import asyncio
from collections import Counter
from urllib.parse import urlsplit

import pytest

from jqueue import BrokerQueue, DirectQueue
from tests.object_stores import BUCKET
from tests.servers.fault_proxy import FaultProxy
from tests.servers.gcs_server import GCSServer

pytestmark = pytest.mark.wide

CALLS = 30
REFUSALS_FOR_A_WRITE = 8
"""With waits that double from half a second, each by chance between nothing and all of it, more are not to be seen."""


@pytest.fixture
def slow_server():
    server = GCSServer(writes_per_second=1.0)
    server.create_bucket(BUCKET)
    with server:
        yield server


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
async def test_thirty_calls_at_once_succeed_within_their_deadline(slow_server, kind):
    pytest.importorskip("google.cloud.storage")
    from jqueue import GCSStorage

    address = urlsplit(slow_server.url)
    async with asyncio.timeout(90), FaultProxy(address.hostname, address.port) as proxy:
        storage = GCSStorage(BUCKET, "queue.json", endpoint_url=proxy.url)
        async with kind(storage) as queue:
            first = await queue.enqueue("work", b"the next write comes too soon")
            outcomes = await asyncio.gather(
                *(queue.enqueue("work", b"%d" % number) for number in range(CALLS)), return_exceptions=True
            )
            assert [] == [error for error in outcomes if isinstance(error, BaseException)]
            state = await queue.read_state()
            assert {first, *outcomes} == set(state.jobs)
        answers = Counter(request.status for request in proxy.requests if request.method == "POST")
        assert {200: state.version, 429: answers[429]} == answers
        assert 1 <= answers[429] <= REFUSALS_FOR_A_WRITE * (state.version - 1)
        if kind is BrokerQueue:
            assert 3 >= state.version, "calls made together are committed together"
