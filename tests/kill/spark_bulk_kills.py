"""A bulk enqueue by Spark that is killed at random moments and run again adds exactly its rows.

    python -m tests.kill.spark_bulk_kills --rows 5000000 --kills 20

Each run is a driver of its own, which writes the same rows as the same transaction. It is killed with SIGKILL after a
random number of staged segments and a random pause: either with all its processes, or alone, so that its tasks go on
beside the next run. Once the rows are in the queue, one more run of the transaction is killed, and the runs after it
write the rows once more, as the next transaction. The last run is left alone. The audit reads the segments byte by
byte: each row is there once for each transaction, and nothing else, and what the killed runs left can be removed. The
exit code is 0 if that holds, and 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.core.blob.segment_staging import STAGED_ROWS
from jqueue.domain.models import QueueState

SLOWEST = 1800.0
"""Seconds that one run may take."""

PAYLOAD_BYTES = 64

_PAYLOAD = re.compile(rb'(?:"payload": "|\x01)([A-Za-z0-9+/=]*)["\x02]')
"""A payload in a row. Bytes stand for the texts around it."""

DRIVER = """
import sys
from jqueue.spark import local_session

url, rows, partitions, version = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
spark = local_session("killed", "local[2]", spark_driver_memory="1g")
frame = spark.range(0, rows, 1, partitions).selectExpr("encode(lpad(string(id), 64, '.'), 'utf-8') payload")
options = {"entrypoint": "resize", "txnAppId": "killed", "txnVersion": version}
frame.write.format("jqueue").mode("append").options(**options).save(url)
spark.stop()
"""

_WRITTEN = re.compile(rb'"killed": \[(\d+),')
"""The last transaction in the first line of the queue."""


class AuditError(AssertionError):
    """The queue does not have exactly the rows of the write."""


@dataclass
class Tally:
    """The runs so far.

    Attributes:
        killed: number of runs that were killed.
        after_commit: number of those whose rows were in the queue by then.
        writes: number of transactions.
        staged: number of segments that were staged by all runs.
        litter: number of objects of killed runs that were removed at the end.
    """

    killed: int = 0
    after_commit: int = 0
    writes: int = 1
    staged: int = 0
    litter: int = 0


class BulkKills:
    """The runs of one write, and the audit of its queue.

    Args:
        folder: for the queue.
        rows: number of rows.
        seed: of all dice.
        partitions: number of tasks of each run.
    """

    def __init__(self, folder: Path, rows: int, seed: int, partitions: int = 8) -> None:
        self.rows = rows
        self.file = folder / "queue.json"
        self.tally = Tally()
        self._log = folder / "drivers.log"
        self._dice = random.Random(seed)
        self._partitions = partitions

    def kill_one(self) -> None:
        """Begin a run, and kill it."""
        if was_done := self._is_done():
            segments = 0
        else:
            segments = self._partitions * (1 + self.rows // self._partitions // STAGED_ROWS)
        wanted, pause, alone = self._dice.randint(0, segments), self._dice.uniform(0, 1.5), self._dice.random() < 0.3
        before = len(self._staged())
        with self._begun() as driver:
            until = time.monotonic() + SLOWEST
            while driver.poll() is None and len(self._staged()) < before + wanted and not self._is_done():
                if time.monotonic() > until:
                    raise AuditError("a run takes too long")
                time.sleep(0.05)
            time.sleep(pause if wanted else pause * 10)  # Java starts for some seconds before the first segment
            if driver.poll() is None:
                os.kill(driver.pid, signal.SIGKILL) if alone else os.killpg(driver.pid, signal.SIGKILL)
                self.tally.killed += 1
                self.tally.after_commit += self._is_done()
                driver.wait()
            elif driver.returncode != 0:
                raise AuditError(f"a run failed by itself: {self._log.read_text()[-2000:]}")
        self.tally.staged += max(0, len(self._staged()) - before)
        self.tally.writes += was_done

    def finish(self) -> None:
        """Run the write to its end."""
        with self._begun() as driver:
            if driver.wait(SLOWEST) != 0:
                raise AuditError(f"the last run failed: {self._log.read_text()[-2000:]}")

    def audit(self) -> None:
        """Check that each row is in the queue once.

        Raises:
            AuditError: it is not so.
        """
        state, self.tally.litter = asyncio.run(_collected(self.file))
        found = bytearray(self.rows)
        for payload in self._payloads(state):
            text = payload.lstrip(b".")
            if len(payload) != PAYLOAD_BYTES or not text.isdigit() or int(text) >= self.rows:
                raise AuditError("the queue has a job that is no row")
            if found[int(text)] == self.tally.writes:
                raise AuditError(f"row {int(text)} is in the queue once too often")
            found[int(text)] += 1
        if missing := self.rows - found.count(self.tally.writes):
            raise AuditError(f"{missing} of {self.rows} rows are missing")
        if self._staged() != {*state.segments}:
            raise AuditError("the segments beside the queue are not those that it names")

    def _payloads(self, state: QueueState) -> Iterator[bytes]:
        yield from (job.payload for job in state.jobs)
        for name, segment in state.segments.items():
            if segment.waiting != segment.rows:
                raise AuditError("rows of a segment are taken")
            content = self._folder.joinpath(name).read_bytes()[: segment.index]
            yield from (b64decode(text) for text in _PAYLOAD.findall(content))

    @property
    def _folder(self) -> Path:
        return self.file.with_name(f"{self.file.name}.segments")

    def _staged(self) -> set[str]:
        try:
            return {name for name in os.listdir(self._folder) if name.startswith("staged-")}
        except FileNotFoundError:
            return set()

    def _is_done(self) -> bool:
        found = _WRITTEN.search(self.file.read_bytes().partition(b'"jobs"')[0]) if self.file.exists() else None
        return found is not None and int(found[1]) == self.tally.writes

    def _begun(self) -> subprocess.Popen[bytes]:
        given = self.file, self.rows, self._partitions, self.tally.writes
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", DRIVER, *map(str, given)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


async def _collected(file: Path) -> tuple[QueueState, int]:
    """Remove the objects that nothing needs, whatever their age. Return the queue and the number of these objects."""
    async with DirectQueue(LocalFileSystemStorage(str(file))) as queue:
        collector = queue._collector
        assert collector is not None
        collector.kept_for = timedelta(seconds=-1)
        removed = await collector.collect()
        return await queue.read_state(), removed


def main(arguments: list[str] | None = None) -> int:
    """Kill, audit, and print what happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill.spark_bulk_kills", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000, help="of the write (default: 200,000)")
    parser.add_argument("--kills", type=int, default=20, help="number of kills (default: 20)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time after which no more runs are killed")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of all dice")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        kills = BulkKills(Path(folder), chosen.rows, chosen.seed)
        try:
            until = time.monotonic() + chosen.seconds
            for number in range(chosen.kills):
                if time.monotonic() > until:
                    break
                kills.kill_one()
                print(f"run {number + 1} of {chosen.kills}: {kills.tally}", flush=True)
            kills.finish()
            kills.audit()
        except AuditError as error:
            print(f"NOT KEPT, seed {chosen.seed}: {error}")
            return 1
        print(f"each of {chosen.rows} rows is in the queue once for each write, seed {chosen.seed}: {kills.tally}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
