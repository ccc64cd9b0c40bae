"""The files of a queue of dirq after each step, the locks of other programs, and what killed programs leave behind."""

import os
import shutil
import stat
from datetime import UTC, datetime, timedelta

import pytest

from jqueue import JobNotFoundError, JobStatus
from jqueue.domain.errors import StorageFatalError
from jqueue.testing.fake_clock import FakeClock
from jqueue.testing.virtual_time import EPOCH
from tests.unit.formats.places import open_queue, tree

of_both_kinds = pytest.mark.parametrize("kind", ["simple", "elements"])
START = int(EPOCH.timestamp())


@pytest.fixture
def root(tmp_path):
    return tmp_path / "queue"


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


async def statuses(queue):
    return [job.status for job in (await queue.read_state()).jobs]


@of_both_kinds
async def test_a_job_is_an_element_of_dirq_from_its_enqueue_to_its_ack(kind, tmp_path, root):
    clock = FakeClock()
    headers = {} if kind == "simple" else {"a": "1\n"}
    async with open_queue(kind, tmp_path, clock, more="fsync=false&umask=027") as queue:
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


@pytest.mark.parametrize(("kind", "option"), [("simple", "granularity=60"), ("elements", "maxelts=2")])
async def test_folders_are_those_of_the_options_and_names_increase_even_if_the_clock_goes_back(kind, option, tmp_path):
    async with open_queue(kind, tmp_path, more=f"fsync=false&{option}") as queue:
        places = [(await queue.enqueue("work", b"")).id for _ in range(3)]
    async with open_queue(
        kind, tmp_path, FakeClock(EPOCH - timedelta(seconds=5)), more=f"fsync=false&{option}"
    ) as queue:
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
    async with open_queue(kind, tmp_path, more="fsync=false&maxlock=120") as queue:
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
        for relocked in (False, True):
            [claimed] = await queue.dequeue()
            unlock(kind, root, job.id)
            if relocked:
                lock(kind, root, job.id, START + 7)
            before = tree(root)
            for verb in (queue.ack, queue.nack, queue.heartbeat):
                with pytest.raises(JobNotFoundError):
                    await verb(claimed)
            assert before == tree(root)


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
async def test_an_unreadable_element_is_set_aside_until_it_is_repaired(harm, tmp_path, root):
    async with open_queue("elements", tmp_path) as queue:
        bad, good = await queue.enqueue("work", b"bad"), await queue.enqueue("work", b"good")
        if harm == "no body":
            (root / bad.id / "body").unlink()
        else:
            (root / bad.id / "header").write_bytes(b"nonsense\n")
        assert [good.id] == [job.id for job in await queue.dequeue(batch_size=9)]
        assert [] == await queue.dequeue()
        assert not (root / bad.id / "locked").exists()
        shutil.rmtree(root / bad.id)
        (root / bad.id).mkdir()
        (root / bad.id / "body").write_bytes(b"mended")
        assert [b"mended"] == [job.payload for job in await queue.dequeue()]


async def test_old_leftovers_of_a_simple_queue_are_removed(tmp_path, root):
    clock = FakeClock()
    async with open_queue("simple", tmp_path, clock, more="fsync=false&maxtemp=300&maxlock=600") as queue:
        folder = root / (await queue.enqueue("work", b"1")).id[:8]
        for name, age in (("1.tmp", 200), ("2.tmp", 400), ("3.lck", 400), ("4.lck", 700)):
            (folder / f"0000000000000{name}").write_bytes(b"")
            os.utime(folder / f"0000000000000{name}", (START - age,) * 2)
        (folder / "note.tmp").write_bytes(b"mine")
        os.utime(folder / "note.tmp", (1, 1))
    async with open_queue("simple", tmp_path, clock, more="fsync=false&maxtemp=300&maxlock=600") as queue:
        await queue.enqueue("work", b"2")
    left = {path.name for path in folder.iterdir() if path.suffix}
    assert {"00000000000001.tmp", "00000000000003.lck", "note.tmp"} == left


async def test_half_removed_elements_are_removed_and_renamed_ones_are_put_back(tmp_path, root):
    """The holder of two claims ended after it had renamed their elements, and for one of them had removed its body."""
    clock = FakeClock(datetime.now(UTC))
    async with open_queue("elements", tmp_path, clock) as queue:
        for number in range(2):
            await queue.enqueue("work", b"%d" % number)
        held = await queue.dequeue(batch_size=2)
    for job in held:
        (root / job.id).rename(root / "obsolete" / f"{job.id.replace('/', '-')}.jq")
    (root / "obsolete" / f"{held[1].id.replace('/', '-')}.jq" / "body").unlink()
    for name in ("6b000000000000.jq", "6b000000000001", "notes"):
        (root / "temporary" / name).mkdir()
        (root / "temporary" / name / "body").write_bytes(b"")
    for _ in range(2):
        clock.advance(4000)
        async with open_queue("elements", tmp_path, clock) as queue:
            await queue.enqueue("work", b"2")
    async with open_queue("elements", tmp_path, clock) as queue:
        await queue.requeue_stale(0)
        assert {b"0", b"2"} == {job.payload for job in await queue.dequeue(batch_size=9)}
    assert ["notes"] == os.listdir(root / "temporary")
    assert [] == os.listdir(root / "obsolete")
