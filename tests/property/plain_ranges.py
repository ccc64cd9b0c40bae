"""Many jobs at once in the plain queue: ranges, which are claimed and ended as one, and jobs added in transactions.

The jobs of a range are jobs in progress like others, with the id of the range in `range`.
"""

from datetime import datetime
from typing import Any

from jqueue import ClaimLostError, JobNotFoundError
from jqueue.domain.errors import JobCancelledError
from jqueue.operations import Nack
from tests.property.plain_values import JobFields, Refused

SINGLE = ("keep_result", "concurrency_key", "expires_at", "unique_for")
"""Options of a job that is never in a range."""


class PlainRanges:
    """The ranges of a plain queue, and its bulk enqueues.

    Attributes:
        ranges: the claims of ranges by id: the attempt, the last heartbeat, the ids of the jobs in order, and True if
            it can be given back whole when it is stale: none of its jobs can be out of attempts.
    """

    stuck: frozenset[str] = frozenset()
    """Ids of ranges that stay claimed, as not all that their end needs can be read."""

    table: dict[str, JobFields]
    ranges: dict[str, dict[str, Any]]
    finished: dict[str, int]
    transactions: dict[str, int]
    now: datetime
    changes: int
    places: int
    claim: Any
    change: Any
    count: Any
    count_claims: Any
    enqueue: Any
    beaten: Any
    give_back: Any
    ack: Any
    nack: Any
    revoke: Any

    def is_range(self, range_id, attempt):
        """True if a claim is the current claim of a range."""
        return range_id in self.ranges and self.ranges[range_id]["attempt"] == attempt

    def claim_range(self, claim, ids, claim_timeout, holder, is_whole):
        """Claim jobs as one.

        Args:
            claim: the claim: id of the range, and attempt.
            ids: of the jobs, in order.
            claim_timeout: seconds that it lasts.
            holder: its name.
            is_whole: see `ranges`.
        """
        range_id, attempt = claim
        for job_id in ids:
            job = self.claim(self.table[job_id], claim_timeout, holder)
            self.change(job, range=range_id)
        self.count_claims(job["entrypoint"], len(ids))
        held = {"attempt": attempt, "heartbeat_at": self.now, "ids": tuple(ids), "is_whole": is_whole}
        self.ranges[range_id] = held

    def beat_range(self, range_id):
        """Keep the claim of a range alive. Returns a refusal for each job that is to stop."""
        held = self.ranges[range_id]
        beaten = self.beaten(held["heartbeat_at"])
        self.ranges[range_id] = {**held, "heartbeat_at": beaten}
        jobs = [self.change(self.table[job_id], heartbeat_at=beaten) for job_id in held["ids"]]
        stopped = [job["id"] for job in jobs if job["cancel_requested"]]
        return [Refused(JobCancelledError, job_id=job_id, attempt=held["attempt"]) for job_id in stopped]

    def return_range(self, range_id, *, charge):
        """End the claim of a range: its jobs wait again in their places. Returns their number."""
        held = self.ranges.pop(range_id)
        self.put_back(held["ids"], charge=charge)
        self.changes += 1
        return len(held["ids"])

    def put_back(self, ids, *, charge):
        """Queue jobs of a range again, in their places."""
        for job_id in ids:
            job = self.leave_range(job_id)
            if charge:
                self.count(job["entrypoint"], 3, 8, *[4] * (not job["cancel_requested"]))  # see `plain_queue.ENQUEUED`
                self.give_back({**job, "failures": job["failures"] + 1})
            else:
                self.give_back(job)

    def leave_range(self, job_id):
        """Let the claim of a job be its own."""
        job = self.table[job_id] = {name: value for name, value in self.table[job_id].items() if name != "range"}
        return job

    def revoke_range(self, range_id):
        """Revoke the claim of a range. Returns the number of its jobs."""
        held = self.ranges[range_id]
        if range_id in self.stuck:
            return 0
        if held["is_whole"]:
            return self.return_range(range_id, charge=True)
        del self.ranges[range_id]
        return self.revoke([self.leave_range(job_id) for job_id in held["ids"]])

    def end_range(self, asked, *, remembered):
        """End the claim on a range: see `jqueue.operations.EndRange`. Its done jobs may be remembered by their ids."""
        range_id, attempt = asked.claim
        held = self.ranges.get(range_id)
        if held is None or held["attempt"] != attempt:
            if self.finished.get(range_id) == attempt:
                return
            raise Refused(ClaimLostError, job_id=range_id, attempt=attempt)
        number = len(held["ids"]) if asked.worked_on is None else asked.worked_on
        worked_on, back = held["ids"][:number], held["ids"][number:]
        for job_id in asked.singles:
            if job_id not in worked_on:
                raise Refused(JobNotFoundError, job_id=job_id)
        del self.ranges[range_id]
        self.put_back(back, charge=False)
        for job_id, end in asked.singles.items():
            job = self.leave_range(job_id)
            (self.nack if isinstance(end, Nack) else self.ack)((job_id, job["attempt"]), end)
        for job_id in worked_on:
            if job_id not in asked.singles:
                job = self.table.pop(job_id)
                self.count(job["entrypoint"], 2)
                if remembered:
                    self.finished[job_id] = job["attempt"]
        self.finished[range_id] = attempt
        self.changes += 1

    # Transactions

    def is_repeated(self, transaction):
        """True if a write, or a later one of its application, was done before. Otherwise it is remembered."""
        if transaction is None:
            return False
        app, version = transaction[:2]
        if self.transactions.get(app, -1) >= version:
            return True
        self.transactions[app] = version
        self.changes += 1
        return False

    def enqueue_numbered(self, jobs, number_of_all):
        """Add jobs, each with its number in the call. Returns the jobs, new or there before, by their numbers.

        Args:
            jobs: number, operation, new id and time of creation of each.
            number_of_all: of the jobs in the call.
        """
        offset, found = self.places, {}
        for number, asked, new_id, created_at in sorted(jobs, key=lambda each: each[0]):
            self.places = offset + number - 1
            found[number] = self.enqueue(asked, new_id, created_at)
        self.places = offset + number_of_all
        return found


def may_be_in_a_range(job: JobFields) -> bool:
    """True if a job can be claimed as a part of a range."""
    return all(job[name] is None for name in SINGLE)
