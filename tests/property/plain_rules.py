"""Limits and cron entries in the plainest form: the other part of the plain queue.

Every limit is looked up in the list of all jobs and of all claims made; nothing is counted along the way.
"""

from datetime import timedelta
from typing import Any

from jqueue.domain.operations import UNCHANGED
from jqueue.operations import Configure, Pause, Resume, SetLimits, SetSchedule, Unschedule
from jqueue.testing.virtual_time import EPOCH

CRONS = {"* * * * *": 60, "*/10 * * * * *": 10, "0 */2 * * * *": 120}
"""Cron expressions, and the seconds between two of their times. The first of their times is a whole minute."""

NO_RULES = {"paused": False, "running": None, "rate": None, "per": None}


class PlainRules:
    """Limits, pauses, settings and cron entries of a plain queue.

    Attributes:
        rules: entrypoint -> its limits and pause.
        claims_made: entrypoint -> times of its claims, while it has a rate limit.
        settings: settings of the whole queue.
        schedules: the cron entries by name.
        is_critical: True if a limit was ever set.
    """

    jobs: list[dict[str, Any]]
    changes: int
    attempt_floor: int

    def __init__(self):
        self.now = EPOCH
        self.rules: dict[str, dict[str, Any]] = {}
        self.claims_made: dict[str, list[Any]] = {}
        self.settings: dict[str, Any] = {"aging": None, "dead_retention": None, "blob_bytes": None}
        self.schedules: dict[str, dict[str, Any]] = {}
        self.is_critical = False

    # Operators

    def decide(self, operation):
        """Perform an operation for many jobs at once."""
        match operation:
            case Pause(entrypoint):
                return self.set_rules(entrypoint, paused=True)
            case Resume(entrypoint):
                return self.set_rules(entrypoint, paused=False)
            case SetLimits(entrypoint, running=running, rate=rate, per=per):
                return self.set_rules(entrypoint, running=running, rate=rate, per=per)
            case Configure(aging=aging, dead_retention=kept, blob_bytes=most):
                given = {"aging": aging, "dead_retention": kept, "blob_bytes": most}
                return self.configure({name: value for name, value in given.items() if value is not UNCHANGED})
            case SetSchedule(name, cron, entrypoint, keep_result=kept, concurrency_key=key):
                asked = {"name": name, "cron": cron, "entrypoint": entrypoint}
                return self.schedule({**asked, "keep_result": kept, "concurrency_key": key})
            case Unschedule(name):
                return self.unschedule(name)
        raise AssertionError(operation)

    def set_rules(self, entrypoint, **changes):
        """Change the limits of an entrypoint. Removing its rate limit forgets the claims counted for it."""
        before = self.rules.get(entrypoint, NO_RULES)
        after = before | changes
        if after == before:
            return
        self.rules = {name: rules for name, rules in self.rules.items() if name != entrypoint}
        if after != NO_RULES:
            self.rules[entrypoint] = after
            self.is_critical = True
        if after["rate"] is None:
            self.claims_made.pop(entrypoint, None)
        self.changes += 1

    def configure(self, given):
        """Change settings; returns all of them."""
        if given | self.settings != self.settings | given:
            self.changes += 1
        self.settings = self.settings | given
        return dict(self.settings)

    def schedule(self, asked):
        """Set a cron entry. An equal one stays; one with the same times may be overdue."""
        entry = {"payload": b"", "headers": {}, "keep_result": None, "concurrency_key": None} | asked
        known = self.schedules.get(entry["name"])
        if known is not None and {**known, "next_at": None} == {**entry, "next_at": None}:
            return dict(known)
        entry["next_at"] = self.last_time(entry["cron"]) + timedelta(seconds=CRONS[entry["cron"]])
        if known is not None and known["cron"] == entry["cron"]:
            entry["next_at"] = known["next_at"]
        self.schedules[entry["name"]] = entry
        self.changes += 1
        return dict(entry)

    def unschedule(self, name):
        """Remove a cron entry; returns True if there was one."""
        if name not in self.schedules:
            return False
        del self.schedules[name]
        self.changes += 1
        return True

    # Claims

    def next_to_claim(self, entrypoints):
        """Return the first job that is ready and not held back."""
        free = [
            job
            for job in self.jobs
            if job["status"] == "queued"
            and (job["run_at"] is None or job["run_at"] <= self.now)
            and (entrypoints is None or job["entrypoint"] in entrypoints)
            and self.is_open(job["entrypoint"])
            and self.is_free(job)
        ]
        return min(free, key=self.rank, default=None)

    def rank(self, job):
        """Return the rank: priority, then place. With aging, some seconds of waiting count as one step of priority."""
        if self.settings["aging"] is None:
            return job["priority"], job["place"]
        waits_since = job["run_at"] or job["created_at"]
        return job["priority"] * self.settings["aging"] + (waits_since - EPOCH).total_seconds(), job["place"]

    def is_open(self, entrypoint):
        """True if the limits of the entrypoint allow one more claim."""
        rules = self.rules.get(entrypoint, NO_RULES)
        running = [job for job in self.claimed() if job["entrypoint"] == entrypoint]
        if rules["paused"] or (rules["running"] is not None and len(running) >= rules["running"]):
            return False
        return rules["rate"] is None or len(self.counting(entrypoint)) < rules["rate"]

    def is_free(self, job):
        """True if the job's concurrency key has room for one more job in progress."""
        sharing = [other for other in self.claimed() if other["concurrency_key"] == job["concurrency_key"]]
        return job["concurrency_key"] is None or len(sharing) < (job["concurrency_limit"] or 1)

    def counting(self, entrypoint):
        """Return the claims of an entrypoint within its window."""
        window = timedelta(seconds=self.rules[entrypoint]["per"])
        return [at for at in self.claims_made.get(entrypoint, []) if at + window > self.now]

    def count_claim(self, entrypoint):
        """Record a claim."""
        if self.rules.get(entrypoint, NO_RULES)["rate"] is not None:
            per = self.rules[entrypoint]["per"]
            kept = timedelta(seconds=per + max(per, 2))  # expired claims count again if the window gets longer
            found = [at for at in self.claims_made.get(entrypoint, []) if at + kept > self.now]
            self.claims_made[entrypoint] = [*found, self.now]

    def claimed(self):
        """Return the jobs in progress."""
        return [job for job in self.jobs if job["status"] == "in_progress"]

    # Changes made by time

    def is_outlived(self, job):
        """True if the job's time is over: it expired, or its retention ended."""
        if job["status"] == "queued":
            return job["expires_at"] is not None and job["expires_at"] <= self.now
        since: Any = None
        kept: Any = None
        if job["status"] == "completed":
            since, kept = job["finished_at"], job["keep_result"]
        elif job["status"] == "dead":
            since, kept = job["dead_at"], self.settings["dead_retention"]
        return kept is not None and since + timedelta(seconds=kept) <= self.now

    def fire(self):
        """Enqueue one job for each cron entry that is due: for its last due time, even if several were missed."""
        for entry in self.schedules.values():
            if entry["next_at"] <= self.now:
                occurrence = self.last_time(entry["cron"])
                moment = occurrence.isoformat()
                self.add(
                    id=f"cron:{entry['name']}:{moment}",
                    attempt=self.attempt_floor,
                    entrypoint=entry["entrypoint"],
                    payload=entry["payload"],
                    headers={**entry["headers"], "jqueue-scheduled-for": moment},
                    keep_result=entry["keep_result"],
                    concurrency_key=entry["concurrency_key"],
                )
                entry["next_at"] = occurrence + timedelta(seconds=CRONS[entry["cron"]])

    def last_time(self, cron):
        """Return the last time until now at which an entry was due."""
        return self.now - (self.now - EPOCH) % timedelta(seconds=CRONS[cron])

    def add(self, **fields):
        """Add a job with these fields."""
        raise NotImplementedError

    def figures(self, entrypoint=None):
        """Return the expected figures of an entrypoint, or of all: depth, scheduled, in progress, dead, oldest ready
        age, completed, and whether it is paused."""
        jobs = [job for job in self.jobs if entrypoint in (None, job["entrypoint"])]
        queued = [job for job in jobs if job["status"] == "queued"]
        scheduled = [job for job in queued if job["run_at"] is not None and job["run_at"] > self.now]
        ready = [
            job
            for job in queued
            if job not in scheduled and (job["expires_at"] is None or job["expires_at"] > self.now)
        ]
        ages = [self.now - (job["run_at"] or job["created_at"]) for job in ready]
        dead = [job for job in jobs if job["status"] == "dead"]
        claimed = [job for job in jobs if job["status"] == "in_progress"]
        completed = [job for job in jobs if job["status"] == "completed"]
        paused = self.rules.get(entrypoint, NO_RULES)["paused"]
        counts = len(ready), len(scheduled), len(claimed), len(dead)
        return *counts, max(ages, default=None), len(completed), paused
