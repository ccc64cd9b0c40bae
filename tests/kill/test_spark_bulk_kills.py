"""A bulk enqueue by Spark that is killed and run again adds exactly its rows, and the audit finds any other number."""

import asyncio
import re

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from tests.kill.spark_bulk_kills import AuditError, BulkKills

KILLS = 3


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_each_row_is_in_the_queue_once_after_kills(tmp_path):
    kills = BulkKills(tmp_path, rows=200_000, seed=1)
    for _ in range(KILLS):
        kills.kill_one()
    kills.finish()
    kills.audit()
    assert kills.tally.killed > 0


@pytest.mark.parametrize(
    ("payloads", "words"),
    [
        ([b"0", b"1", b"1"], "row 1 is in the queue once too often"),
        ([b"1"], "1 of 2 rows are missing"),
        ([b"0", b"2"], "a job that is no row"),
    ],
)
def test_the_audit_finds_rows_that_are_missing_or_too_many(tmp_path, payloads, words):
    kills = BulkKills(tmp_path, rows=2, seed=1)

    async def enqueue():
        async with DirectQueue(LocalFileSystemStorage(str(kills.file))) as queue:
            for payload in payloads:
                await queue.enqueue("resize", payload.rjust(64, b"."))

    asyncio.run(enqueue())
    with pytest.raises(AuditError, match=re.escape(words)):
        kills.audit()
