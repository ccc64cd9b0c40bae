"""The behaviour of aiobotocore when answers are lost, even with a single attempt. The S3 adapter relies on it."""

import asyncio
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from aiobotocore.session import AioSession
from aiohttp import ClientPayloadError
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

from tests.servers.fault_kinds import (
    BlackHole,
    DropAnswer,
    HangAnswer,
    Late,
    Refuse,
    ResetRequest,
    TruncateAnswer,
    s3_error,
)
from tests.servers.fault_proxy import FaultProxy

pytestmark = pytest.mark.wide

BUCKET = "behind-the-proxy"
BODY = b"x" * 1000
READ_TIMEOUT = 0.3
"""Read timeout of the client `hurried`, in seconds."""

LIMIT = 0.8
"""Seconds that a caller waits for a write of that client."""


@pytest.fixture
async def proxy(moto_s3):
    host, port = moto_s3.endpoint_url.removeprefix("http://").split(":")
    async with FaultProxy(host, int(port)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def connect(moto_s3):
    make_bucket = Request(f"{moto_s3.endpoint_url}/{BUCKET}", method="PUT")
    urlopen(make_bucket, timeout=10).close()
    session = AioSession()
    session.set_credentials(moto_s3.access_key, moto_s3.secret_key)

    def client(url, **options):
        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, **options)
        return session.create_client("s3", region_name=moto_s3.region, endpoint_url=url, config=config)

    return client


@pytest.fixture
async def s3(proxy, connect):
    async with connect(proxy.url) as s3:
        yield s3


@pytest.fixture
async def hurried(proxy, connect):
    async with connect(proxy.url, connect_timeout=5, read_timeout=READ_TIMEOUT) as s3:
        yield s3


@pytest.fixture
def key():
    return uuid4().hex


async def _create(s3, key, limit=10):
    async with asyncio.timeout(limit):
        await s3.put_object(Bucket=BUCKET, Key=key, Body=BODY, IfNoneMatch="*")


async def _read(s3, key):
    async with asyncio.timeout(10):
        answer = await s3.get_object(Bucket=BUCKET, Key=key)
        async with answer["Body"]:  # with `as`, the body would raise errors of aiohttp
            return await answer["Body"].read()


def _seen(proxy):
    return [(request.method, request.status) for request in proxy.requests]


async def test_a_signed_request_reaches_the_server_unchanged(proxy, s3, key):
    await _create(s3, key)
    assert BODY == await _read(s3, key)
    assert [("PUT", 200), ("GET", 200)] == _seen(proxy)
    for request in proxy.requests:
        assert f"127.0.0.1:{proxy.port}" == request.headers["host"]
        assert "SignedHeaders=host;" in request.headers["authorization"]
    assert "100-continue" == proxy.requests[0].headers["expect"]


LOST = [DropAnswer(), DropAnswer(reset=True), TruncateAnswer(head=20)]


@pytest.mark.parametrize("fault", LOST, ids=str)
async def test_a_write_whose_answer_is_lost_is_resent_and_then_refused(proxy, s3, key, fault):
    proxy.next(fault)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        await _create(s3, key)
    assert [("PUT", 200), ("PUT", 412)] == _seen(proxy)
    assert ["attempt=1", "attempt=1"] == [request.headers["amz-sdk-request"] for request in proxy.requests]
    assert BODY == await _read(s3, key)


@pytest.mark.parametrize("fault", [ResetRequest(0.5), ResetRequest(head=20), Refuse()], ids=str)
async def test_a_lost_request_is_resent(proxy, s3, key, fault):
    proxy.next(fault, method="PUT")
    await _create(s3, key)
    assert [("PUT", None), ("PUT", 200)] == _seen(proxy)


@pytest.mark.parametrize("fault", LOST, ids=str)
async def test_a_write_that_landed_can_end_with_a_connection_error(proxy, s3, key, fault):
    proxy.next(fault, times=2)
    reset = isinstance(fault, DropAnswer) and fault.reset
    with pytest.raises(EndpointConnectionError if reset else ConnectionClosedError):
        await _create(s3, key)
    assert [("PUT", 200), ("PUT", 412)] == _seen(proxy)
    assert BODY == await _read(s3, key)


async def test_a_write_succeeds_once_the_head_of_its_answer_is_complete(proxy, s3, key):
    proxy.next(TruncateAnswer(0))
    await _create(s3, key)
    assert [("PUT", 200)] == _seen(proxy)


@pytest.mark.parametrize("fault", LOST, ids=str)
async def test_a_read_whose_answer_is_lost_is_resent(proxy, s3, key, fault):
    await _create(s3, key)
    proxy.next(fault)
    assert BODY == await _read(s3, key)
    assert [("GET", 200), ("GET", 200)] == _seen(proxy)[1:]


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_read_whose_answer_is_cut_fails_with_an_error_of_aiohttp(proxy, s3, key, then):
    await _create(s3, key)
    proxy.next(TruncateAnswer(0.5, then=then))
    with pytest.raises(ClientPayloadError):
        await _read(s3, key)
    assert [("GET", 200)] == _seen(proxy)[1:]


async def test_a_write_without_an_answer_lands_and_is_not_resent(proxy, s3, hurried, key):
    proxy.next(HangAnswer())
    with pytest.raises((ReadTimeoutError, TimeoutError)):  # read_timeout ends many of these writes, but not all
        await _create(hurried, key, LIMIT)
    await proxy.until(lambda: proxy.requests[0].done)
    assert [("PUT", 200)] == _seen(proxy)
    assert BODY == await _read(s3, key)


async def test_a_write_into_a_black_hole_is_not_ended_by_read_timeout(proxy, s3, hurried, key):
    proxy.next(BlackHole())
    with pytest.raises(TimeoutError):
        await _create(hurried, key, LIMIT)
    assert [("PUT", None)] == _seen(proxy)


@pytest.mark.parametrize("fault", [HangAnswer(), BlackHole(), TruncateAnswer(0.5, then="hang")], ids=str)
async def test_a_read_without_an_answer_is_ended_by_read_timeout(proxy, s3, hurried, key, fault):
    await _create(s3, key)
    proxy.next(fault)
    with pytest.raises(ReadTimeoutError):
        await _read(hurried, key)
    assert 1 == proxy.count("GET")


@pytest.mark.parametrize("ask", [True, False])
@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (503, "SlowDown"), (429, "TooManyRequests")])
async def test_an_error_answer_is_raised_for_a_write_that_landed_or_not(proxy, s3, key, ask, status, code):
    proxy.next(s3_error(status, code, ask=ask))
    with pytest.raises(ClientError, match=code):
        await _create(s3, key)
    assert [("PUT", 200 if ask else None)] == _seen(proxy)


async def test_a_write_can_land_after_the_caller_has_given_up(proxy, s3, key):
    proxy.next(Late(0.3))
    write = asyncio.create_task(_create(s3, key))
    await proxy.until(lambda: proxy.requests and proxy.requests[0].bytes == len(BODY))
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)
    assert [("PUT", None)] == _seen(proxy)
    await proxy.until(lambda: proxy.requests[0].done)
    assert [("PUT", 200)] == _seen(proxy)
    assert BODY == await _read(s3, key)
