"""jqueue and the real dirq of Python on one folder, and on folders made by the originals."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from jqueue import connect
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from tests.interop.formats.dirq_contract import DirqContract
from tests.interop.formats.dirq_original import SCHEMA, Dirq

pytestmark = pytest.mark.wide

SCHEMA_IN_URL, STRINGS = "schema=body:binary,text:string?,header:table?", "schema=body:string,header:table"

TABLE = {"a": "1", "tab\tkey": "line\nvalue", "back\\slash": "\\t not a tab", "": "empty", "z": ""}


class TestDirq(DirqContract):
    counted_dead = 1  # a dead job is in a folder, which dirq counts

    @pytest.fixture
    def theirs(self, original, folder):
        opened = []

        def make(kind, **options):
            dirq = Dirq(original("dirq"), folder, SCHEMA if kind == "queue" else None, **options)
            opened.append(dirq)
            return dirq

        yield make
        for dirq in opened:
            dirq.__exit__(None, None, None)


async def contents(url):
    """The payloads and headers of queued jobs, and the payloads of jobs in progress."""
    async with connect(url) as queue:
        state = await queue.read_state()
        waiting = [(job.payload, dict(job.headers)) for job in state.queued_jobs()]
        return waiting, [job.payload for job in state.in_progress_jobs()]


async def test_a_folder_made_by_the_original_is_read(unpacked):
    simple, elements = unpacked("dirq-1.8-simple"), unpacked("dirq-1.8-queue")
    waiting, locked = await contents(f"dirq://{simple}/queue")
    texts = [b"first", b"", b"two\nlines\r\n", bytes(range(256)), "größe".encode(), "größe".encode()]
    assert [(text, {}) for text in texts] == waiting
    assert [b"locked", b"stale lock"] == locked
    assert ([(b"hourly", {})], []) == await contents(f"dirq://{simple}/hourly?granularity=3600")
    waiting, locked = await contents(f"dirq://{elements}/queue?{SCHEMA_IN_URL}")
    assert [b"first", b"", bytes(range(256)), b"next dir"] == [payload for payload, _ in waiting]
    assert {"text": ""} == waiting[1][1]
    assert {**TABLE, "text": "größe\r\n☺\0"} == waiting[2][1]
    assert [b"locked", b"stale"] == locked
    assert ([(b"text", {"k": "v"})], []) == await contents(f"dirq://{elements}/strings?{STRINGS}")


async def test_a_folder_made_by_perl_is_read(unpacked):
    simple, elements = unpacked("perl-directory-queue-2.2-simple"), unpacked("perl-directory-queue-2.2-normal")
    waiting, locked = await contents(f"dirq://{simple}/queue")
    assert [b"first", b"", b"two\nlines\r\n", bytes(range(256)), "größe ☺".encode()] == [text for text, _ in waiting]
    assert [b"locked", b"stale lock"] == locked
    assert ([(b"hourly", {})], []) == await contents(f"dirq://{simple}/hourly?granularity=3600")
    waiting, locked = await contents(f"dirq://{elements}/queue?{SCHEMA_IN_URL}")
    table = {**TABLE, "ö": "☺", "text": "größe\r\n☺\0"}
    assert [(b"first", {}), (b"", {"text": ""}), (bytes(range(256)), table), (b"next dir", {})] == waiting
    assert [b"locked", b"stale"] == locked
    assert ([("größe ☺".encode(), {"k": "v"})], []) == await contents(f"dirq://{elements}/strings?{STRINGS}")


@pytest.mark.parametrize("name", ["dirq-1.8", "perl-directory-queue-2.2"])
@pytest.mark.parametrize("kind", ["simple", "queue"])
async def test_leftovers_of_an_original_are_done_and_removed(name, kind, unpacked):
    archive = f"{name}-{'normal' if kind == 'queue' and 'perl' in name else kind}"
    folder, options = unpacked(archive) / "queue", SCHEMA_IN_URL if kind == "queue" else "kind=simple"
    async with connect(f"dirq://{folder}?fsync=false&{options}") as queue:
        waiting = await queue.dequeue(batch_size=100)
        assert len((await queue.read_state()).jobs) - 2 == len(waiting)
        assert [] == await queue.ack_many(waiting)
        assert 2 == await queue.requeue_stale(0)
        jobs = await queue.dequeue(batch_size=100)
        assert {b"locked"} < {job.payload for job in jobs}
        assert [] == await queue.ack_many(jobs)
    (DirqSimple if kind == "simple" else DirqElements)(folder).purge(datetime.now(UTC) + timedelta(days=400))
    left = [str(path.relative_to(folder)) for path in folder.rglob("*") if ".jqueue" not in path.parts]
    assert [] == [path for path in left if not re.fullmatch(r"[0-9a-f]{8}|temporary|obsolete", path)]
