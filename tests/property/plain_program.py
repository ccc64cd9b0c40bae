"""State of one queue object besides the queue: the claims that it handed out, and the claims that stand still.

It is the other half of the model of `tests/property/plain_queue.py`: how calls become commits ("How a call travels" in
docs/reference/architecture.md), what a bare id means (docs/decisions/0008), and when a claim is stale
(docs/reference/protocol.md).
"""

from datetime import timedelta
from typing import Any
from unittest.mock import ANY

from jqueue import Claim, ClaimLostError, Job
from jqueue.domain.operations.lookups import AwaitResult
from jqueue.operations import Ack, Dequeue, Heartbeat, Nack
from tests.property.plain_values import Refused

ALLOWANCE = timedelta(seconds=60)
LONGEST_GRACE = 10


class PlainProgram:
    """One queue object.

    Args:
        stale_timeout: seconds that a claim made here lasts, if the dequeue does not say.
        groups: True if all calls made together go into one commit.
    """

    def __init__(self, stale_timeout, *, groups):
        self.stale_timeout = stale_timeout
        self.groups = groups
        self.handed_out = []
        self.ended = []
        self.version_seen = None
        self.first_look = self.last_look = None
        self.sights = {}

    def do(self, queue, calls, new_ids):
        """Make calls at the same time, each a pair (operations, True if all or nothing).

        Args:
            queue: the plain queue.
            calls: the calls.
            new_ids: for each call and operation, the id for a job that has none.

        Returns:
            For each call the results of its operations, or the Refused that ends it.
        """
        queue.holder = ANY  # the name of this process
        prepared = [
            [(operation, self._claims(operation), new_id) for operation, new_id in zip(operations, ids, strict=True)]
            for (operations, _), ids in zip(calls, new_ids, strict=True)
        ]
        numbers, outcomes = range(len(calls)), dict[int, Any]()
        for group in [numbers] if self.groups else [[number] for number in numbers]:
            made = self._commit(queue, [(number, prepared[number], calls[number][1]) for number in group])
            for number, outcome in made.items():
                self._note(prepared[number], outcome)
            outcomes.update(made)
        return [outcomes[number] for number in numbers]

    # One commit

    def _commit(self, queue, calls):
        """Commit if something changed; calls that no commit answers read the queue."""
        looked = False
        while True:
            if self.version_seen != queue.version:
                self._look(queue)
                looked = True
            before = queue.changes
            outcomes = self._perform(queue, calls)
            if queue.changes != before:
                queue.committed()
                self._look(queue)
                return outcomes
            if looked:
                return outcomes
            self.version_seen = None

    def _perform(self, queue, calls):
        """Perform the operations that do not claim, then the sweep, then the claims."""
        claiming = [
            call for call in calls if any(isinstance(operation, Dequeue | AwaitResult) for operation, _, _ in call[1])
        ]
        before, outcomes = queue.changes, {}
        for number, operations, atomic in [call for call in calls if call not in claiming]:
            outcomes[number] = self._call(queue, operations, atomic)
        if claiming or queue.changes != before:
            queue.revoke([job for job in queue.claimed() if self._is_stale(job)])
        for number, operations, atomic in claiming:
            outcomes[number] = self._call(queue, operations, atomic)
        return outcomes

    def _call(self, queue, operations, atomic):
        before, results = queue.copy(), []
        for operation, claims, new_id in operations:
            try:
                results.append(queue.perform(operation, claims, new_id, self.stale_timeout))
            except Refused as refusal:
                if atomic:
                    queue.restore(before)
                    return refusal
                results.append(refusal)
        return results

    # Claims

    def _claims(self, operation):
        """Return the claims that an operation names. A claim with attempt None cannot be named."""
        if isinstance(operation, Ack | Nack):
            return [self._claim(operation.job)]
        return [self._claim(reference) for reference in operation.jobs] if isinstance(operation, Heartbeat) else []

    def _claim(self, reference):
        if isinstance(reference, Job):
            return reference.id, reference.attempt
        if isinstance(reference, Claim):
            return reference.job_id, reference.attempt
        attempts = [attempt for job_id, attempt in self.handed_out if job_id == reference]
        return reference, attempts[0] if len(attempts) == 1 else None

    def _note(self, operations, outcome):
        """Remember the claims handed out; forget the claims that ended or were lost."""
        if isinstance(outcome, Refused):
            self._note_lost(outcome)
            return
        for (operation, claims, _), result in zip(operations, outcome, strict=True):
            if isinstance(result, Refused):
                self._note_lost(result)
            elif isinstance(operation, Dequeue):
                self.handed_out += [(job["id"], job["attempt"]) for job in result]
            elif isinstance(operation, Ack | Nack):
                self._forget(claims[0])
                self.ended.append(claims[0])
            elif isinstance(operation, Heartbeat):
                for refusal in result:
                    self._note_lost(refusal)

    def _note_lost(self, refusal):
        if refusal.kind is ClaimLostError:
            claim = refusal.said["job_id"], refusal.said["attempt"]
            refusal.said["ended_here"] = claim in self.ended
            self._forget(claim)

    def _forget(self, claim):
        self.handed_out = [other for other in self.handed_out if other != claim]

    # Watching

    def _look(self, queue):
        """Read the whole queue, and note since when each claim has stood still."""
        now = queue.now
        sights = {}
        for job in queue.claimed():
            claim = job["id"], job["attempt"], job["heartbeat_at"]
            sights[claim] = self.sights[claim] if claim in self.sights else self._stale_at(job, now)
        self.sights = sights
        self.first_look = now if self.first_look is None else self.first_look
        self.last_look = now
        self.version_seen = queue.version

    def _stale_at(self, job, now):
        """Return the time at which a claim seen for the first time will be stale, if it stands still."""
        timeout = timedelta(seconds=job["claim_timeout"])
        stale_at = now + timeout
        if self.last_look is None or now - self.last_look > timeout:  # this program was not watching
            stale_at = min(stale_at, max(now, job["heartbeat_at"] + timeout + ALLOWANCE))
        began = now if self.first_look is None else self.first_look
        return max(stale_at, began + timedelta(seconds=min(LONGEST_GRACE, job["claim_timeout"] / 3)))

    def _is_stale(self, job):
        stale_at = self.sights.get((job["id"], job["attempt"], job["heartbeat_at"]))
        return stale_at is not None and stale_at <= self.last_look
