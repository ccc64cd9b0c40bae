"""Any payload and headers are read back from a folder of vsqs, which holds them as vsqs would store them."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.names import parse
from jqueue.formats.vsqs.store import VsqsFolder

pytestmark = pytest.mark.wide

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=30)


@settings(max_examples=20, deadline=None)
@given(payload=st.binary(max_size=2000), headers=st.dictionaries(NAMES, TEXT, max_size=30), in_attributes=st.booleans())
@example(payload=b"", headers={}, in_attributes=True)
@example(payload=b"\x00\r\n\xff", headers={"n": "\x00\u2028 é"}, in_attributes=False)
def test_payload_and_headers_come_back_and_the_file_is_the_payload(payload, headers, in_attributes):
    async def round_trip(folder: Path) -> None:
        def queue() -> StoreQueue:
            return StoreQueue(VsqsFolder(folder, fsync=False, attributes=in_attributes))

        sent = await queue().enqueue("work", payload, headers=headers)
        [name] = [name for name in os.listdir(folder) if parse(name)]
        assert payload == (folder / name).read_bytes()
        consumer = queue()
        [job] = await consumer.dequeue()
        assert (sent.id, payload, headers) == (job.id, job.payload, dict(job.headers))
        await consumer.nack(job, error="é" * 50)
        [again] = await consumer.dequeue()
        assert (sent.id, payload, headers, 2) == (again.id, again.payload, dict(again.headers), again.attempt)
        assert sent.created_at == again.created_at
        await consumer.ack(again)
        assert [] == [name for name in os.listdir(folder) if parse(name)]

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(round_trip(Path(folder)))
