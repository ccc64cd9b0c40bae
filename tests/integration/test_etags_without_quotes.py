"""Ceph and DigitalOcean Spaces take an etag in a condition only without its quotes; R2 only with them.

Moto, which takes both, imitates each of these stores and records the requests that it gets.
"""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from moto.s3.responses import S3Response

from jqueue import BrokerQueue, CASConflictError, DirectQueue
from tests.object_stores import store_of

pytestmark = pytest.mark.wide

Refusal = tuple[int, dict[str, str], str]

REFUSED: Refusal = 412, {}, "<Error><Code>PreconditionFailed</Code><Message>It does not fit.</Message></Error>"
MALFORMED: Refusal = 400, {}, "<Error><Code>InvalidArgument</Code><Message>No etag.</Message></Error>"
NOT_NOW: Refusal = 409, {}, "<Error><Code>ConditionalRequestConflict</Code><Message>Somebody writes.</Message></Error>"
STALE = '"0123456789abcdef0123456789abcdef"'

of_each_kind = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


class RequestLog:
    """Requests for objects that the server has got.

    Attributes:
        methods: number of requests by method.
        matches: the etag of each PUT that has one in If-Match.
        next_match: an answer for the next PUT with an If-Match.
    """

    def __init__(self):
        self.methods: Counter[str] = Counter()
        self.matches: list[str] = []
        self.next_match: Refusal | None = None

    @property
    def quoted(self):
        """True for each etag in `matches` that came with quotes."""
        return [etag.startswith('"') for etag in self.matches]


@pytest.fixture
def patched_server(request, monkeypatch):
    """Return a function that makes moto refuse PUTs by their If-Match, and record its requests."""

    def change(refusal_for=lambda etag: None):
        heard, respond = RequestLog(), S3Response.key_response

        def key_response(self, request, *arguments):
            etag = request.headers.get("If-Match")
            heard.methods[request.method] += 1
            if request.method != "PUT" or etag is None:
                return respond(self, request, *arguments)
            _ = request.data
            heard.matches.append(etag)
            refusal, heard.next_match = heard.next_match or refusal_for(etag), None
            return refusal or respond(self, request, *arguments)

        monkeypatch.setattr(S3Response, "key_response", key_response)
        return heard

    return change


def like_ceph(etag):
    """An etag with quotes matches no object."""
    return REFUSED if etag.startswith('"') else None


def like_r2(etag):
    """An etag without quotes is malformed."""
    return None if etag.startswith('"') else MALFORMED


@asynccontextmanager
async def two_storages(request, server):
    """Return two storages of the same new object, each with a client of its own."""
    store = store_of(request, server)
    key = store.new_key()
    async with asyncio.timeout(60), store.open(key, timeout=30) as one, store.open(key, timeout=30) as other:
        yield one, other


async def everything(queue):
    """Call the verbs of a queue one after the other."""
    await queue.enqueue("work", b"1")
    await asyncio.gather(*(queue.enqueue("work", b"more", priority=1) for _ in range(5)))
    [job] = await queue.dequeue("work")
    await queue.heartbeat(job)
    await queue.nack(job, error="again")
    [job] = await queue.dequeue("work")
    assert (b"1", 2) == (job.payload, job.attempt)
    await queue.ack(job)
    for job in await queue.dequeue("work", batch_size=10):
        await queue.ack(job)
    assert [] == await queue.dequeue("work")
    assert () == (await queue.read_state()).jobs


@pytest.mark.parametrize("server", ["moto_s3"])
async def test_a_store_that_takes_no_quotes_gets_unquoted_etags(request, patched_server, server):
    async with two_storages(request, server) as (storage, _):
        heard = patched_server(like_ceph)
        etag = await storage.write(b"1")
        assert storage.etag_style is None, "nothing was matched yet"
        etag = await storage.write(b"2", etag)
        assert "unquoted" == storage.etag_style
        assert ([True, False], 1) == (heard.quoted, heard.methods["HEAD"])
        for number in range(3):
            etag = await storage.write(b"more %d" % number, etag)
        assert ([True] + [False] * 4, 1) == (heard.quoted, heard.methods["HEAD"]), "it is asked only once"
        assert (b"more 2", etag) == await storage.read()
        assert etag.startswith('"'), "the etag is returned as the store gave it"
        assert await storage.read_if_changed(etag) is None
        assert (b"more 2", etag) == await storage.read_if_changed(STALE)


@pytest.mark.parametrize("server", ["moto_s3"])
async def test_a_conflict_stays_a_conflict_on_a_store_that_takes_no_quotes(request, patched_server, server):
    async with two_storages(request, server) as (storage, other):
        patched_server(like_ceph)
        old = await storage.write(b"1")
        await other.write(b"2", old)
        with pytest.raises(CASConflictError):
            await storage.write(b"never", old)
        assert storage.etag_style is None, "a conflict says nothing about quotes"
        content, etag = await storage.read()
        assert b"2" == content
        new = await storage.write(b"3", etag)
        assert "unquoted" == storage.etag_style
        for stale in (old, etag, STALE):
            with pytest.raises(CASConflictError):
                await storage.write(b"never", stale)
        with pytest.raises(CASConflictError):
            await storage.write(b"never")
        assert (b"3", new) == await storage.read()
        assert ["unquoted"] == [storage.etag_style]


