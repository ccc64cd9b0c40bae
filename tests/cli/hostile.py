"""Text that tries to command a terminal or to forge a line, and queues with it in every field."""

import asyncio
import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.operations import Nack

HOSTILE = "x\x1b[2J\x1b]0;pwn\x07\r\nforged  line\u202e\u2028\x9b31m\b\x00y"
SECRET = "hunter2"
FORBIDDEN = {"\x1b", "\r", "\x07", "\x08", "\x00", "\x9b", "\u202e", "\u2028"}


def fill(path):
    """Make a queue with a job in each phase, and hostile text in each field that takes any."""

    async def work():
        queue = DirectQueue(LocalFileSystemStorage(path))
        await queue.configure(history=timedelta(days=1))
        jobs: dict[str, dict[str, Any]] = {
            "ready": {"unique_key": "UNIQUE", "headers": {"token": SECRET}},
            "later": {"delay": 3600},
            "running": {"priority": -3, "concurrency_key": "TOGETHER"},
            "dead": {"priority": -2, "max_attempts": 1},
            "done": {"priority": -1, "keep_result": 3600},
        }
        for job_id, options in jobs.items():
            await queue.enqueue("HOSTILE", SECRET.encode(), job_id=f"{job_id}-HOSTILE", **options)
        running, dead, done = await queue.dequeue(batch_size=3)
        await queue.apply(Nack(dead, error=ValueError("HOSTILE"), traceback="mail.py:17 in HOSTILE"))
        await queue.ack(done, result={"a": SECRET, "b": "HOSTILE"})
        await queue.schedule("nightly-HOSTILE", "0 3 * * *", "HOSTILE", SECRET.encode())
        await queue.enqueue("HOSTILE", SECRET.encode(), job_id="last")
        return running.holder

    holder = asyncio.run(work())
    text = path.read_text().replace(f'"{holder}"', '"holder-HOSTILE"')
    path.write_text(text.replace("HOSTILE", json.dumps(HOSTILE)[1:-1]))
    return path


def assert_harmless(text, *, colours=False):
    """Check that a text cannot command a terminal, and that none of its lines is forged."""
    forbidden = FORBIDDEN - ({"\x1b"} if colours else set())
    assert not forbidden & set(text)
    lines = text.splitlines()
    # a narrow column may be folded behind the escaped line break
    assert not [line for above, line in pairwise(["", *lines]) if line.startswith("forged") and r"\n" not in above]
    assert SECRET not in text
