"""Checks limits from the chain of versions alone: pauses, ceilings, concurrency keys, rates, and orders to set them.

A limit is checked when a claim is made: lowering it takes no claims away.
"""

from __future__ import annotations

from collections import defaultdict

from tests.simulation.calls import Calls, Violation
from tests.simulation.chain import Fields, Version
from tests.simulation.serving_order import running, running_with_key, seconds

LIMIT = 10
"""Number of the rule: every claim is within the limits of the version that makes it."""

EDGE = 1e-5
"""Seconds by which a claim may miss the edge of a window, because of rounding."""


class LimitsAudit:
    """Checks the claims of every step, and the limits and settings changed in it.

    Args:
        calls: the history.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._times: dict[str, list[float]] = defaultdict(list)

    def check_step(self, before: Version, after: Version, claimed: list[tuple[str, Fields]]) -> None:
        """Check one step.

        Args:
            before: the version before.
            after: the version after.
            claimed: jobs that were claimed in it.
        """
        if before.rules != after.rules or before.settings != after.settings:
            self._check_decisions(before, after)
        self._forget_other_rates(before, after)
        for entrypoint in {job["entrypoint"] for _, job in claimed}:
            rules = after.rules.get(entrypoint, {})
            if rules.get("paused"):
                raise Violation(LIMIT, f"a job of {entrypoint} was claimed, which is paused", version=after)
            ceiling, count = rules.get("max_running"), running(after, entrypoint)
            if ceiling is not None and count > ceiling:
                raise Violation(LIMIT, f"{count} jobs of {entrypoint} run, and {ceiling} may", version=after)
        keys = {job["concurrency_key"] for _, job in claimed if job.get("concurrency_key") is not None}
        for key in keys:
            self._check_key(key, after, [job for _, job in claimed if job.get("concurrency_key") == key])
        for job_id, job in claimed:
            self._check_rate(job_id, job, after)

    def _check_key(self, key: str, after: Version, claimed: list[Fields]) -> None:
        """Check that the jobs claimed together, in some order, each found room below their own ceilings."""
        count = running_with_key(after, key) - len(claimed)
        for ceiling in sorted(job.get("concurrency_limit") or 1 for job in claimed):
            count += 1
            if count > ceiling:
                what = f"{count} jobs with the concurrency key {key} run, and one that was claimed allows {ceiling}"
                raise Violation(LIMIT, what, version=after)

    # Rates

    def _forget_other_rates(self, before: Version, after: Version) -> None:
        """Forget the claims made under another rate limit: a limit binds only claims made while it holds."""
        for entrypoint in list(self._times):
            setting = [call for call in self.calls.carried("limit", after) if call.entrypoint == entrypoint]
            if len(setting) > 1 or _rate(before, entrypoint) != _rate(after, entrypoint):
                del self._times[entrypoint]  # one of several calls may have lifted the limit, and another restored it

    def _check_rate(self, job_id: str, job: Fields, after: Version) -> None:
        """Check that no window holds too many claims, by the times of the claims.

        Clocks may disagree. For a clock that is off by more than a window, the claims of other processes are over.
        """
        rate, per = _rate(after, job["entrypoint"])
        if rate is None or per is None:
            return
        now, times = seconds(job["heartbeat_at"]), self._times[job["entrypoint"]]
        times[:] = [at for at in times if abs(now - at) < per - EDGE] + [now]
        if len(times) > rate:
            what = (
                f"{job_id} was claimed, number {len(times)} of {job['entrypoint']} within {per:g} s, and {rate} may be"
            )
            raise Violation(LIMIT, what, version=after)

    # Orders behind the changes

    def _check_decisions(self, before: Version, after: Version) -> None:
        for name in before.rules.keys() | after.rules.keys():
            old, new = before.rules.get(name, {}), after.rules.get(name, {})
            if old != new:
                self._check_row(name, old, new, after)
        for name in before.settings.keys() | after.settings.keys():
            value = after.settings.get(name)
            given = [call.given[name] for call in self.calls.carried("configure", after) if name in call.given]
            if value != before.settings.get(name) and value not in given:
                raise Violation(LIMIT, f"{name} became {value}, and nobody had asked for that", version=after)

    def _check_row(self, name: str, old: Fields, new: Fields, after: Version) -> None:
        limits = [call.given for call in self.calls.carried("limit", after) if call.entrypoint == name]
        paused = {verb == "pause" for verb in ("pause", "resume") if self.calls.may_carry(verb, after, name)}
        if bool(new.get("paused")) not in paused | {bool(old.get("paused"))}:
            raise Violation(LIMIT, f"{name} was paused or resumed, and nobody had asked for that", version=after)
        fields = ("max_running", "rate", "per")
        said = [new.get(field) for field in fields]
        known = [old.get(field) for field in fields]
        if said != known and said not in [[given.get(field) for field in fields] for given in limits]:
            raise Violation(LIMIT, f"{name} has other limits, and nobody had asked for them", version=after)


def _rate(version: Version, entrypoint: str) -> tuple[int | None, float | None]:
    rules = version.rules.get(entrypoint, {})
    return rules.get("rate"), rules.get("per")