@pytest.mark.parametrize("server", ["moto_s3"])
async def test_only_one_of_two_first_writes_with_the_same_etag_succeeds(request, patched_server, server):
    """Both writers send quotes, find their etag unchanged, and write again without quotes: then one comes first."""
    for _ in range(2):
        async with two_storages(request, server) as (storage, other):
            patched_server(like_ceph)
            etag = await storage.write(b"0")
            outcomes = await asyncio.gather(storage.write(b"1", etag), other.write(b"2", etag), return_exceptions=True)
            [new] = [each for each in outcomes if isinstance(each, str)]
            assert [CASConflictError] == [type(each) for each in outcomes if not isinstance(each, str)]
            assert (b"1" if outcomes[0] == new else b"2", new) == await storage.read()
            loser = other if outcomes[0] == new else storage
            assert loser.etag_style is None, "a lost race does not settle the style"
            await loser.write(b"3", new)
            assert "unquoted" == loser.etag_style


@of_each_kind
@pytest.mark.parametrize("server", ["moto_s3"])
async def test_a_whole_queue_works_on_a_store_that_takes_no_quotes(request, patched_server, server, kind):
    async with two_storages(request, server) as (storage, other):
        heard = patched_server(like_ceph)
        async with kind(storage, deadline=50) as queue:
            await everything(queue)
            assert ("unquoted", 1) == (storage.etag_style, heard.methods["HEAD"])
            async with kind(other, deadline=50) as another:
                await asyncio.gather(*(each.enqueue("work", b"") for each in (queue, another) for _ in range(3)))
                assert {"unquoted"} == {storage.etag_style, other.etag_style}
                assert 6 == len(await queue.dequeue("work", batch_size=10))
                assert [] == await another.dequeue("work")


@of_each_kind
@pytest.mark.parametrize("server", ["moto_s3"])
@pytest.mark.parametrize("refusal_for", [lambda etag: None, like_r2], ids=["as it is", "like R2"])
async def test_a_store_that_takes_quotes_gets_them_without_an_extra_request(
    request, patched_server, server, kind, refusal_for
):
    async with two_storages(request, server) as (storage, other):
        heard = patched_server(refusal_for)
        async with kind(storage, deadline=50) as queue, kind(other, deadline=50) as another:
            await everything(queue)
            assert ("quoted", 0) == (storage.etag_style, heard.methods["HEAD"])
            await asyncio.gather(*(each.enqueue("work", b"") for each in (queue, another) for _ in range(3)))
            assert 6 == len((await another.read_state()).jobs)
        assert all(heard.quoted)
        asked = heard.methods["HEAD"]  # from the other one, if its first write has lost a race
        async with kind(other, deadline=50) as another:
            assert 6 == len(await another.dequeue("work", batch_size=10))
        assert ("quoted", asked) == (other.etag_style, heard.methods["HEAD"])
        with pytest.raises(CASConflictError):
            await storage.write(b"never", STALE)
        assert ("quoted", True) == (storage.etag_style, all(heard.quoted))


@pytest.mark.parametrize("server", ["moto_s3", "seaweedfs"])
async def test_a_conflict_in_the_first_write_does_not_remove_the_quotes(request, patched_server, server):
    async with two_storages(request, server) as (storage, other):
        old = await storage.write(b"1")
        etag = await other.write(b"2", old)
        heard = patched_server(like_r2)
        for stale in (old, STALE):
            with pytest.raises(CASConflictError):
                await storage.write(b"never", stale)
        assert storage.etag_style is None
        await storage.write(b"3", etag)
        assert "quoted" == storage.etag_style
        assert all(heard.quoted)


@pytest.mark.parametrize("answer", [NOT_NOW, REFUSED], ids=["409", "412"])
@pytest.mark.parametrize("server", ["moto_s3"])
async def test_a_passing_refusal_stays_a_conflict_on_a_store_that_needs_quotes(request, patched_server, server, answer):
    """The object did not change, or changed back: the error must not say that the store cannot be used."""
    async with two_storages(request, server) as (storage, _):
        heard = patched_server(like_r2)
        etag = await storage.write(b"1")
        heard.next_match = answer
        with pytest.raises(CASConflictError):
            await storage.write(b"2", etag)
        assert storage.etag_style is None
        await storage.write(b"2", etag)
        assert "quoted" == storage.etag_style


@pytest.mark.parametrize("server", ["moto_s3"])
async def test_a_store_that_takes_no_etag_at_all_always_conflicts_and_changes_nothing(request, patched_server, server):
    async with two_storages(request, server) as (storage, _):
        patched_server(lambda etag: REFUSED)
        etag = await storage.write(b"1")
        for _ in range(2):
            with pytest.raises(CASConflictError):
                await storage.write(b"2", etag)
        assert (None, (b"1", etag)) == (storage.etag_style, await storage.read())
