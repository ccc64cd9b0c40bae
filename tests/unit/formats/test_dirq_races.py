"""Races of two programs for one element of dirq, and the leftovers of a program that ends in the middle."""

import os
import shutil
from datetime import timedelta

import pytest

from jqueue.domain.models import JobStatus
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.port import Change, JobChangedError
from tests.unit.formats.dirq_steps import Steps, after, now
from tests.unit.formats.test_dirq_folders import KINDS, lock, of_both_kinds, tree, unlock


class Interrupted(Exception):
    """An exception in place of the end of the process."""


class RacedSimple(DirqSimple):
    """Call `then` right after the check that a lock is still the one that was read."""

    then = staticmethod(lambda: None)

    def _check(self, place):
        super()._check(place)
        then, self.then = self.then, lambda: None
        then()


class RacedElements(DirqElements):
    """Call `then` right after the first check, before the element is renamed."""

    then = staticmethod(lambda: None)

    def _check(self, place, name=None):
        super()._check(place, name)
        then, self.then = self.then, lambda: None
        then()


RACED = {"simple": RacedSimple, "queue": RacedElements}


@pytest.fixture
def make(tmp_path):
    def make(kind, kinds=RACED, **options):
        return Steps(kinds[kind](tmp_path / "queue", fsync=False, **options))

    return make


@of_both_kinds
@pytest.mark.parametrize("end", ["bury", "to_the_back", "remove"])
def test_the_new_holder_of_a_lock_keeps_job_and_lock(kind, end, make, tmp_path):
    if (kind, end) == ("simple", "remove"):
        pytest.skip("a file is removed at once: the claim ended in the moment in which it was looked at")
    steps = make(kind)
    kept = steps.add()
    held = steps.claim(kept)

    def relock():
        unlock(kind, tmp_path / "queue", kept.place)
        lock(kind, tmp_path / "queue", kept.place)

    steps.store.then = relock
    with pytest.raises(JobChangedError):
        getattr(steps, end)(held)
    seen = make(kind).only()
    assert (JobStatus.IN_PROGRESS, kept.place) == (seen.job.status, seen.place.partition("!")[0])
    assert 1 == sum(name.endswith((".lck", "/locked")) for name in tree(tmp_path / "queue"))
    assert [b"payload"] == [job.payload for job in steps.store.payloads([seen])]


@of_both_kinds
@pytest.mark.parametrize("end", ["bury", "to_the_back", "remove"])
@pytest.mark.parametrize("other_end", ["bury", "to_the_back", "remove"])
def test_only_one_of_two_concurrent_ends_of_a_claim_wins(kind, end, other_end, make):
    steps, other = make(kind), make(kind)
    held = steps.claim(steps.add())
    seen = other.only()
    steps.store.then = lambda: getattr(other, other_end)(seen)
    with pytest.raises((JobChangedError, FileNotFoundError)):
        getattr(steps, end)(held)
    left = [kept.job.status for kept in make(kind).store.scan(now())]
    assert {"bury": [JobStatus.DEAD], "to_the_back": [JobStatus.QUEUED], "remove": []}[other_end] == left


@of_both_kinds
def test_a_cancel_and_a_claim_do_not_both_win(kind, make):
    steps, other = make(kind), make(kind)
    kept = steps.add()
    held = steps.claim(kept)
    with pytest.raises(JobChangedError):
        other.remove(kept)
    steps.remove(held)
    kept = steps.add()
    other.remove(kept)
    with pytest.raises((JobChangedError, FileNotFoundError)):
        steps.claim(kept)


@of_both_kinds
def test_a_claim_gets_a_higher_attempt_if_the_job_was_claimed_and_handed_back_meanwhile(kind, make):
    steps, other = make(kind), make(kind)
    kept = steps.add()
    other.release(other.claim(kept))
    held = steps.claim(kept)
    assert (2, 2) == (held.job.attempt, held.job.failures)


@of_both_kinds
def test_only_one_of_two_redrives_wins(kind, make):
    steps, other = make(kind), make(kind)
    dead = steps.bury(steps.claim(steps.add()))
    steps.revive(dead)
    for late in (other.revive, other.remove):
        with pytest.raises((JobChangedError, FileNotFoundError)):
            late(dead)
    assert JobStatus.QUEUED is other.only().job.status


def test_a_simple_lock_taken_for_an_old_one_is_not_held(make, tmp_path):
    """Between the link and its time, a purge may take the fresh lock of an old element for a stale one."""

    class Purged(DirqSimple):
        def _lock(self, path):
            super()._lock(path)
            os.unlink(f"{path}.lck")
            then()

    def then():
        pass

    steps = Steps(Purged(tmp_path / "queue", fsync=False))
    kept = steps.add()
    with pytest.raises((JobChangedError, FileNotFoundError)):
        steps.claim(kept)
    assert JobStatus.QUEUED is steps.only().job.status


