"""A storage on a remote store opens one client for each event loop, and tells the time of its store."""

import asyncio
import copy
import logging
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue import S3Storage, StorageError
from tests.unit.test_etag_style import Body
from tests.virtual_world import in_virtual_time, now

NOBODY = "http://127.0.0.1:1"
KEYS: dict[str, Any] = {"region_name": "us-east-1", "access_key_id": "a", "secret_access_key": "b"}
NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class Session:
    """A session whose clients answer every read with their number.

    Attributes:
        clients: every client that was opened.
        opening: what each opening waits for, or fails with.
        answering: what each read waits for.
        closing: what each closing waits for, or fails with.
        date: the date of all answers.
    """

    def __init__(self, *opening):
        self.clients, self.opening, self.answering, self.date = [], list(opening), [], None
        self.closing: Any = None

    @asynccontextmanager
    async def client(self, *_, **__):
        await happen(self.opening.pop(0) if self.opening else None)
        client = Client(self, str(len(self.clients)))
        self.clients.append(client)
        try:
            yield client
        finally:
            await happen(self.closing)
            client.closed += 1

    @property
    def closed(self):
        return [client.closed for client in self.clients]


async def happen(event):
    """Wait for an event, or fail with an error."""
    if isinstance(event, Exception):
        raise event
    if event is not None:
        await event.wait()


class Client:
    def __init__(self, session, name):
        self.session, self.name, self.closed = session, name, 0
        self.loop = asyncio.get_running_loop()
        self.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))

    async def get_object(self, **_):
        assert self.loop is asyncio.get_running_loop()
        await happen(self.session.answering.pop(0) if self.session.answering else None)
        assert not self.closed
        headers = {} if self.session.date is None else {"date": self.session.date}
        return {"Body": Body(self.name.encode()), "ETag": '"1"', "ResponseMetadata": {"HTTPHeaders": headers}}


def storage_of(session):
    return S3Storage("bucket", "key", session)


async def client_of(storage):
    """Read, and return the name of the client that has answered."""
    return (await storage.read())[0].decode()


# Opening and closing


@in_virtual_time
async def test_calls_share_a_client_until_it_is_released():
    session = Session()
    async with storage_of(session) as storage:
        await storage.release()
        assert [] == session.clients, "nothing is opened before the first call"
        assert ["0"] * 9 == await asyncio.gather(*(client_of(storage) for _ in range(9)))
        assert "0" == await client_of(storage.beside(".other"))
        await storage.release()
        await storage.release()
        assert [1] == session.closed
        assert "1" == await client_of(storage)
    assert [1, 1] == session.closed


@in_virtual_time
async def test_an_opening_that_fails_or_is_cancelled_disturbs_no_other_call():
    session = Session(OSError("no route"), asyncio.Event())
    async with storage_of(session) as storage:
        calls = [asyncio.create_task(client_of(storage)) for _ in range(4)]
        await asyncio.sleep(1)
        assert isinstance(calls[0].exception(), StorageError)
        calls[1].cancel()
        await asyncio.sleep(1)
        assert calls[1].cancelled()
        assert ["0", "0"] == [call.result() for call in calls[2:]]


@in_virtual_time
async def test_an_opening_is_within_the_deadline_of_the_call():
    session = Session(asyncio.Event())
    storage = S3Storage("bucket", "key", session, timeout=3)
    with pytest.raises(StorageError, match=r"no answer within 3 s to the read"):
        await storage.read()
    assert 3 == now()
    assert "0" == await client_of(storage)
    await storage.release()


@in_virtual_time
async def test_release_waits_for_no_call_and_the_last_one_closes_even_if_it_is_cancelled():
    session = Session()
    storage = storage_of(session)
    session.answering = [asyncio.Event(), asyncio.Event()]
    first, second = (asyncio.create_task(client_of(storage)) for _ in range(2))
    await asyncio.sleep(1)
    go_on = session.closing = asyncio.Event()
    first.cancel()
    await storage.release()
    await asyncio.sleep(1)
    assert ([0], True, False) == (session.closed, first.cancelled(), second.done())
    for _ in range(2):
        second.cancel()
        await asyncio.sleep(1)
    go_on.set()
    await asyncio.sleep(1)
    assert ([1], True) == (session.closed, second.cancelled())


@in_virtual_time
async def test_a_client_that_cannot_be_closed_fails_no_call(caplog):
    session = Session()
    session.closing = OSError("a text with a secret")
    storage = storage_of(session)
    session.answering = [answer := asyncio.Event()]
    call = asyncio.create_task(client_of(storage))
    await asyncio.sleep(1)
    await storage.release()
    answer.set()
    assert "0" == await call
    assert [("jqueue", logging.WARNING)] == [record[:2] for record in caplog.record_tuples]
    assert "OSError" in caplog.text
    assert "secret" not in caplog.text


