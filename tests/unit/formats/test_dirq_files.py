"""The files of a queue of dirq after each step, the locks of other programs, and what killed programs leave behind."""

import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from jqueue import ClaimLostError, InvalidJobError, JobNotFoundError, JobStatus
from jqueue.domain.errors import StorageFatalError
from jqueue.formats import journal
from jqueue.formats.dirq.layout import Elements, Simple
from jqueue.formats.dirq.store import DirqStore
from jqueue.formats.journal import Journal, State
from jqueue.formats.queue import StoreQueue
from jqueue.testing.fake_clock import FakeClock
from jqueue.testing.virtual_time import EPOCH
from tests.unit.formats.places import journal_of, open_queue, tree

LAYOUTS = {"simple": Simple, "elements": Elements}
of_both_kinds = pytest.mark.parametrize("kind", LAYOUTS)
START = int(EPOCH.timestamp())


@pytest.fixture
def root(tmp_path):
    return tmp_path / "queue"


def add(kind, root, name, payload):
    """Add an element as programs of dirq do."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    if kind == "elements":
        (root / name).mkdir()
    (root / name / "body" if kind == "elements" else root / name).write_bytes(payload)


def lock(kind, root, name, seconds=None):
    """Lock an element as programs of dirq do."""
    if kind == "simple":
        os.link(root / name, root / f"{name}.lck")
    else:
        os.mkdir(root / name / "locked")
    if seconds is not None:
        os.utime(root / name, (seconds, seconds))


def unlock(kind, root, name):
    if kind == "simple":
        os.unlink(root / f"{name}.lck")
    else:
        os.rmdir(root / name / "locked")


def raced(kind, root, method, race):
    """Return a queue. Another program comes once, right before a method of the layout."""
    races = [race]

    def first_the_race(self, *paths):
        if races:
            races.pop()(*paths)
        return getattr(super(layout, self), method)(*paths)

    layout = type("Raced", (LAYOUTS[kind],), {method: first_the_race})
    return StoreQueue(DirqStore(root, layout(), entrypoint="work"), clock=FakeClock())


@of_both_kinds
async def test_a_job_is_an_element_of_dirq_from_its_enqueue_to_its_ack(kind, tmp_path, root):
    clock = FakeClock()
    headers = {} if kind == "simple" else {"a": "1\n"}
    async with open_queue(kind, tmp_path, clock, more="umask=027") as queue:
        job = await queue.enqueue("work", b"\0\xff", headers=headers)
        folder = f"{START // 60 * 60:08x}" if kind == "simple" else "00000000"
        name = f"{folder}/{START:08x}00000{job.id[-1]}"
        assert name == job.id
        parts: dict[str, bytes | None] = {name: b"\0\xff"}
        if kind == "elements":
            parts = {name: None, f"{name}/body": b"\0\xff", f"{name}/header": b"a\t1\\n\n"}
            parts |= {"temporary": None, "obsolete": None}
        waiting = {folder: None, **parts}
        assert waiting == tree(root)
        modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [root, *root.rglob("*")]}
        assert {(False, 0o640), (True, 0o750)} == modes
        clock.advance(1)
        [claimed] = await queue.dequeue()
        locked = {f"{name}.lck": b"\0\xff"} if kind == "simple" else {f"{name}/locked": None}
        assert waiting | locked == tree(root), "the lock of dirq and nothing else"
        assert START + 1 == round(os.stat(root / name).st_mtime), "a purge goes by it"
        clock.advance(500)
        await queue.heartbeat(claimed)
        assert START + 501 == round(os.stat(root / name).st_mtime)
        await queue.nack(claimed, charge=False)
        assert waiting == tree(root)
        await queue.ack_many(await queue.dequeue())
        assert [] == [name for name, content in tree(root).items() if content is not None]
        assert {job.id: State(id=job.id, attempt=2, finished=True)} == journal_of(root, kind).states


@pytest.mark.parametrize(("kind", "option"), [("simple", "granularity=60"), ("elements", "maxelts=2")])
async def test_folders_are_those_of_the_options_and_names_increase_even_if_the_clock_goes_back(kind, option, tmp_path):
    async with open_queue(kind, tmp_path, more=option) as queue:
        places = [(await queue.enqueue("work", b"")).id for _ in range(3)]
    async with open_queue(kind, tmp_path, FakeClock(EPOCH - timedelta(seconds=5)), more=option) as queue:
        await queue.read_state()
        places.append((await queue.enqueue("work", b"")).id)
        [first, *_] = await queue.dequeue(batch_size=4)
        await queue.nack(first)
        assert first.id == (await queue.dequeue())[0].id
    names = [place[-14:] for place in places]
    assert (sorted(names), 4) == (names, len(set(names)))
    folders = [place[:8] for place in places]
    expected = [f"{START:08x}"] * 4 if kind == "simple" else ["00000000", "00000000", "00000001", "00000001"]
    assert expected == folders


@of_both_kinds
async def test_the_lock_of_another_program_is_respected_and_shown(kind, tmp_path, root):
    async with open_queue(kind, tmp_path, more="maxlock=120") as queue:
        job = await queue.enqueue("work", b"1")
        lock(kind, root, job.id, START - 10)
        assert [] == await queue.dequeue()
        [seen] = (await queue.read_state()).jobs
        assert (JobStatus.IN_PROGRESS, 120.0) == (seen.status, seen.claim_timeout)
        assert seen.heartbeat_at is not None
        assert START - 10 == seen.heartbeat_at.timestamp()
        for verb in (queue.ack, queue.nack, queue.heartbeat):
            with pytest.raises(JobNotFoundError):
                await verb(job)
        unlock(kind, root, job.id)
        [claimed] = await queue.dequeue()
        assert job.id == claimed.id


@of_both_kinds
async def test_a_claim_whose_lock_another_program_took_changes_nothing(kind, tmp_path, root):
    async with open_queue(kind, tmp_path) as queue:
        job = await queue.enqueue("work", b"1")
        for relocked, verb in product((False, True), (queue.ack, queue.nack, queue.heartbeat)):
            [claimed] = await queue.dequeue()
            unlock(kind, root, job.id)
            if relocked:
                lock(kind, root, job.id, START + 7)
            before = tree(root)
            with pytest.raises(JobNotFoundError):
                await verb(claimed)
            assert before == tree(root)
            if relocked:
                unlock(kind, root, job.id)


@of_both_kinds
@pytest.mark.parametrize("step", ["claim", "heartbeat", "hand back"])
async def test_a_lock_that_another_program_takes_while_a_step_waits_for_the_journal_is_left_alone(
    step, kind, tmp_path, root, monkeypatch
):
    locked, before = Journal.locked, list[object]()

    def late(journal):
        if not before:
            unlock(kind, root, job.id)
            lock(kind, root, job.id, START + 7)
            before.extend((tree(root), journal_of(root, kind).states))
        return locked(journal)

    async with open_queue(kind, tmp_path) as queue:
        job = await queue.enqueue("work", b"1")
        claimed = [] if step == "claim" else await queue.dequeue()
        monkeypatch.setattr(Journal, "locked", late)
        if step == "claim":
            assert [] == await queue.dequeue()
        for claim in claimed:
            with pytest.raises(ClaimLostError):
                await (queue.heartbeat(claim) if step == "heartbeat" else queue.nack(claim, charge=False))
        assert before == [tree(root), journal_of(root, kind).states]
        assert START + 7 == os.stat(root / job.id).st_mtime


@of_both_kinds
@pytest.mark.parametrize("dead", [False, True])
async def test_an_element_that_another_program_locks_while_it_moves_goes_back(kind, dead, root):
    def take(path, new):
        unlock(kind, root, path)
        lock(kind, root, path, START + 7)

    async with raced(kind, root, "rename", take) as queue:
        job = await queue.enqueue("work", b"1")
        [claimed] = await queue.dequeue()
        before, states = tree(root), journal_of(root, kind).states
        with pytest.raises(ClaimLostError):
            await queue.nack(claimed, dead=dead)
        assert (before, states) == (tree(root), journal_of(root, kind).states)
        assert {"journal", "journal.lock"} == set(os.listdir(root / ".jqueue"))
        assert START + 7 == os.stat(root / job.id).st_mtime


@of_both_kinds
async def test_a_claim_whose_lock_another_program_takes_at_once_is_not_handed_out(kind, root):
    def take(path):
        unlock(kind, root, path)
        lock(kind, root, path, START + 7)

    async with raced(kind, root, "read", take) as queue:
        await queue.enqueue("work", b"1")
        assert [] == await queue.dequeue()


@of_both_kinds
async def test_a_moved_element_replaces_no_element_of_another_program(kind, root):
    async with raced(kind, root, "rename", lambda path, new: add(kind, root, new, b"theirs")) as queue:
        await queue.enqueue("work", b"ours", headers={"whose": "ours"})
        await queue.nack((await queue.dequeue())[0])
        jobs = await queue.dequeue(batch_size=9)
        assert {b"ours": {"whose": "ours"}, b"theirs": {}} == {job.payload: dict(job.headers) for job in jobs}
        assert [] == await queue.ack_many(jobs)
        assert [] == [name for name, content in tree(root).items() if content is not None]


@of_both_kinds
async def test_names_that_are_not_dirqs_and_links_are_left_alone(kind, tmp_path, root):
    async with open_queue(kind, tmp_path) as queue:
        job = await queue.enqueue("work", b"1")
        folder = root / job.id[:8]
        for path in (folder / "note.txt", folder / "0123", folder / "ABCDEF0123456A", root / "README"):
            path.write_bytes(b"mine")
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "body").write_bytes(b"mine")
        (folder / ("0" * 13 + "1")).symlink_to(tmp_path / "outside")
        before = {name for name in tree(root) if not name.startswith(job.id)}
        [claimed] = await queue.dequeue(batch_size=9)
        await queue.ack(claimed)
        assert before <= set(tree(root))
        assert ["body"] == os.listdir(tmp_path / "outside")


@of_both_kinds
async def test_a_queue_of_the_other_kind_or_a_file_in_its_place_is_refused_unchanged(kind, tmp_path, root):
    async with open_queue(kind, tmp_path) as queue:
        await queue.enqueue("work", b"1")
    before = tree(root)
    async with open_queue("elements" if kind == "simple" else "simple", tmp_path) as other:
        with pytest.raises(StorageFatalError, match="kind="):
            await other.dequeue()
    assert before == tree(root)
    shutil.rmtree(root)
    root.write_bytes(b"mine")
    async with open_queue(kind, tmp_path) as queue:
        with pytest.raises(StorageFatalError, match="not a folder"):
            await queue.read_state()


@pytest.mark.parametrize("harm", ["no body", "no table"])
async def test_an_unreadable_element_is_set_aside_for_a_minute(harm, tmp_path, root):
    clock = FakeClock()
    async with open_queue("elements", tmp_path, clock) as queue:
        bad, good = await queue.enqueue("work", b"bad"), await queue.enqueue("work", b"good")
        if harm == "no body":
            (root / bad.id / "body").unlink()
        else:
            (root / bad.id / "header").write_bytes(b"nonsense\n")
        assert [good.id] == [job.id for job in await queue.dequeue(batch_size=9)]
        assert [] == await queue.dequeue()
        assert not (root / bad.id / "locked").exists()
        (root / bad.id / "header").write_bytes(b"")
        (root / bad.id / "body").write_bytes(b"mended")
        clock.advance(61)
        assert [b"mended"] == [job.payload for job in await queue.dequeue()]


async def test_a_schema_says_where_payload_and_headers_lie_and_refuses_jobs_that_it_cannot_hold(tmp_path, root):
    async with open_queue("elements", tmp_path, more="schema=text:string?,more:string?,table:table&payload=text"
                          "&headers=table") as queue:  # fmt: skip
        job = await queue.enqueue("work", "ö".encode(), headers={"more": "1", "a": "\t\\"})
        content = {path.name: path.read_text("utf-8") for path in (root / job.id).iterdir()}
        assert {"text": "ö", "more": "1", "table": "a\t\\t\\\\\n"} == content
        for payload, headers in ((b"\xff", {}), (b"", {"a": "\ud800"})):
            with pytest.raises(InvalidJobError):
                await queue.enqueue("work", payload, headers=headers)
        (root / job.id / "text").unlink()
        assert [(b"", job.headers)] == [(each.payload, each.headers) for each in await queue.dequeue()]


@of_both_kinds
async def test_leftovers_of_killed_programs_are_removed_and_nothing_else(kind, tmp_path, root, monkeypatch):
    monkeypatch.setattr(journal, "COMPACT_BYTES", 0)
    clock = FakeClock(datetime.now(UTC))
    async with open_queue(kind, tmp_path, clock) as queue:
        ids = [(await queue.enqueue("other", b"%d" % number)).id for number in range(3)]
        await queue.nack((await queue.dequeue("other"))[0], dead=True)
    states = journal_of(root, kind).states.keys()
    assert 3 == len(states)
    old = "00000000000000"
    add(kind, root, f".jqueue/new-{ids[0][:8]}-{old}", b"")
    add(kind, root, f".jqueue/gone-{ids[0][:8]}-{old}", b"")
    parts = [f"temporary/{old}", f"obsolete/{old}"] if kind == "elements" else [f"{ids[0][:8]}/{old}.tmp"]
    ours = [f"temporary/{name}" if kind == "elements" else f"{ids[0][:8]}/{name}" for name in ("mine", "mine.tmp")]
    for name in (*parts, *ours):
        add(kind, root, name, b"")
    (root / ids[0][:8] / f"{old}.lck").write_bytes(b"")
    shutil.rmtree(root / ids[2]) if kind == "elements" else (root / ids[2]).unlink()  # as another program finishes it

    async def left(seconds):
        clock.advance(seconds)
        async with open_queue(kind, tmp_path, clock) as queue:
            for _ in range(3):
                await queue.nack((await queue.dequeue("other"))[0], charge=False)
        return {name for name in [*parts, f"{ids[0][:8]}/{old}.lck"] if (root / name).exists()}

    locks = {f"{ids[0][:8]}/{old}.lck"}
    assert {*parts, *locks} == await left(200)
    assert locks == await left(200)
    assert states == journal_of(root, kind).states.keys()
    assert (set() if kind == "simple" else locks) == await left(300)
    await left(3600)
    assert states - {ids[2]} == journal_of(root, kind).states.keys()
    assert all((root / name).exists() for name in ours)
    assert [] == [name for name in os.listdir(root / ".jqueue") if not name.startswith(("dead-", "journal"))]