def test_a_simple_lock_that_has_no_time_yet_is_not_the_claim_before(make, tmp_path):
    """A program makes the link of a lock first and then sets its time; in between, it has the time of the last lock."""
    steps = make("simple", KINDS)
    held = steps.claim(steps.add())
    for end in (steps.release, steps.to_the_back):
        freed = end(held)
        path = tmp_path / "queue" / freed.place
        os.link(path, f"{path}.lck")
        seen = steps.only()
        assert "!" in seen.place
        assert seen.job.attempt > held.job.attempt
        for refused in (steps.remove, steps.beat):
            with pytest.raises(JobChangedError):
                refused(seen)
        os.unlink(f"{path}.lck")
        held = steps.claim(steps.only())


def test_a_simple_lock_that_another_program_took_meanwhile_is_not_held(tmp_path):
    class Purged(DirqSimple):
        def _lock(self, path):
            super()._lock(path)
            disk = self._disk
            write_note = disk.write_note

            def relocked(name, note):
                write_note(name, note)
                os.unlink(f"{path}.lck")
                os.link(path, f"{path}.lck")
                os.utime(path, (20, 20))

            vars(disk)["write_note"] = relocked

    steps = Steps(Purged(tmp_path / "queue", fsync=False))
    kept = steps.add()
    with pytest.raises(JobChangedError):
        steps.claim(kept)
    assert (tmp_path / "queue" / f"{kept.place}.lck").exists(), "that lock belongs to another program"


def test_a_simple_element_that_is_removed_without_a_lock_leaves_none(tmp_path):
    class Removed(DirqSimple):
        def _lock(self, path):
            super()._lock(path)
            os.unlink(path)

    steps = Steps(Removed(tmp_path / "queue", fsync=False))
    kept = steps.add()
    with pytest.raises(FileNotFoundError):
        steps.store._claim(_claim_of(kept), after(0))
    assert not (tmp_path / "queue" / f"{kept.place}.lck").exists()


def _claim_of(kept):
    return Change(kept.job, kept.job.evolve(status=JobStatus.IN_PROGRESS, claim_timeout=1.0), kept.place)


@of_both_kinds
def test_two_programs_never_take_the_same_element_name(kind, tmp_path):
    """Two programs add an element in the same microsecond, with the same digit."""
    first, second = (Steps(KINDS[kind](tmp_path / "queue", fsync=False)) for _ in range(2))
    kept = [first.add(b"1"), second.add(b"2")]
    assert kept[0].place != kept[1].place
    assert [b"1", b"2"] == [job.payload for job in first.store.payloads(first.store.scan(now()))]
    held = [first.claim(kept[0]), second.claim(kept[1])]
    moved = [first.to_the_back(held[0], after(9)), second.to_the_back(held[1], after(9))]
    assert moved[0].place != moved[1].place
    assert 2 == len(first.store.scan(after(10)))


# Leftovers


class EndsSimple(DirqSimple):
    """Ends after an element was taken out of its folder, or when it also has its new name."""

    when = ""

    def _to_the_back(self, source, place, job, moment):
        if self.when == "before":
            raise Interrupted
        return super()._to_the_back(source, place, job, moment)

    def _forget(self, source, place):
        if self.when == "after":
            raise Interrupted
        super()._forget(source, place)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("way", ["to_the_back", "revive"])
def test_an_interrupted_move_is_finished_by_another_program(when, way, make, tmp_path):
    store = EndsSimple(tmp_path / "queue", fsync=False)
    steps = Steps(store)
    kept = steps.claim(steps.add(entrypoint="other"), now())
    if way == "revive":
        kept = steps.bury(kept, now())
    store.when = when
    with pytest.raises(Interrupted):
        getattr(steps, way)(kept, now())
    other = make("simple", KINDS)
    seen = other.only(now())
    assert (kept.job.id, JobStatus.QUEUED, "other") == (seen.job.id, seen.job.status, seen.job.entrypoint)
    if when == "before":
        with pytest.raises(JobChangedError):
            other.claim(seen, now())  # its first program may still go on
        held = other.claim(seen, _later(60))
    else:
        held = other.claim(seen, now())
    assert (kept.job.id, kept.job.attempt + 1, b"payload") == (held.job.id, held.job.attempt, held.job.payload)
    other.remove(held)
    other.store.purge(_later(10_000))
    assert [] == other.store.scan(_later(10_000))
    assert {".jqueue", ".jqueue/acked"} == {name for name in tree(tmp_path / "queue") if ".jqueue" in name}


def _later(seconds):
    return now() + timedelta(seconds=seconds)


def test_a_purge_finishes_an_interrupted_move(make, tmp_path):
    store = EndsSimple(tmp_path / "queue", fsync=False)
    steps = Steps(store)
    kept = steps.claim(steps.add(), now())
    store.when = "before"
    with pytest.raises(Interrupted):
        steps.to_the_back(kept, now())
    other = make("simple", KINDS)
    other.store.purge(now())
    assert ".jqueue" in other.only(now()).place
    other.store.purge(_later(60))
    assert ".jqueue" not in other.only(_later(60)).place


