"""TextQueues as files, read and changed without an event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jqueue import Job
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile

LATER = datetime.now(UTC) + timedelta(days=1)
"""A time at which every write of a test has settled."""


MESSAGES = {
    b"": [],
    b"\n\n": [],
    b"-a\n b\n  c\n \n-z\n": [b"a\nb\n c\n", b"z"],
    b"-\n": [b""],
    b"-a  \n": [b"a  "],
    b"--a\n": [b"-a"],
    b"-a": [b"a"],
    b"-a\n \n": [b"a\n"],
    b"-one\n#c\n two\n": [b"one"],
    b"-a\r\n b\r\n-c\r\n": [b"a\nb", b"c"],
    b"-a\rb\n-c\n": [b"a", b"c"],
    b"-a\x00\x0b\x0c\x85\n": [b"a\x00\x0b\x0c\x85"],
    "-grüß\u2028e\n".encode(): ["grüß\u2028e".encode()],
    b"-a\n\\state=new  \n\\x\n b\n-c\n": [b"a", b"c"],
    b"-\xff\xfe\n": [b"\xff\xfe"],
    b"=done\n more\n-a\n#c\n": [b"a"],
    b" orphan\n\\orphan\n-a\n\n orphan\n-b\n": [b"a", b"b"],
    b"xunknown\n and more\n-a\n?\n": [b"a"],
    b"\xef\xbb\xbf-a\n-b\n": [b"b"],
    b"-a\n\n\n\n-a\n": [b"a", b"a"],
    b"#jq {}\n-a\n": [b"a"],
    b'#jq {"id":5}\n-a\n#jq [}\n-b\n': [b"a", b"b"],
}
"""Contents of files, and the queued messages that textqueue 1.1 finds there."""


def messages(path: Path, **options: Any) -> list[tuple[Job, bytes]]:
    """Return each message of a file as a new process reads it, in order, with its payload."""
    store = TextQueueFile(path, **options)
    kept = sorted(store.scan(LATER), key=lambda kept: kept.job.sequence)
    jobs = store.payloads(kept)
    return [(job, job.payload) for job in jobs]


def with_queue(path: Path, work: Callable[[StoreQueue], Awaitable[Any]], **options: Any) -> Any:
    """Run `work` with a new queue on a file, on an event loop of its own, and return its result."""

    async def run() -> Any:
        async with StoreQueue(TextQueueFile(path, **{"fsync": False, "settle": 0.0, **options})) as queue:
            return await work(queue)

    return asyncio.run(run())


def queue_on(path: Path, **options: Any) -> StoreQueue:
    """Return a queue on a file without flushes and without a settling time."""
    return StoreQueue(TextQueueFile(path, **{"fsync": False, "settle": 0.0, **options}))
