"""A disk that fails at any write or flush of a step loses and doubles no job: once, or from then on, in each format."""

import asyncio
import errno
import itertools
import os
import stat
from collections import Counter

import pytest

from jqueue import JobNotFoundError, JobStateError, JobStatus, StorageError
from jqueue.formats import journal
from jqueue.runtime.posix_files import open_file
from tests.unit.formats.places import JOURNALS, clock_of, in_each_format, open_queue

PAYLOAD = b"payload" * 100
CALLS = ("fsync", "pwrite", "write")

STEPS = {
    "enqueue": (None, JobStatus.QUEUED),
    "claim": (JobStatus.QUEUED, JobStatus.IN_PROGRESS),
    "heartbeat": (JobStatus.IN_PROGRESS, JobStatus.IN_PROGRESS),
    "ack": (JobStatus.IN_PROGRESS, None),
    "nack": (JobStatus.IN_PROGRESS, JobStatus.QUEUED),
    "bury": (JobStatus.IN_PROGRESS, JobStatus.DEAD),
    "redrive": (JobStatus.DEAD, JobStatus.QUEUED),
    "cancel": (JobStatus.QUEUED, None),
}
"""The status of the job before and after each step."""

OFTEN = {"enqueue", "claim", "ack"}
"""The steps of every job. Failures of the others are among the tests marked `wide`."""

BETWEEN = {"cancel": JobStatus.IN_PROGRESS, "bury": JobStatus.QUEUED, "redrive": JobStatus.QUEUED}
"""Status that a failed step may leave between the old and the new one: locked for a cancel, or being moved."""


