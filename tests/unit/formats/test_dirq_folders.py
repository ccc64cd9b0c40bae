"""The files of a queue of dirq after each step, for both kinds."""

import os
import pickle
import stat
from pathlib import Path

import pytest

from jqueue.domain.errors import StorageError, StorageFatalError
from jqueue.domain.models import JobStatus
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.port import JobChangedError
from tests.unit.formats.dirq_steps import START, Steps, after, now

KINDS = {"simple": DirqSimple, "queue": DirqElements}

of_both_kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def make(tmp_path):
    def make(kind, **options):
        return Steps(KINDS[kind](tmp_path / "queue", fsync=False, **options))

    return make


def tree(folder):
    """Return the content of each file in a folder, and None for each folder in it."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
    }


def lock(kind, folder, name, when=None):
    """Lock an element as programs of dirq do."""
    if kind == "simple":
        os.link(folder / name, folder / f"{name}.lck")
        os.utime(folder / name, when)
    else:
        os.mkdir(folder / name / "locked")
        if when is not None:
            os.utime(folder / name, when)


def unlock(kind, folder, name):
    if kind == "simple":
        os.unlink(folder / f"{name}.lck")
    else:
        os.rmdir(folder / name / "locked")


def test_a_simple_job_is_a_file_with_nothing_but_its_payload(make, tmp_path):
    kept = make("simple").add(b"\0\xff")
    name = f"{int(START.timestamp()) // 60 * 60:08x}/{int(START.timestamp()):08x}{250_000:05x}{os.getpid() & 15:x}"
    assert (name, name) == (kept.place, kept.job.id)
    assert {name[:8]: None, name: b"\0\xff"} == tree(tmp_path / "queue")
    assert [] == os.listxattr(tmp_path / "queue" / name), "there is nothing to note"
    assert START == kept.job.created_at


def test_a_queue_of_kind_queue_has_a_folder_for_each_job(make, tmp_path):
    kept = make("queue").add(b"\0\xff", headers={"a": "1\n"})
    name = f"00000000/{int(START.timestamp()):08x}"
    assert kept.place.startswith(name)
    found = tree(tmp_path / "queue")
    assert b"\0\xff" == found.pop(f"{kept.place}/body")
    assert b"a\t1\\n\n" == found.pop(f"{kept.place}/header")
    assert {"00000000": None, kept.place: None, "temporary": None, "obsolete": None} == found


@pytest.mark.parametrize("granularity", [1, 60, 3600])
def test_a_simple_folder_holds_the_jobs_of_one_granularity_period(make, tmp_path, granularity):
    steps = make("simple", granularity=granularity)
    names = [steps.add(moment=after(seconds)).place[:8] for seconds in (0, granularity, 2.5 * granularity)]
    seconds = int(START.timestamp()) // granularity * granularity
    assert [f"{seconds:08x}", f"{seconds + granularity:08x}"] == names[:2]
    assert 0 == int(names[2], 16) % granularity


def test_a_folder_of_elements_holds_at_most_maxelts(make):
    steps = make("queue", maxelts=3)
    moments = [after(number) for number in range(8)]
    assert ["00000000"] * 3 + ["00000001"] * 3 + ["00000002"] * 2 == [
        steps.add(moment=moment).place[:8] for moment in moments
    ]
    held = steps.claim(steps.store.scan(after(9))[0], after(9))
    assert "00000002" == steps.to_the_back(held, after(10)).place[:8], "the back of the queue is in the last folder"


@of_both_kinds
def test_element_names_increase_even_if_the_clock_goes_back(kind, make):
    steps = make(kind)
    places = [steps.add(moment=after(seconds)).place[-14:] for seconds in (0, 0, -5, -5, 60)]
    assert sorted(places) == places
    assert 5 == len(set(places))
    other = make(kind)
    other.store.scan(after(61))
    assert other.add(moment=after(50)).place[-14:] > places[-1]


@of_both_kinds
def test_a_name_of_the_far_future_is_not_followed(kind, make, tmp_path):
    steps = make(kind)
    steps.add(moment=after(10**8))
    other = make(kind)
    other.store.scan(START)
    assert START == other.add(moment=START).job.created_at


@of_both_kinds
def test_new_files_and_folders_have_the_modes_of_the_umask(kind, make, tmp_path):
    kept = make(kind, umask=0o027).add(headers={"a": "b"})
    modes = (
        {stat.S_IMODE(os.stat(path).st_mode) for path in (tmp_path / "queue").rglob("*") if path.is_file()},
        {stat.S_IMODE(os.stat(path).st_mode) for path in (tmp_path / "queue").rglob("*") if path.is_dir()},
    )
    assert ({0o640}, {0o750}) == modes
    assert 0o750 == stat.S_IMODE(os.stat(tmp_path / "queue").st_mode)
    assert (tmp_path / "queue" / kept.place).exists()


@of_both_kinds
def test_a_claim_makes_the_lock_of_dirq_and_nothing_else(kind, make, tmp_path):
    steps = make(kind)
    kept = steps.add()
    before = tree(tmp_path / "queue")
    held = steps.claim(kept, after(1))
    name = kept.place
    locked = {f"{name}.lck": b"payload"} if kind == "simple" else {f"{name}/locked": None}
    assert before | locked == tree(tmp_path / "queue")
    assert round(after(1).timestamp()) == round(os.stat(tmp_path / "queue" / name).st_mtime), "a purge goes by it"
    steps.beat(held, after(500))
    assert round(after(500).timestamp()) == round(os.stat(tmp_path / "queue" / name).st_mtime)
    assert after(500) == steps.only(after(501)).job.heartbeat_at


@of_both_kinds
def test_a_finished_job_leaves_no_files(kind, make, tmp_path):
    steps = make(kind)
    before = set(tree(tmp_path / "queue")) if (tmp_path / "queue").exists() else set()
    for headers in ({}, {"a": "b" * 3000}):
        held = steps.claim(steps.add(headers=headers))
        steps.remove(steps.beat(held, after(1)))
    left = {name for name, content in tree(tmp_path / "queue").items() if content is not None}
    assert {".jqueue/acked"} == left - before
    assert 2 == len(steps.store.finished())


@of_both_kinds
def test_the_lock_of_another_program_is_respected_and_shown(kind, make, tmp_path):
    steps = make(kind, maxlock=120)
    kept = steps.add()
    lock(kind, tmp_path / "queue", kept.place, (10, 10))
    with pytest.raises(JobChangedError):
        steps.claim(kept)
    seen = steps.only()
    assert (JobStatus.IN_PROGRESS, 1, 0, 120.0) == (
        seen.job.status,
        seen.job.attempt,
        seen.job.failures,
        seen.job.claim_timeout,
    )
    assert seen.job.heartbeat_at is not None
    assert 10 == seen.job.heartbeat_at.timestamp()
    for end in (steps.remove, steps.beat):
        with pytest.raises(JobChangedError):
            end(seen)
    freed = steps.to_the_back(seen, after(1))
    assert (JobStatus.QUEUED, kept.job.id) == (freed.job.status, freed.job.id)
    assert 1 == steps.claim(freed, after(2)).job.attempt - freed.job.attempt


@of_both_kinds
def test_a_claim_whose_lock_another_program_took_changes_nothing(kind, make, tmp_path):
    steps = make(kind)
    kept = steps.add()
    held = steps.claim(kept)
    unlock(kind, tmp_path / "queue", kept.place)
    for locked in (False, True):
        if locked:
            lock(kind, tmp_path / "queue", kept.place)
        before = tree(tmp_path / "queue")
        for end in (steps.remove, steps.beat, steps.release, steps.to_the_back, steps.bury):
            with pytest.raises((JobChangedError, FileNotFoundError)):
                end(held)
        assert before == {name: content for name, content in tree(tmp_path / "queue").items() if name != ".jqueue"}


@of_both_kinds
def test_a_claim_read_before_its_heartbeat_is_not_taken_for_stale(kind, make):
    steps, other = make(kind), make(kind)
    held = steps.claim(steps.add())
    seen = other.only()
    steps.beat(held, after(60))
    for end in (other.to_the_back, other.release, other.bury):
        with pytest.raises(JobChangedError):
            end(seen)
    assert after(60) == other.only(after(61)).job.heartbeat_at


@of_both_kinds
def test_a_job_keeps_fields_that_dirq_lacks_through_every_move(kind, make):
    steps = make(kind)
    kept = steps.add(entrypoint="other", headers={"a": "b"}, max_attempts=7)
    for moment in range(3):
        held = steps.claim(kept, after(moment))
        dead = steps.bury(held.__class__(held.job.evolve(error="it failed"), held.place), after(moment))
        [found] = steps.store.scan(after(moment))
        assert (JobStatus.DEAD, after(moment), "it failed") == (found.job.status, found.job.dead_at, found.job.error)
        kept = steps.revive(dead, after(moment))
        kept = steps.to_the_back(steps.claim(kept, after(moment)), after(moment))
        kept = steps.release(steps.claim(kept, after(moment)), after(moment), failures=0)
        kept = steps.only(after(moment))
        [job] = steps.store.payloads([kept])
        assert (b"payload", "other", {"a": "b"}, 7, 3 * (moment + 1), 0, START) == (
            job.payload,
            job.entrypoint,
            job.headers,
            job.max_attempts,
            job.attempt,
            job.failures,
            job.created_at,
        )


@of_both_kinds
def test_names_that_are_not_dirqs_are_left_alone(kind, make, tmp_path):
    steps = make(kind)
    kept = steps.add()
    folder = tmp_path / "queue" / kept.place[:8]
    (folder / "note.txt").write_bytes(b"mine")
    (folder / "0123").write_bytes(b"mine")
    (folder / "ABCDEF0123456A").write_bytes(b"mine")
    (tmp_path / "queue" / "README").write_bytes(b"mine")
    odd = folder / ("0" * 13 + "1")
    odd.mkdir() if kind == "simple" else odd.write_bytes(b"mine")
    before = tree(tmp_path / "queue")
    assert kept.job.id == steps.only().job.id
    steps.remove(steps.claim(kept))
    steps.store.purge(now())
    assert all(before[name] == content for name, content in tree(tmp_path / "queue").items() if ".jqueue" not in name)
    assert (folder / "note.txt").exists()
    assert odd.exists()


@of_both_kinds
def test_has_moved_tells_each_change_once(kind, make, tmp_path):
    steps, other = make(kind), make(kind)
    kept = steps.add()

    def settle():
        for seconds in (100, 101, 102):  # later than any change that shares a clock tick with another one
            other.store.scan(now().__class__.fromtimestamp(now().timestamp() + seconds, tz=START.tzinfo))

    settle()
    assert not other.store.may_have_changed()
    held = steps.claim(kept, now())
    assert other.store.may_have_changed()
    settle()
    assert not other.store.may_have_changed()
    held = steps.beat(held, after(10**6))
    assert other.store.may_have_changed(), "a heartbeat moves no folder"
    settle()
    kept = steps.release(held, now())
    assert other.store.may_have_changed()
    settle()
    lock(kind, tmp_path / "queue", kept.place)
    assert other.store.may_have_changed()
    settle()
    assert not other.store.may_have_changed()


@of_both_kinds
def test_folders_changed_a_moment_ago_are_read_again(kind, tmp_path):
    """File systems count time in ticks: two changes within one tick look like one."""

    store = KINDS[kind](tmp_path / "queue", fsync=False)
    steps, kept, looks = Steps(store), store._stored_job, []

    def counting(name):
        looks.append(name)
        return kept(name)

    vars(store)["_stored_job"] = counting
    steps.claim(steps.add(moment=now()), now())
    moment = now().timestamp()

    def scan(seconds):
        looks.clear()
        store.scan(now().__class__.fromtimestamp(moment + seconds, tz=START.tzinfo))
        return len(looks)

    assert [1, 1] == [scan(0), scan(0.01)]
    assert store.may_have_changed()
    assert 1 == scan(0.1)
    scan(60)
    assert 0 == scan(61)
    assert not store.may_have_changed()


@of_both_kinds
def test_a_missing_folder_is_an_error_and_not_an_empty_queue(kind, make, tmp_path):
    steps = make(kind)
    assert [] == steps.store.scan(START)
    steps.add()
    steps.only()
    (tmp_path / "queue").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="has disappeared"):
        steps.store.scan(after(10))
    with pytest.raises(StorageError, match="has disappeared"):
        steps.add(moment=after(10))
    assert not (tmp_path / "queue").exists()


@of_both_kinds
def test_a_queue_of_the_other_kind_is_refused(kind, make, tmp_path):
    make(kind).add()
    [other] = set(KINDS) - {kind}
    before = tree(tmp_path / "queue")
    with pytest.raises(StorageFatalError, match="kind="):
        make(other).store.scan(START)
    assert before == tree(tmp_path / "queue")


@of_both_kinds
def test_a_file_in_the_place_of_the_folder_is_refused(kind, make, tmp_path):
    (tmp_path / "queue").write_bytes(b"mine")
    with pytest.raises(StorageFatalError, match="not a folder"):
        make(kind).store.scan(START)


@of_both_kinds
def test_a_store_can_be_sent_to_another_process(kind, make):
    steps = make(kind, umask=0o077, maxlock=5)
    copy = pickle.loads(pickle.dumps(steps.store))
    assert repr(steps.store) == repr(copy)
    assert steps.store._settings == copy._settings
    kept = steps.add()
    assert kept == Steps(copy).only()._replace(job=Steps(copy).only().job.evolve(payload=b"payload"))


@of_both_kinds
def test_the_folders_that_change_with_a_new_job_can_be_watched(kind, make, tmp_path):
    steps = make(kind)
    assert [tmp_path / "queue"] == steps.store.watched()
    kept = steps.add()
    steps.only()
    assert tmp_path / "queue" / kept.place[:8] in steps.store.watched()


@of_both_kinds
def test_an_element_keeps_its_note_file_when_it_moves(kind, make, tmp_path):
    options = {"maxelts": 1} if kind == "queue" else {"granularity": 1}
    steps = make(kind, attributes=False, **options)
    kept = steps.claim(steps.add(entrypoint="other"))
    kept = steps.to_the_back(kept, after(300))
    assert [f"note-{kept.place.replace('/', '-')}"] == os.listdir(tmp_path / "queue" / ".jqueue")
    assert "other" == make(kind, attributes=False).only(after(301)).job.entrypoint
    steps.remove(steps.claim(kept, after(302)), after(302))
    assert ["acked"] == os.listdir(tmp_path / "queue" / ".jqueue")


def test_a_full_folder_is_followed_by_a_new_one(make):
    steps = make("queue", maxelts=1)
    folders = [steps.add(moment=after(number)).place[:8] for number in range(4)]
    assert ["00000000", "00000001", "00000002", "00000003"] == folders
