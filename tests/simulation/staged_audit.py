"""Checks bulk enqueues: the version that records a transaction adds all of its jobs, once.

Also checks claims with a name: a job names its holder for as long as the claim lasts, and no longer.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter, defaultdict

from jqueue.domain.errors import DeadlineExceededError
from tests.simulation.applications import KEYED
from tests.simulation.calls import Calls, Violation, may_carry
from tests.simulation.chain import IN_PROGRESS, QUEUED, Fields, Timeline, Version, status_of
from tests.simulation.history import Call

TRANSACTION, HOLDER = 13, 14
"""Numbers of the rules in `Violation.rule`."""

VERBS = ("enqueue_staged", "resolve_staged", "last_transaction")


class StagedAudit:
    """Checks transactions and holders in every step.

    Args:
        calls: the history.

    Attributes:
        added: version that added each staged job, by its id, or by its mark if it has a key.
        seen: number of times that something happened, by name.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.added: dict[str, Version] = {}
        self.seen: Counter[str] = Counter()
        self._adding: dict[str, list[Call]] = defaultdict(list)
        for call in calls.by_verb["enqueue_staged"]:
            for name in (*call.job_ids, *call.keyed):
                self._adding[name].append(call)

    def asking(self, job: Fields) -> list[Call]:
        """Return the calls that may have added a staged job with a key, found by the mark in its payload."""
        return self._adding.get(_name_of("", job), [])

    def added_beside(self, call: Call, version: Version) -> set[str]:
        """Return staged jobs added by a version of the call's process: a call in the same commit did not see them."""
        if call.process != version.by:
            return set()
        return {job_id for job_id in version.jobs if self.added.get(job_id) is version}

    def check_step(self, before: Version, after: Version, claimed: list[tuple[str, Fields]]) -> None:
        """Check one step."""
        if after.twins - before.twins:
            raise Violation(TRANSACTION, f"{sorted(after.twins - before.twins)} stand there twice", version=after)
        for job_id, job in after.jobs.items():
            held = job.get("holder") is not None or job.get("claimed_at") is not None
            if held and status_of(job) != IN_PROGRESS and before.jobs.get(job_id) != job:
                raise Violation(HOLDER, f"{job_id} is {status_of(job)}, and has a holder", version=after)
        for job_id, job in claimed:
            self._check_claim(job_id, job, after)
        if self._adding:
            names = {_name_of(job_id, after.jobs[job_id]) for job_id in after.jobs.keys() - before.jobs.keys()}
            new = names & self._adding.keys()
            self._check_records(before, after, new)
            self._check_additions(before, after, new)

    def _check_claim(self, job_id: str, job: Fields, after: Version) -> None:
        call = self.calls.by_tag[job.get("claim_timeout")]  # the auditor has checked that there is one
        if job.get("holder") != (call.holder or call.process):
            raise Violation(HOLDER, f"{job_id} was claimed, and its holder is another", call=call, version=after)
        if job.get("claimed_at") != job["heartbeat_at"]:
            raise Violation(HOLDER, f"{job_id} was claimed, and the claim has another time", call=call, version=after)
        if job["sequence"] > call.through:
            raise Violation(HOLDER, f"{job_id} was claimed, and came too late for that", call=call, version=after)
        self.seen["claimed with a holder"] += call.holder is not None

    def _check_records(self, before: Version, after: Version, new: set[str]) -> None:
        for app, record in before.transactions.items():
            if after.transactions.get(app, [-1])[0] < record[0]:
                raise Violation(TRANSACTION, f"the transaction of {app} was forgotten, or fell", version=after)
        for app, record in after.transactions.items():
            transaction = app, record[0]
            if record[0] == _last(before, app):
                continue
            calls = [
                call
                for call in self.calls.by_verb["enqueue_staged"]
                if call.transaction == transaction and may_carry(after, call)
            ]
            if not any(self._has_jobs(call, after, new) for call in calls):
                raise Violation(TRANSACTION, f"{transaction} was recorded without its jobs", version=after)
            self.seen["transaction landed"] += 1

    def _check_additions(self, before: Version, after: Version, new: set[str]) -> None:
        for name in new:
            if name in self.added:
                raise Violation(TRANSACTION, f"{name} was added a second time", version=after)
            self.added[name] = after
            if not any(self._is_whole(call, before, after, new) for call in self._adding[name]):
                what = "without its transaction, or without the others of it"
                raise Violation(TRANSACTION, f"{name} was added {what}", version=after)

    def _is_whole(self, call: Call, before: Version, after: Version, new: set[str]) -> bool:
        """True if a version may carry a call, with all its jobs and the record of its transaction."""
        if not may_carry(after, call) or not self._has_jobs(call, after, new):
            return False
        if call.transaction is None:
            return True
        app, version = call.transaction
        return _last(before, app) < version <= _last(after, app)  # one commit may carry several transactions

    def _has_jobs(self, call: Call, after: Version, new: set[str]) -> bool:
        """True if a version added all jobs of a call, or its commit may have purged some of them at once."""
        purges = (each for each in self.calls.carried("purge", after) if each.given["status"] == QUEUED)
        return new.issuperset(call.job_ids) or (any(purges) and self.calls.purging(call))

    # Answers to callers

    def check_calls(self, timeline: Timeline) -> None:
        """Check every call that staged jobs, or asked for the last transaction."""
        for call in self.calls.by_verb["last_transaction"]:
            if call.succeeded:
                seen = timeline.between(call.started, call.ended)
                told = -1 if call.result is None else call.result
                if told not in {_last(version, call.name or "") for version in seen}:
                    raise Violation(3, f"was told {call.result}, which was not the last one then", call=call)
        for call in (*self.calls.by_verb["enqueue_staged"], *self.calls.by_verb["resolve_staged"]):
            if call.succeeded:
                self._check_done(call, timeline)
            alone = all(len(self._adding[job_id]) == 1 for job_id in call.job_ids)
            if call.verb == "resolve_staged" and isinstance(call.error, DeadlineExceededError) and alone:
                self._check_not_done(call)
        for call in self.calls.by_verb["dequeue"]:
            if call.succeeded and any(job.holder != (call.holder or call.process) for job in call.result):
                raise Violation(HOLDER, "returned jobs with another holder", call=call)

    def _check_done(self, call: Call, timeline: Timeline) -> None:
        [receipt] = call.result
        if receipt.repeated:
            self.seen["transaction repeated"] += 1
            assert call.transaction is not None
            app, least = call.transaction
            if not any(_last(version, app) >= least for version in timeline.between(call.started, call.ended)):
                raise Violation(TRANSACTION, "was told that it was done before, and it was not", call=call)
            if receipt.added:
                raise Violation(TRANSACTION, "was done before, and added jobs", call=call)
            return
        versions = {self.added[job_id].index for job_id in call.job_ids if job_id in self.added}
        whole = all(job_id in self.added and self.added[job_id].at <= call.ended for job_id in call.job_ids)
        if len(versions) > 1 or not (whole or self.calls.purging(call)):
            raise Violation(2, "returned, and its jobs were not added", call=call)
        if receipt.added + receipt.taken != len(call.job_ids) + len(call.keyed) or receipt.added < len(call.job_ids):
            raise Violation(2, f"was told of {receipt}, and staged others", call=call)
        keyed = sum(name in self.added for name in call.keyed)  # one may be replaced in the same commit
        if keyed > receipt.added - len(call.job_ids):
            raise Violation(2, f"was told of {receipt}, and more were added", call=call)

    def _check_not_done(self, call: Call) -> None:
        if any(job_id in self.added for job_id in call.job_ids):
            raise Violation(2, "resolved as not done, and its jobs were added", call=call)


def _last(version: Version, app: str) -> int:
    last: int = version.transactions.get(app, [-1])[0]
    return last


def _name_of(job_id: str, job: Fields) -> str:
    """Return the name of a staged job: the mark in its payload if it has a key, otherwise its id."""
    payload = b64decode(job.get("payload", "")) if job.get("unique_key") is not None else b""
    return payload.removeprefix(KEYED).decode() if payload.startswith(KEYED) else job_id
