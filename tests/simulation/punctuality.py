"""Checks that everything happens on time, neither early nor late, and that heartbeats come in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jqueue.domain.errors import DeadlineExceededError, ResultTimeoutError
from jqueue.domain.job import Claim
from tests.simulation.chain import COMPLETED, IN_PROGRESS, QUEUED, Fields, Version, status_of
from tests.simulation.history import NEVER, Call, Evidence, Violation
from tests.simulation.plain_values import is_suspect
from tests.simulation.workload import DEADLINE

LOOKING = ("stats", "read_state", "schedules", "iterate", "read_lease")
"""Verbs that need no queue that is open."""

CALM_LEAVING, LEAVING, LONGEST_POLL, EARLY = 4.0, 1.0, 5.0, 0.001
"""`CALM_LEAVING`: seconds in which a process leaves if nothing is wrong and no try to commit reads segments. With such
reads a try takes longer than the others expect, and may lose more races."""

LATE = 0.5
"""Seconds by which a call may end after its limit: the simulation's own scheduling."""


class Punctuality:
    """Checks the duration of every call, and the time that every process took to leave.

    Args:
        evidence: of the seed.
        made: the claims that each call made, with the version.
    """

    def __init__(self, evidence: Evidence, made: Mapping[Call, Sequence[tuple[Claim, Version]]]) -> None:
        self._seed = evidence
        self._made = made
        self._segmented = any(version.segments for version in evidence.versions)

    def check(self) -> None:
        """Check every call and every exit.

        Raises:
            Violation: something was early or late, or hung.
        """
        for process, (left, gone) in self._seed.exits.items():
            if gone != NEVER:
                self._check_leaving(process, left, gone)
        for call in self._seed.calls.all:
            self._check_length(call)
            self._check_haste(call)
            if call.verb == "dequeue" and call.succeeded:
                self._check_patience(call)
            elif call.verb == "work":
                self._check_work(call)
            elif call.verb == "result":
                self._check_result(call)

    def _check_leaving(self, process: str, left: float, gone: float) -> None:
        limit = CALM_LEAVING if self._seed.calm and not self._segmented else DEADLINE
        if gone - left > limit + LEAVING + LATE + self._paused(process, left, gone):
            raise Violation(0, f"{process} took {gone - left:.1f} s of {limit:.1f} s to leave")
        for call in self._seed.calls.all:
            late = call.process == process and call.started < gone and call.ended > gone + LATE
            if late and call.verb not in ("work", "resolve", "resolve_staged", *LOOKING):
                raise Violation(0, "was not answered when its queue had been left", call=call)

    def _check_length(self, call: Call) -> None:
        took = call.ended - call.started
        if call.ended == NEVER or took <= call.limit + LATE:
            return
        if took > call.limit + self._paused(call.process, call.started, call.ended) + LATE:
            raise Violation(0, f"took {took:.1f} s of {call.limit:.1f} s", call=call)

    def _paused(self, process: str, start: float, end: float) -> float:
        """Return the seconds between two moments in which nothing of a process ran."""
        pauses = self._seed.pauses.get(process, ())
        return sum(max(0.0, min(end, until) - max(start, since)) for since, until in pauses)

    def _leaving(self, call: Call) -> bool:
        """True if the process left before the call ended."""
        return call.process in self._seed.exits and self._seed.exits[call.process][0] <= call.ended

    def _check_haste(self, call: Call) -> None:
        """Check that no call gives up before the time that its caller allowed."""
        took = call.ended - call.started
        if self._leaving(call) or call.process == "drain" or call.process in self._seed.jumped:
            return
        if self._seed.sent and self._seed.jumped:  # a broker goes by its clock
            return
        if (
            isinstance(call.error, DeadlineExceededError)
            and not call.verb.startswith("resolve")
            and call.verb not in ("iterate", "read_lease")  # the deadline is that of each request
            and (self._seed.tells_time or call.verb != "enqueue_staged")
            and not call.aged
            and took < call.limit - EARLY
        ):
            raise Violation(0, f"gave up after {took:.1f} s of {call.limit:.1f} s", call=call)
        if call.succeeded and call.wait and not call.result and took < call.wait - EARLY:
            raise Violation(0, f"found nothing, and waited {took:.1f} s of {call.wait:.1f} s for it", call=call)

    def _check_patience(self, call: Call) -> None:
        """Check that a waiting dequeue gets a job soon after it is ready, if nothing is wrong with the store."""
        if not self._seed.calm or not call.wait or call.process == "drain":
            return
        until = min([version.at for _, version in self._made.get(call, ())], default=call.ended)
        since = until - LONGEST_POLL - LATE - 2.0
        if since <= call.started:
            return
        seen = self._seed.timeline.between(since, until)
        if call.result:
            seen = seen[:-1]
        if seen:
            free = ({i for i, job in v.jobs.items() if _is_free(job, v, call.entrypoint)} - v.unsure for v in seen)
            always = set.intersection(*free)
            if always:
                raise Violation(0, f"waited, although {min(always)} was ready", call=call)

    def _check_result(self, call: Call) -> None:
        """Check that a caller waits for a result as long as it asked, and is told soon after the ack if all is well."""
        [job_id] = call.job_ids
        took, timeout = call.ended - call.started, call.given["timeout"]
        is_late = isinstance(call.error, ResultTimeoutError)
        if is_late and took < timeout - EARLY and not self._leaving(call):
            raise Violation(0, f"gave up after {took:.1f} s of {timeout:.1f} s", call=call)
        if not self._seed.calm or not (call.succeeded or is_late):
            return
        seen = self._seed.timeline.between(call.started, call.ended)
        done = [version.at for version in seen if status_of(version.jobs.get(job_id, {})) == COMPLETED]
        if done and call.ended > max(done[0], call.started) + LONGEST_POLL + 2.0 + LATE:
            raise Violation(0, f"waited, although {job_id} had finished", call=call)

    def _check_work(self, call: Call) -> None:
        """Check that a `HeartbeatManager` beats on time, and ends the work when a claim is lost or long unconfirmed."""
        if call.ended == NEVER or self._leaving(call):
            return
        beats = [
            beat
            for claim in call.claims[:1]
            for beat in self._seed.calls.beating[claim]
            if beat.process == call.process
            and beat.verb == "heartbeat_many"
            and call.started <= beat.started < call.ended
        ]
        last = confirmed = call.started
        for beat in [*beats, None]:
            at = call.ended if beat is None else beat.started
            if at - last > min(60.0, call.timeout / 3) + LATE + self._paused(call.process, last, at):
                raise Violation(
                    6, f"went on for {at - last:.1f} s of {call.timeout:.1f} s without a heartbeat", call=call
                )
            if beat is None or beat.ended > call.ended:
                break
            last = beat.ended
            if beat.succeeded and any(getattr(error, "ended_here", False) for error in beat.result):
                return  # another actor on the same queue object acked the job by its id
            if beat.succeeded:
                confirmed = beat.ended
                if beat.result and call.ended - beat.ended > LATE + self._paused(call.process, beat.ended, call.ended):
                    raise Violation(6, "went on, although a claim was lost", call=call)
        if call.ended - confirmed > call.timeout + LATE + self._paused(call.process, confirmed, call.ended):
            raise Violation(6, "went on without a confirmation for longer than its claims last", call=call)


def _is_free(job: Fields, version: Version, entrypoint: str | None) -> bool:
    """True if a dequeue of the entrypoint can certainly claim a job: it is ready, and nothing may hold it back.

    Every job with a rate limit counts as held.
    """
    rules = version.entrypoints.get(job["entrypoint"], {})
    is_waiting = status_of(job) == QUEUED and not any(map(job.get, ("run_at", "expires_at", "waits_for")))
    is_rated = rules.get("rate") or rules.get("key_rate")
    if not is_waiting or entrypoint not in (None, job["entrypoint"]) or rules.get("paused") or is_rated:
        return False
    claimed = [each for each in version.jobs.values() if status_of(each) == IN_PROGRESS]
    running = sum(each["entrypoint"] == job["entrypoint"] for each in claimed)
    if is_suspect(job) and any(map(is_suspect, claimed)):
        return False
    key, most = job.get("concurrency_key"), rules.get("max_running")
    with_key = sum(each.get("concurrency_key") == key for each in claimed)
    return (most is None or running < most) and (key is None or with_key < (job.get("concurrency_limit") or 1))
