"""The endpoint of a store that speaks S3 may come from the environment, as for the AWS tools."""

import asyncio

import pytest

from jqueue import DirectQueue, connect
from tests.object_stores import BUCKET, store_of


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize("server", ["seaweedfs", "moto_s3"])
async def test_a_url_without_an_endpoint_takes_that_of_the_environment(request, monkeypatch, server, variable):
    store = store_of(request, server)
    for name, value in {
        variable: store.address,
        "AWS_ACCESS_KEY_ID": store.server.access_key,
        "AWS_SECRET_ACCESS_KEY": store.server.secret_key,
        "AWS_REGION": store.server.region,
    }.items():
        monkeypatch.setenv(name, value)
    key = f"endpoint-of-{variable}.json"
    async with asyncio.timeout(60), connect(f"s3://{BUCKET}/{key}", DirectQueue, deadline=40) as queue:
        job = await queue.enqueue("work", b"payload")
    async with store.open(key) as witness:
        assert job.id.encode() in (await witness.read())[0]