def test_old_leftovers_of_a_simple_queue_are_removed(make, tmp_path):
    steps = make("simple", KINDS, maxtemp=300, maxlock=600)
    folder = tmp_path / "queue" / steps.add(moment=now()).place[:8]
    for name, age in (("1.tmp", 200), ("2.tmp", 400), ("3.lck", 400), ("4.lck", 700)):
        path = folder / f"0000000000000{name}"
        path.write_bytes(b"")
        os.utime(path, (now().timestamp() - age,) * 2)
    (folder / "note.tmp").write_bytes(b"mine")
    os.utime(folder / "note.tmp", (1, 1))
    steps.store.purge(now())
    left = {name.partition("/")[2] for name in tree(tmp_path / "queue") if name.endswith((".tmp", ".lck"))}
    assert {"00000000000001.tmp", "00000000000003.lck", "note.tmp"} == left
    never = make("simple", KINDS, maxtemp=0, maxlock=0)
    never.store.purge(_later(10**6))
    assert (folder / "00000000000001.tmp").exists()


def test_leftovers_of_a_queue_of_folders_are_removed_or_put_back(make, tmp_path):
    steps = make("queue", KINDS)
    held = [steps.claim(steps.add(b"%d" % number, now()), now()) for number in range(2)]
    names = [kept.place.partition("*")[0] for kept in held]
    for (
        name
    ) in names:  # their holder ended after it had renamed them, and for one of them after it had checked the lock
        (tmp_path / "queue" / name).rename(tmp_path / "queue" / "obsolete" / f"{name.replace('/', '-')}.jq")
    (tmp_path / "queue" / "obsolete" / f"{names[1].replace('/', '-')}.jq" / "body").unlink()
    for name in ("6b000000000000.jq", "6b000000000001", "notes"):
        (tmp_path / "queue" / "temporary" / name).mkdir()
        (tmp_path / "queue" / "temporary" / name / "body").write_bytes(b"")
    steps.store.purge(_later(100))
    assert [] == steps.store.scan(_later(100))
    assert 4 == len(list((tmp_path / "queue" / "temporary").rglob("body"))) + 1
    steps.store.purge(_later(400))
    assert held[0].job.id == steps.only(_later(400)).job.id
    assert ["notes"] == os.listdir(tmp_path / "queue" / "temporary")
    assert [] == os.listdir(tmp_path / "queue" / "obsolete")
    steps.remove(held[0], now())


@of_both_kinds
def test_empty_folders_are_removed_by_purge_or_when_many_but_never_the_last_two(kind, make, tmp_path):
    steps = make(kind, KINDS)
    steps.add(moment=now())
    for number in range(90):
        (tmp_path / "queue" / f"{number:08x}").mkdir(exist_ok=True)
    steps.store.scan(now())
    steps.add(moment=_later(100))
    assert 90 <= sum(len(name) == 8 for name in os.listdir(tmp_path / "queue"))
    for number in range(90, 140):
        (tmp_path / "queue" / f"{number:08x}").mkdir(exist_ok=True)
    steps.store.scan(_later(200))
    steps.add(moment=_later(200))
    assert 5 >= sum(len(name) == 8 for name in os.listdir(tmp_path / "queue"))
    for kept in steps.store.scan(_later(200)):
        steps.remove(kept, _later(200))
    for _ in range(2):
        steps.store.purge(_later(200))
    left = sorted(name for name in os.listdir(tmp_path / "queue") if name[0] in "0123456789")
    assert 2 == len(left)


@pytest.mark.parametrize("harm", ["no body", "no table"])
def test_an_unreadable_element_is_set_aside_until_it_is_repaired(harm, make, tmp_path):
    steps = make("queue", KINDS)
    bad, good = steps.add(b"bad"), steps.add(b"good")
    path = tmp_path / "queue" / bad.place
    if harm == "no body":
        (path / "body").unlink()
    else:
        (path / "header").write_bytes(b"nonsense\n")
    with pytest.raises(JobChangedError):
        steps.claim(bad, now())
    assert not (path / "locked").exists()
    assert [good.place] == [kept.place for kept in steps.store.scan(now())]
    shutil.rmtree(path)
    path.mkdir()
    (path / "body").write_bytes(b"mended")
    assert [bad.place, good.place] == [kept.place for kept in steps.store.scan(now())]
    assert b"mended" == steps.claim(steps.store.scan(now())[0], now()).job.payload


@of_both_kinds
def test_the_removal_of_a_lock_during_a_scan_is_noticed(kind, make):
    """Linux lowers the link count before the name is gone: the count may say unlocked while the lock is still found."""
    steps, other = make(kind, KINDS), make(kind, KINDS)
    held = steps.claim(steps.add())
    store = other.store
    lock_of = store._lock_of
    locked = lock_of(steps.only().place.partition("*")[0])
    answers = [locked]
    vars(store)["_lock_of"] = lambda name: answers.pop() if answers else lock_of(name)
    steps.release(held)
    assert JobStatus.IN_PROGRESS is other.only().job.status
    assert store.may_have_changed()
    later = now() + timedelta(seconds=60)
    assert JobStatus.QUEUED is other.only(later).job.status
    assert not store.may_have_changed()
