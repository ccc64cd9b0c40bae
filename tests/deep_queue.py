"""A queue of ten thousand waiting jobs, made by writing its blob instead of by calls."""

import asyncio

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.blob import codec, lines
from jqueue.core.blob import content as blob
from jqueue.core.blob.codec import encode_header, join_blob
from jqueue.core.direct import DirectQueue
from jqueue.domain.limits import Limits
from jqueue.domain.models import QueueState
from jqueue.testing.virtual_time import VirtualClock

DEEP = 10_000


def waiting_line(number, entrypoint="work"):
    """Return the line of a job, as jqueue writes it."""
    return (
        f'"job {number:06d}": {{"entrypoint": "{entrypoint}", "payload": "cGF5bG9hZA==", "status": "queued", '
        f'"sequence": {number + 1}, "created_at": "2026-01-01T00:00:00+00:00"}}'
    ).encode()


def deep_blob(count=DEEP):
    """Return the blob of a queue with `count` waiting jobs."""
    return join_blob(encode_header(QueueState(queue="deep")), [waiting_line(number) for number in range(count)])


async def deep_storage(count=DEEP):
    """Return a store in memory with that blob."""
    storage = InMemoryStorage(clock=VirtualClock())
    await storage.write(deep_blob(count))
    return storage


async def deep_queue(make=DirectQueue):
    """Return a queue that has read the blob and written a commit, and a second queue that has read that commit."""
    storage = await deep_storage()
    everything = Limits(hot_bytes=None)  # stays in the blob
    queue, other = (make(storage, clock=VirtualClock(), limits=everything) for _ in range(2))
    for each in (queue, other):
        await each.__aenter__()
        await each.enqueue("first", b"payload")
    await queue.dequeue("nobody")
    return queue, other


class LineWork:
    """Counts in all of the engine: lines read, lines encoded and their bytes, lines cut out of a blob."""

    def __init__(self, monkeypatch):
        self.read = self.encoded = self.encoded_bytes = self.cut = 0
        read_line, encode_jobs, splitting_lines = lines.read_line, lines.encode_jobs, lines.splitting_lines
        read_entry = lines.read_entry

        def reading(line):
            self.read += 1
            return read_line(line)

        def reading_packed(line, names, undated):
            self.read += 1
            return read_entry(line, names, undated)

        def encoding(jobs):
            encoded = encode_jobs(jobs)
            self.encoded += len(encoded)
            self.encoded_bytes += sum(map(len, encoded))
            return encoded

        def cutting(part):
            for line in splitting_lines(part):
                self.cut += 1
                yield line

        monkeypatch.setattr(codec, "read_line", reading)
        monkeypatch.setattr(codec, "read_entry", reading_packed)
        monkeypatch.setattr(blob, "encode_jobs", encoding)
        monkeypatch.setattr(codec, "splitting_lines", cutting)

    def forget(self):
        self.read = self.encoded = self.encoded_bytes = self.cut = 0


class Turns:
    """Number of turns that the event loop gives another task, and the most work done between two of them.

    Args:
        work: returns the amount of work done so far.
    """

    def __init__(self, work):
        self._work = work
        self.count = self.most = 0

    async def __aenter__(self):
        self._task = asyncio.create_task(self._take_turns())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _take_turns(self):
        done = self._work()
        while True:
            await asyncio.sleep(0)
            self.count += 1
            self.most = max(self.most, self._work() - done)
            done = self._work()
