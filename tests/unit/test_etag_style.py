"""Writers that share one `S3Storage` on a store that takes etags in one style only find the style and keep it.

The client is an imitation in memory, whose answers take virtual time. Each seed gives another order of events.
"""

import asyncio
import copy
import itertools
import math
import pickle
import random
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from jqueue import CASConflictError, S3Storage
from tests.virtual_world import in_virtual_time, now

pytestmark = pytest.mark.virtual_time

WRITERS = 4


class OneStyle:
    """A session and its client. An etag in the other style fits nothing, as in Ceph, or is malformed, as in R2.

    Args:
        dice: how long each request is on its way; None: 10 ms there and back.
        quotes: whether it takes etags with quotes.
        every: seconds between two writes that it takes.
        malformed: whether an etag in the other style is answered with 400.

    Attributes:
        calls: the requests in order: the method, and for a PUT the If-Match.
    """

    def __init__(self, dice=None, *, quotes=False, every=0.0, malformed=False):
        self.dice, self.quotes, self.every, self.malformed = dice, quotes, every, malformed
        self.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))
        self.etag, self.content, self.last = None, b"", -math.inf
        self.calls, self.numbers, self.next_answers = [], itertools.count(1), []

    def client(self, *_, **__):
        return nullcontext(self)

    async def way(self):
        await asyncio.sleep(0.01 if self.dice is None else self.dice.uniform(0.001, 0.05))

    async def put_object(self, *, Body, IfMatch=None, IfNoneMatch=None, **_):
        self.calls.append(("PUT", IfMatch))
        await self.way()
        error = self.next_answers.pop(0) if self.next_answers else self._refusal(IfMatch, IfNoneMatch)
        if error is None:
            self.etag, self.content, self.last = f'"{next(self.numbers)}"', Body, now()
        etag = self.etag
        await self.way()
        if error is not None:
            raise error
        return {"ETag": etag}

    def _refusal(self, match, none_match):
        if match is not None and match.startswith('"') != self.quotes:
            return answer(400, "InvalidArgument") if self.malformed else answer(412, "PreconditionFailed")
        fits = self.etag is None if none_match else self.etag is not None and match.strip('"') == self.etag.strip('"')
        if not fits:
            return answer(412, "PreconditionFailed")
        return answer(429, "SlowDown") if now() < self.last + self.every else None

    async def head_object(self, **_):
        self.calls.append(("HEAD", None))
        await self.way()
        etag = self.etag
        await self.way()
        return {"ETag": etag}

    async def get_object(self, **_):
        self.calls.append(("GET", None))
        await self.way()
        if self.etag is None:
            raise answer(404, "NoSuchKey")
        found = {"Body": Body(self.content), "ETag": self.etag}
        await self.way()
        return found

    @property
    def asked(self):
        """Number of HEAD requests for the etag, sent to find out the style."""
        return self.calls.count(("HEAD", None))


class Body:
    def __init__(self, content):
        self.content = content

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def read(self):
        return self.content


def answer(status, code):
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


def s3(store, **options):
    return S3Storage("bucket", "queue.json", store, **options)


async def increment(storage, times):
    """Add one `times` times, and read again after each conflict; give up at the hundredth. Return the times left."""
    conflicts = 0
    while times and conflicts < 100:
        content, etag = await storage.read()
        try:
            await storage.write(b"%d" % (int(content) + 1), etag)
            times -= 1
        except CASConflictError:
            conflicts += 1
    return times


@pytest.mark.parametrize(("quotes", "malformed"), [(False, False), (True, False), (True, True)])
def test_writers_that_share_a_storage_find_the_style_of_the_store_in_any_order_of_events(quotes, malformed):
    for seed in range(10):
        store = OneStyle(random.Random(seed), quotes=quotes, malformed=malformed)

        @in_virtual_time
        async def write_together(store=store, seed=seed):
            storage = s3(store)
            await storage.write(b"0")
            left = await asyncio.gather(*(increment(storage, 5) for _ in range(WRITERS)))
            assert ([0] * WRITERS, b"20") == (left, store.content), f"seed {seed}"
            assert storage.etag_style == ("quoted" if quotes else "unquoted")

        write_together()


async def test_a_known_style_is_kept_after_later_errors():
    store = OneStyle()
    storage = s3(store)
    etag = await storage.write(b"2", await storage.write(b"1"))
    assert "unquoted" == storage.etag_style
    store.next_answers = [answer(412, "PreconditionFailed"), answer(429, "SlowDown"), answer(500, "InternalError")]
    for _ in range(3):
        with pytest.raises(Exception, match="s3://"):
            await storage.write(b"3", etag)
    asked = store.asked
    await storage.write(b"3", etag)
    assert ("unquoted", 1, 1) == (storage.etag_style, asked, store.asked)


@pytest.mark.parametrize("style", ["quoted", "unquoted"])
async def test_a_configured_style_is_used_from_the_first_write_without_a_head_request(style):
    store = OneStyle(quotes=style == "quoted")
    storage = s3(store, etag_style=style)
    assert style == storage.etag_style
    await storage.write(b"2", await storage.write(b"1"))
    with pytest.raises(CASConflictError):
        await storage.write(b"never", '"17"')
    assert ["PUT"] * 3 == [method for method, _ in store.calls]


async def test_objects_of_one_store_share_the_style_and_a_copy_in_another_process_keeps_it():
    store = OneStyle()
    storage = s3(store)
    beside = storage.beside(".staged.1")
    await beside.write(b"2", await beside.write(b"1"))
    assert "unquoted" == storage.etag_style
    other = copy.copy(storage)
    other.session = None
    assert "unquoted" == pickle.loads(pickle.dumps(other)).etag_style