class Disk:
    """The disk, as the operating system shows it: its calls from one number to another fail.

    A failed write has written half of its content. Each failure takes 1,000 seconds of the loop, so that deadlines
    pass without waiting.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.fails_from, self.fails_to = 0, 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self._failing(name))
        loop, self._late = asyncio.get_running_loop(), 0.0
        time = loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + self._late)

    def break_down(self, number: int, *, times: int) -> None:
        self.calls, self.fails_from, self.fails_to = 0, number, number + times

    def repair(self) -> bool:
        """Return True if a call has failed."""
        failed = self.fails_from <= self.calls
        self.fails_from = self.fails_to = 0
        return failed

    def _failing(self, name):
        real = getattr(os, name)

        def call(*arguments, **options):
            if not _is_of_the_disk(arguments[0]):
                return real(*arguments, **options)
            self.calls += 1
            if not self.fails_from <= self.calls < self.fails_to:
                return real(*arguments, **options)
            if name != "fsync":
                real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], *arguments[2:])
            self._late += 1000
            code = errno.EIO if name == "fsync" else errno.ENOSPC
            raise OSError(code, os.strerror(code))

        return call


def _is_of_the_disk(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


async def prepared(form, folder, clock, status):
    """Make a job in a status, beside another one, and return it."""
    queue = open_queue(form, folder, clock)
    await queue.enqueue("work", b"another", headers={"large": "x" * 3000})
    [job] = await queue.dequeue(claim_timeout=3600)
    if status is not None:
        job = await queue.enqueue("work", PAYLOAD)
    if status in (JobStatus.IN_PROGRESS, JobStatus.DEAD):
        [job] = await queue.dequeue(claim_timeout=3600)
    if status is JobStatus.DEAD:
        await queue.nack(job, dead=True)
    return job


async def step(queue, name, job):
    calls = {
        "enqueue": lambda: queue.enqueue("work", PAYLOAD, headers={"key": "value"}),
        "claim": lambda: queue.dequeue(claim_timeout=3600),
        "heartbeat": lambda: queue.heartbeat(job),
        "ack": lambda: queue.ack(job),
        "nack": lambda: queue.nack(job, error="it failed"),
        "bury": lambda: queue.nack(job, dead=True),
        "redrive": lambda: queue.redrive(job.id),
        "cancel": lambda: queue.cancel(job.id),
    }
    return await calls[name]()


async def check(form, folder, clock, allowed):
    """Check that the job is there once, in an allowed status, and can be finished as the one beside it."""
    assert [] == list(folder.glob("queue/.jqueue/new-*"))
    async with open_queue(form, folder, clock) as queue:
        found = Counter((job.payload, job.status) for job in (await queue.read_state()).jobs)
        assert 1 == found.pop((b"another", JobStatus.IN_PROGRESS))
        assert found in [Counter([(PAYLOAD, status)] if status else []) for status in allowed]
        await queue.requeue_stale(0)
        await queue.redrive()
        assert [] == await queue.ack_many(await queue.dequeue(batch_size=9))
        assert () == (await queue.read_state()).jobs


CASES = [(number, times) for number in range(1, 100) for times in (1, 10**6)]


@pytest.mark.parametrize(
    "name",
    [each if each in OFTEN else pytest.param(each, marks=pytest.mark.wide) for each in STEPS],
)
@in_each_format
async def test_a_disk_that_fails_at_any_write_of_a_step_loses_and_doubles_no_job(form, name, tmp_path, monkeypatch):
    if (form, name) == ("text", "enqueue"):
        pytest.skip("test_a_message_is_not_confirmed_before_it_is_on_the_disk covers it")
    before, after = STEPS[name]
    disk = Disk(monkeypatch)
    for number, times in CASES:
        if form == "text" and times > 1:
            continue
        folder, clock = tmp_path / f"{number}-{times}", clock_of(form)
        folder.mkdir()
        job = await prepared(form, folder, clock, before)
        queue = open_queue(form, folder, clock, deadline=3600)
        await queue.read_state()
        disk.break_down(number, times=times)
        allowed = {before, after, BETWEEN.get(name, after)}
        try:
            result = await step(queue, name, job)
            assert result or name != "claim" or form == "text", "the failed claim holds the job"
            allowed = {after}
        except (StorageError, JobNotFoundError, JobStateError):
            pass
        failed = disk.repair()
        assert failed or allowed == {after}
        await check(form, folder, clock, allowed)
        if not failed:
            break


@pytest.mark.parametrize("form", ["vsqs", "simple", "elements"])
async def test_a_journal_that_cannot_be_read_for_a_moment_loses_no_field_of_a_job(form, tmp_path, monkeypatch):
    """Each opening of the journal fails in turn, as too many files are open."""
    for number in itertools.count(1):
        folder, reads = tmp_path / str(number), list[str]()
        folder.mkdir()
        added = await open_queue(form, folder).enqueue("mail", b"payload", headers={"key": "value"}, max_attempts=7)

        def opened(path, *arguments, number=number, reads=reads):
            reads.append(path)
            if len(reads) == number:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return open_file(path, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(journal, "open_file", opened)
            async with open_queue(form, folder) as queue:
                [job] = await queue.dequeue("mail")
                await queue.nack(job, error="it failed")
        [job] = (await open_queue(form, folder).read_state()).jobs
        assert (added.id, "mail", {"key": "value"}, 7) == (job.id, job.entrypoint, job.headers, job.max_attempts)
        assert (1, 1, "it failed") == (job.attempt, job.failures, job.error)
        if len(reads) < number:
            break


@pytest.mark.parametrize("form", ["text", "vsqs"])
async def test_a_message_is_not_confirmed_before_it_is_on_the_disk(form, tmp_path, monkeypatch):
    """A failed flush of the file, or of the folder that has the names, is repeated."""
    async with open_queue(form, tmp_path) as queue:
        await queue.enqueue("work", b"1")
        place, flush = os.stat(tmp_path / "queue"), os.fsync
        results: list[bool] = []

        def fail(descriptor):
            if os.path.samestat(place, os.fstat(descriptor)):
                results.append(len(results) >= 3)
                if not results[-1]:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            flush(descriptor)

        monkeypatch.setattr(os, "fsync", fail)
        await queue.enqueue("work", b"2")
        assert results[-1], "it was confirmed without another try"
        assert [b"1", b"2"] == [job.payload for job in (await queue.read_state()).jobs]


@in_each_format
async def test_no_answer_comes_before_its_change_is_flushed(form, tmp_path, monkeypatch):
    """Each file that other programs see has been flushed when the enqueues return, and so has its folder."""
    flushed: list[int] = []
    flush = os.fsync

    def noted(descriptor):
        flush(descriptor)
        flushed.append(os.fstat(descriptor).st_ino)

    root = tmp_path / "queue"
    headers = {} if form == "elements" else {"kind": "test"}
    async with open_queue(form, tmp_path) as queue:
        await queue.enqueue("work", b"before", headers=headers)
        monkeypatch.setattr(os, "fsync", noted)
        calls = (queue.enqueue("work", b"%d" % number, headers=headers) for number in range(30))
        await asyncio.gather(*calls)
    files = [path for path in root.rglob("*") if path.is_file() and path.read_bytes() != b"before"]
    visible = [root] if form == "text" else [path for path in files if ".jqueue" not in str(path)]
    assert (1 if form == "text" else 30) == len(visible)
    assert {path.stat().st_ino for path in visible} <= set(flushed)
    if form == "text":
        assert 1 == len(flushed), "concurrent calls share one flush"
    else:
        assert {path.parents[form == "elements"].stat().st_ino for path in visible} <= set(flushed)
    if form in ("vsqs", "simple"):
        assert (root / JOURNALS[form]).stat().st_ino in flushed, "the headers are in it"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not show what is open")
@in_each_format
async def test_a_closed_queue_leaves_no_file_open(form, tmp_path):
    def still_open() -> list[str]:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.lexists(link) and str(tmp_path) in os.readlink(link)]

    for _ in range(2):
        async with open_queue(form, tmp_path) as queue:
            await asyncio.gather(*(queue.enqueue("work", b"%d" % number) for number in range(30)))
            await queue.ack_many(await queue.dequeue(batch_size=30))
        assert [] == still_open()
