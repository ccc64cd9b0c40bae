"""The audit of the results of batches that are killed: rows and acks belong together.

A row is committed once Spark has said so, in a file beside it. All jobs of these batches succeed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jqueue import Job, JobStatus
from tests.kill.ledger import ViolationError
from tests.spark.batch.parquet_job import SUCCESS, files_of, rows_of


class Row(NamedTuple):
    """A row of results.

    Attributes:
        result: what the handler has returned.
        is_committed: True if Spark has committed all rows of its batch.
    """

    result: Any
    is_committed: bool


class ResultAudit:
    """The audit of a folder of results.

    Args:
        folder: the folder. It need not exist.
        jobs: all jobs, by number, as they were enqueued.
    """

    def __init__(self, folder: Path, jobs: Mapping[int, Job]) -> None:
        self.folder = folder
        self._numbers = {job.id: number for number, job in jobs.items()}

    def rows(self) -> dict[tuple[int, int], Row]:
        """Return the rows that a reader of the folder sees, by number of the job and attempt.

        Raises:
            ViolationError: an attempt has two rows, or the result of another job.
        """
        found: dict[tuple[int, int], Row] = {}
        for batch in self.folder.glob("batch=*"):
            is_committed = (batch / SUCCESS).exists()
            for said in (row for file in files_of(batch) for row in rows_of(file)):
                number, result = self._numbers[said["job_id"]], json.loads(said["result"])
                check((number, said["attempt"]) not in found, "an attempt has two rows")
                check(result["number"] == number, "a row has the result of another job")
                found[number, said["attempt"]] = Row(result, is_committed)
        return found

    def check_killed(self, jobs: Mapping[int, Job], has_failed: bool, has_moved: bool) -> bool:
        """Check the rows and the queue after a batch was killed. Return True if Spark has committed the rows.

        Args:
            jobs: the jobs in the queue, by number.
            has_failed: True if the driver lived on, and the batch failed.
            has_moved: True if Spark had begun to commit the rows.
        """
        rows = self.rows()
        check(all(attempt == 1 for _, attempt in rows), "a row has an attempt that was never claimed")
        committed = {number for (number, _), row in rows.items() if row.is_committed}
        check(committed in (set(), set(self._numbers.values())), "a part of the rows is committed")
        if len(left_of(jobs)) < len(self._numbers):
            check(bool(committed), "a job has left the queue before all rows were committed")
            check(not has_failed, "a batch that has failed has acked a job")
        check(has_moved or not rows, "rows are there that Spark has not committed")
        self._check_kept(jobs, rows)
        return bool(committed)

    def check_done(self, jobs: Mapping[int, Job], attempts: Mapping[int, int]) -> None:
        """Check the rows and the queue after all jobs are done.

        Args:
            jobs: the jobs in the queue, by number.
            attempts: for each number, the attempt that acked the job.
        """
        rows = self.rows()
        newest = dict(sorted(rows))
        check(newest == attempts, "the newest row of a job is not of the attempt that acked it")
        check(all(rows[each].is_committed for each in newest.items()), "the newest row of a job is not committed")
        self._check_kept(jobs, rows)

    @staticmethod
    def _check_kept(jobs: Mapping[int, Job], rows: Mapping[tuple[int, int], Row]) -> None:
        """Check that the results that the queue has kept are those in the rows of the same attempts."""
        kept = {(number, job.attempt): job for number, job in jobs.items() if job.status is JobStatus.COMPLETED}
        check(kept.keys() <= rows.keys(), "the queue has kept a result without a row")
        check(all(job.result == rows[key].result for key, job in kept.items()), "the queue has kept another result")


def left_of(jobs: Mapping[int, Job]) -> dict[int, Job]:
    """Return the jobs that are not done, by number."""
    return {number: job for number, job in jobs.items() if job.status is not JobStatus.COMPLETED}


def check(holds: bool, otherwise: str) -> None:
    """Raise ViolationError with this message, unless something holds."""
    if not holds:
        raise ViolationError(otherwise)