def test_each_loop_has_its_own_client_and_a_loop_that_ends_closes_it():
    session = Session()
    storage = storage_of(session)
    assert ["0", "1"] == [asyncio.run(client_of(storage)) for _ in range(2)]
    assert [1, 1] == session.closed
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: asyncio.run(client_of(storage)), range(4)))
    assert [1] * 6 == session.closed


@pytest.mark.parametrize("copied", [copy.copy, lambda storage: pickle.loads(pickle.dumps(storage))])
async def test_a_copy_of_a_storage_has_the_same_settings_and_a_client_of_its_own(copied):
    storage = S3Storage("bucket", "key", endpoint_url=NOBODY, timeout=3, **KEYS)
    with pytest.raises(StorageError):
        await storage.read()
    twin = copied(storage)
    assert (repr(storage), 3, None) == (repr(twin), twin.timeout, twin.store_time())
    await storage.release()
    with pytest.raises(StorageError):
        await twin.read()
    await twin.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_opens_clients_of_its_own_and_never_closes_those_of_its_parent():
    storage, loop = storage_of(session := Session()), asyncio.new_event_loop()
    assert "0" == loop.run_until_complete(client_of(storage))
    if not (child := os.fork()):
        code = 1
        with suppress(BaseException):
            assert "1" == asyncio.run(client_of(storage))
            assert "2" == loop.run_until_complete(client_of(storage))
            loop.run_until_complete(storage.release())
            code = int(session.closed != [0, 1, 1])
        os._exit(code)
    assert 0 == os.waitpid(child, 0)[1]
    assert "0" == loop.run_until_complete(client_of(storage))
    loop.run_until_complete(storage.release())
    loop.close()
    assert [1] == session.closed


# The client of S3


async def test_a_write_is_one_round_trip():
    """botocore would ask whether it may send the body, and wait for the answer."""
    asked = []

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.readexactly(len(b"content"))
        writer.write(b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with S3Storage("bucket", "key", endpoint_url=url, **KEYS) as storage:
            assert '"1"' == await storage.write(b"content")
    assert 1 == len(asked)
    assert b"expect" not in asked[0].lower()


# The time of the store


async def hear(storage, date):
    """Get an answer with this date, and return the time of the store."""
    storage.session.date = format_datetime(date) if isinstance(date, datetime) else date
    await storage.read()
    return storage.store_time()


@pytest.mark.parametrize(
    "date",
    [
        "Sun, 01 Mar 2026 12:00:00 GMT",
        "1 Mar 2026 13:00:00 +0100",
        "Sun, 01 Mar 2026 07:00:00 -0500",
    ],
)
@in_virtual_time
async def test_the_time_of_the_store_passes_by_the_monotonic_clock_of_this_process(date):
    storage = storage_of(Session())
    assert None is await hear(storage, None)
    assert NOON == await hear(storage, date)
    await asyncio.sleep(90.25)
    assert NOON + timedelta(seconds=90.25) == storage.store_time()
    assert UTC is storage.store_time().tzinfo
    await storage.release()


@in_virtual_time
async def test_a_clock_of_the_store_set_forward_is_believed_at_once_and_set_back_after_some_answers():
    storage, hour = storage_of(Session()), timedelta(hours=1)
    await hear(storage, NOON)
    assert NOON + hour == await hear(storage, NOON + hour)
    heard = [await hear(storage, NOON) for _ in range(20)]
    assert (NOON + hour, NOON) == (heard[0], heard[-1])
    assert sorted(heard, reverse=True) == heard
    await storage.release()


words = st.sampled_from(
    ["Mon,", "Sun,", "Jan", "Feb", "31", "94", "9999", "08:49:37", "24:60:61", "GMT", "EST", "-0000", "+99999",
     "99999999999999", "Z", ",", "-", "²"]
)  # fmt: skip
texts = st.text() | st.lists(words, max_size=8).map(" ".join)


@settings(max_examples=25)
@given(st.lists(texts | st.none() | st.datetimes() | st.datetimes(timezones=st.timezones()), max_size=9))
@in_virtual_time
async def test_any_date_of_a_store_gives_a_time_or_none(dates):
    storage = storage_of(Session())
    for date in dates:
        heard = await hear(storage, date)
        assert heard is None or heard.tzinfo is UTC
        await asyncio.sleep(1e6)
    await storage.release()
