"""The calls of a history, indexed for the checks, and the error that reports a broken rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from jqueue.domain.models import Claim
from tests.simulation.chain import (
    DEAD,
    IN_PROGRESS,
    QUEUED,
    Fields,
    Version,
    attempt_of,
    failures_of,
    status_of,
)
from tests.simulation.history import Call


class Violation(AssertionError):
    """A rule was broken.

    Attributes:
        rule: number of the rule in docs/reference/protocol.md; 0 for liveness, 10 for limits, 11 for cron entries,
            12 for results, 13 for transactions, 14 for holders, 15 for counters, 16 for the history, 17 for objects,
            18 for orders of operators who act on what they have seen, 19 for segments.
        index: place in the chain of the version that shows the violation; None if no version shows it.
        call: the call concerned; None if no single call is.
    """

    def __init__(self, rule: int, what: str, *, version: Version | None = None, call: Call | None = None) -> None:
        where = f" (version {version.number})" if version is not None else ""
        who = f"{call} by {call.process}: " if call is not None else ""
        super().__init__(f"{'liveness' if rule == 0 else f'rule {rule}'}: {who}{what}{where}")
        self.rule = rule
        self.index = version.index if version is not None else None
        self.call = call


class Calls:
    """The calls of a history, indexed by verb, job id, claim and tag."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self.all = list(calls)
        self.adding: dict[str, list[Call]] = defaultdict(list)
        self.ending: dict[Claim, list[Call]] = defaultdict(list)
        self.acking_by_id: dict[str, list[Call]] = defaultdict(list)
        self.beating: dict[Claim, list[Call]] = defaultdict(list)
        self.by_tag: dict[object, Call] = {}
        self.by_verb: dict[str, list[Call]] = defaultdict(list)
        for call in self.all:
            self.by_verb[call.verb].append(call)
            if call.tag is not None:
                self.by_tag[call.tag] = call
            if call.verb in ("enqueue", "enqueue_many", "enqueue_staged", "apply"):
                for job_id in call.job_ids:
                    self.adding[job_id].append(call)
            if call.verb in ("ack", "ack_many", "apply") and not call.certain:
                for claim in call.claims:
                    self.ending[claim].append(call)
                    if call.bare:
                        self.acking_by_id[claim.job_id].append(call)
            elif call.verb in ("apply_each", "end_range"):
                for claim in call.results:
                    self.ending[claim].append(call)
            elif call.verb in ("heartbeat", "heartbeat_many", "beat_range"):
                for claim in call.claims:
                    self.beating[claim].append(call)

    def cancelling(self, job_id: str, at: float) -> bool:
        """True if a call may have cancelled a job by then."""
        return any(job_id in call.job_ids and call.started <= at for call in self.by_verb["cancel"])

    def purging(self, adding: Call) -> bool:
        """True if a purge may have removed jobs in the very commit that added them.

        Jobs of a bulk enqueue are as old as the call that adds them, and jobs in staged segments as their staging. Jobs
        of other calls are as old as the commit: a purge that looks at the age does not find them old enough. Encoded
        jobs are seen by other operations from the next commit on.
        """
        if adding.verb in ("enqueue_staged", "resolve_staged") and not adding.in_segments:
            return False
        dated_before = adding.in_segments or adding.verb == "enqueue_many"
        return any(
            call.given["status"] == QUEUED
            and call.process == adding.process
            and (dated_before or call.given["older_than"] < 0)
            for call in self.by_verb["purge"]
            if call.started <= adding.ended and adding.started <= call.ended and not call.certainly_not_done
        )

    def carried(self, verb: str, version: Version) -> list[Call]:
        """Return the calls of a verb that a version may carry."""
        return [call for call in self.by_verb[verb] if may_carry(version, call)]

    def touches(self, verb: str, job_id: str, version: Version) -> bool:
        """True if a version may carry a call of this verb for a job."""
        return any(job_id in call.job_ids and may_carry(version, call) for call in self.by_verb[verb])

    def purges(self, version: Version, entrypoint: str, status: str) -> bool:
        """True if a version may carry a purge of jobs of this entrypoint and status."""
        purges = [call for call in self.carried("purge", version) if call.entrypoint in (None, entrypoint)]
        return any(call.given["status"] == status for call in purges)

    def may_carry(self, verb: str, version: Version, entrypoint: str | None = None) -> bool:
        """True if a version may carry a call of this verb, for jobs of this entrypoint."""
        calls = (call for call in self.by_verb[verb] if entrypoint is None or call.entrypoint in (None, entrypoint))
        return any(may_carry(version, call) for call in calls)

    def replacing(self, key: str | None, at: float, by_another_than: Call | None = None) -> bool:
        """True if a job with this unique key may have been replaced at that time."""
        calls = (
            call
            for call in self.by_verb["enqueue"]
            if call.replaces and call.key == key and call is not by_another_than
        )
        return key is not None and any(may_act(call, at) for call in calls)

    def replaces(self, key: str | None, version: Version) -> bool:
        """True if a version may carry the replacement of a job with this unique key."""
        calls = (call for call in self.by_verb["enqueue"] if call.replaces and call.key == key)
        return key is not None and any(may_carry(version, call) for call in calls)

    def states_in(
        self, job_id: str, job: Fields, version: Version, *, untold: bool = False, stale: bool = False
    ) -> set[str]:
        """Return the states in which other calls of a commit may have found a job.

        Besides the state before the commit, these are the states that the job may have had for a moment.

        Args:
            job_id: id of the job.
            job: the job before the commit.
            version: the version that the commit made.
            untold: True if the claim on the job may be handed back, as its holder was not told.
            stale: True if the sweep of the commit may revoke the claim, and what comes after the sweep is asked for.
        """
        states = {status_of(job)}
        if IN_PROGRESS in states:
            spent = job.get("max_attempts") is not None and failures_of(job) >= job["max_attempts"]
            if untold:
                states.add(QUEUED)
            if stale:
                states.add(DEAD if spent else QUEUED)
            for call in self._giving_back(Claim(job_id, attempt_of(job)), version):
                dead = call.given.get("charge", True) and (spent or call.given.get("dead", False))
                states |= {DEAD} if dead else {QUEUED}
                if call.verb == "end_range":  # some jobs of the range are given back without a failure
                    states.add(QUEUED)
        if DEAD in states and self.may_carry("redrive", version, job["entrypoint"]):
            states.add(QUEUED)
        return states

    def _giving_back(self, claim: Claim, version: Version) -> Iterator[Call]:
        """Yield the calls in a version that may have ended a claim but not its job."""
        yield from self.carried("requeue_stale", version)
        nacks = (call for verb in ("nack", "nack_many", "apply_each", "end_range") for call in self.by_verb[verb])
        yield from (call for call in nacks if claim in call.claims and may_carry(version, call))


def may_carry(version: Version, call: Call) -> bool:
    """True if a version may carry a call: both are of the same process, and the call may act at that time."""
    return call.process == version.by and may_act(call, version.at)


def may_act(call: Call, at: float) -> bool:
    """True if a call may have taken effect at that time."""
    if call.started > at or call.certainly_not_done:
        return False
    return not call.succeeded or at <= call.ended
