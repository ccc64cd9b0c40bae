"""jqueue and the real dirq of Python on one folder, and on folders made by dirq and by Perl's Directory::Queue."""

import re

import pytest

from jqueue import connect
from tests.interop.formats.dirq_contract import DirqContract
from tests.interop.formats.originals import SCHEMA, Original

pytestmark = pytest.mark.wide

SCHEMA_IN_URL, STRINGS = "schema=body:binary,text:string?,header:table?", "schema=body:string,header:table"

TABLE = {"a": "1", "tab\tkey": "line\nvalue", "back\\slash": "\\t not a tab", "": "empty", "z": ""}


class TestDirq(DirqContract):
    counted_dead = 1  # a dead job is in a folder, which dirq counts

    @pytest.fixture
    def theirs(self, original, folder):
        opened = []

        def make(kind, **options):
            settings = SCHEMA if kind == "queue" else None, options
            opened.append(Original("dirq", original("dirq"), folder, settings))
            return opened[-1]

        yield make
        for dirq in opened:
            dirq.__exit__(None, None, None)


async def contents(url):
    """The payloads and headers of queued jobs, and the payloads of jobs in progress."""
    async with connect(url) as queue:
        state = await queue.read_state()
        waiting = [(job.payload, dict(job.headers)) for job in state.queued_jobs()]
        return waiting, [job.payload for job in state.in_progress_jobs()]


@pytest.mark.parametrize("name", ["dirq-1.8", "perl-directory-queue-2.2"])
async def test_folders_made_by_an_original_are_read(name, unpacked):
    perl = "perl" in name
    simple, elements = unpacked(f"{name}-simple"), unpacked(f"{name}-{'normal' if perl else 'queue'}")
    waiting, locked = await contents(f"dirq://{simple}/queue")
    texts = ["größe ☺".encode()] if perl else ["größe".encode()] * 2
    assert [(text, {}) for text in [b"first", b"", b"two\nlines\r\n", bytes(range(256)), *texts]] == waiting
    assert [b"locked", b"stale lock"] == locked
    assert ([(b"hourly", {})], []) == await contents(f"dirq://{simple}/hourly?granularity=3600")
    waiting, locked = await contents(f"dirq://{elements}/queue?{SCHEMA_IN_URL}")
    table = {**TABLE, **({"ö": "☺"} if perl else {}), "text": "größe\r\n☺\0"}
    assert [(b"", {"text": ""}), (bytes(range(256)), table)] == waiting[1:3]
    assert [b"first", b"next dir"] == [waiting[0][0], waiting[3][0]]
    assert [b"locked", b"stale"] == locked
    text = "größe ☺" if perl else "text"
    assert ([(text.encode(), {"k": "v"})], []) == await contents(f"dirq://{elements}/strings?{STRINGS}")


@pytest.mark.parametrize("name", ["dirq-1.8", "perl-directory-queue-2.2"])
@pytest.mark.parametrize("kind", ["simple", "queue"])
async def test_leftovers_of_an_original_are_done_and_leave_no_element(name, kind, unpacked):
    archive = f"{name}-{'normal' if kind == 'queue' and 'perl' in name else kind}"
    folder, options = unpacked(archive) / "queue", SCHEMA_IN_URL if kind == "queue" else "kind=simple"
    async with connect(f"dirq://{folder}?{options}") as queue:
        waiting = await queue.dequeue(batch_size=100)
        assert len((await queue.read_state()).jobs) - 2 == len(waiting)
        assert [] == await queue.ack_many(waiting)
        assert 2 == await queue.requeue_stale(0)
        jobs = await queue.dequeue(batch_size=100)
        assert {b"locked"} < {job.payload for job in jobs}
        assert [] == await queue.ack_many(jobs)
    left = [path.relative_to(folder) for path in folder.rglob("*") if re.fullmatch("[0-9a-f]{14}.*", path.name)]
    assert [] == [path for path in left if re.fullmatch("[0-9a-f]{8}", path.parts[0]) and path.suffix != ".tmp"]
