"""Any payload and any headers are read back unchanged from a folder of dirq, and the real dirq reads the same."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jqueue import connect
from tests.interop.formats.conftest import ORIGINALS
from tests.interop.formats.dirq_original import Dirq

pytestmark = pytest.mark.wide

texts = st.text(st.characters(exclude_categories=["Cs"]))
escapes = st.text(st.sampled_from("\\\\\t\n\rtnx\0ö\u2028 "))
tables = st.dictionaries(st.one_of(texts, escapes), st.one_of(texts, escapes), max_size=5)
names = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
headers = st.dictionaries(names, st.one_of(texts, escapes), max_size=4)
payloads = st.one_of(st.binary(max_size=300), st.sampled_from([b"", b"\0", b"\r\n", b"\xff" * 9000]))

several = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def elements(folder):
    with Dirq(ORIGINALS["dirq"].interpreter(), folder / "queue", {"body": "binary", "header": "table?"}) as dirq:
        yield dirq


@pytest.fixture(scope="module")
def files(folder):
    with Dirq(ORIGINALS["dirq"].interpreter(), folder / "simple") as dirq:
        yield dirq


@several
@given(payloads, headers)
def test_the_original_program_reads_elements_that_we_add(folder, elements, files, payload, headers):
    async def add(url):
        async with connect(url) as queue:
            await queue.enqueue("work", payload, headers=headers)

    asyncio.run(add(f"dirq://{folder}/queue?fsync=false&kind=queue"))
    [(_, content)] = elements.take(10)
    assert payload == content["body"]
    assert headers == content.get("header", {})
    asyncio.run(add(f"dirq://{folder}/simple?fsync=false"))
    [(_, content)] = files.take(10)
    assert payload == content


@several
@given(payloads, tables)
def test_elements_that_the_original_program_adds_are_read(folder, elements, files, payload, table):
    async def take(url):
        async with connect(url) as queue:
            [job] = await queue.dequeue(batch_size=10)
            [shown] = (await queue.read_state()).jobs
            assert (job.payload, job.headers) == (shown.payload, shown.headers)
            await queue.ack(job)
            return job

    elements.add({"body": payload, "header": table})
    job = asyncio.run(take(f"dirq://{folder}/queue?fsync=false&kind=queue"))
    assert (payload, table) == (job.payload, job.headers)
    files.add(payload)
    assert payload == asyncio.run(take(f"dirq://{folder}/simple?fsync=false")).payload
    assert [] == elements.names() + files.names()
