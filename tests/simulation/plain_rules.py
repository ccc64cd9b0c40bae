"""Limits and cron entries in the plainest form: one part of the plain queue.

Every limit is looked up in the list of all jobs and of all claims made; nothing is counted along the way.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from jqueue import InvalidJobError
from jqueue.domain.operations.rules import UNCHANGED, PauseSchedule, Reset, RunSchedule
from jqueue.operations import Configure, Pause, Resume, SetLimits, SetSchedule, Unschedule
from jqueue.testing.virtual_time import EPOCH
from tests.simulation.plain_values import ENTRY, JobFields, Refused, is_suspect, process_of

NO_LIMITS = dict.fromkeys(("running", "rate", "per", "key_rate", "key_per"))
NO_RULES = {"paused": False, **NO_LIMITS, "declared": None}
SETTINGS = {"dead_retention": None, "blob_bytes": None, "history": None}
LONGEST_AGO = datetime(1970, 1, 1, tzinfo=UTC)

SPANS_KEPT = 8
"""Number of spans of times at which an entry was fired; if there are more, the first two become one."""

SPANS_OF_A_RATE, SPANS_OF_A_KEY = 64, 16
"""Number of parts of a window of a rate, and of the rate of a key: claims within one part count as one, until the last
of them is over."""

Times = list[tuple[datetime, datetime]]


class PlainRules:
    """Limits, pauses, settings and cron entries of a plain queue.

    Attributes:
        crons: the cron expressions that it can read, each with the seconds between two of its times, and the seconds
            from midnight to the first.
        rules: entrypoint -> its limits and pause.
        claims_made: entrypoint -> claims while it has a rate limit: first and last time of several, and their number.
        key_claims: the same by entrypoint and key, while the entrypoint has a rate for each key.
        settings: settings of the whole queue.
        schedules: the cron entries by name.
    """

    crons: Mapping[str, tuple[int, int]]
    not_fired: frozenset[str] = frozenset()
    """Names of entries that do not fire now, as it cannot be seen if their jobs are there."""

    begun: Mapping[str, int] = MappingProxyType({})
    """By id of a job that a cron entry adds: the attempts before it, if other calls of the commit raise them."""

    table: dict[str, JobFields]
    changes: int
    attempt_floor: int

    def __init__(self):
        self.now = EPOCH
        self.rules: dict[str, dict[str, Any]] = {}
        self.claims_made: dict[str, tuple[tuple[datetime, datetime, int], ...]] = {}
        self.key_claims: dict[tuple[str, str], tuple[tuple[datetime, datetime, int], ...]] = {}
        self.settings: dict[str, Any] = {**SETTINGS, "history_payloads": False}
        self.schedules: dict[str, dict[str, Any]] = {}

    # Operators

    def decide(self, operation):
        """Perform an operation for many jobs at once."""
        match operation:
            case Pause(entrypoint):
                return self.set_rules(entrypoint, paused=True)
            case Resume(entrypoint):
                return self.set_rules(entrypoint, paused=False)
            case SetLimits(entrypoint, by=by):
                return self.set_limits(entrypoint, {name: getattr(operation, name) for name in NO_LIMITS}, by)
            case Configure():
                given = {name: getattr(operation, name) for name in self.settings}
                return self.configure({name: value for name, value in given.items() if value is not UNCHANGED})
            case SetSchedule():
                return self.schedule({name: getattr(operation, name) for name in ENTRY}, operation.by)
            case PauseSchedule(name, paused):
                return self.pause_schedule(name, paused)
            case Reset(entrypoint, name):
                return self.reset(entrypoint, name)
            case RunSchedule(name, job_id):
                return self.run_schedule(name, job_id)
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
        if after["rate"] is None:
            self.claims_made.pop(entrypoint, None)
        if after["key_rate"] is None:
            self.key_claims = {key: made for key, made in self.key_claims.items() if key[0] != entrypoint}
        self.changes += 1

    def set_limits(self, entrypoint, limits, by):
        """Set limits. A program's do not replace those of an operator; they are noted for a reset."""
        before = self.rules.get(entrypoint, NO_RULES)
        if by == "program" and before["declared"] is not None:
            limits = {"declared": limits}
        elif by == "operator" and before["declared"] is None:
            limits = {**limits, "declared": {name: before[name] for name in NO_LIMITS}}
        self.set_rules(entrypoint, **limits)
        after = self.rules.get(entrypoint)
        if after is None or by != "program":
            return None
        return {"paused": after["paused"], "max_running": after["running"]}

    def reset(self, entrypoint, name):
        """Replace what an operator has set by what a program declares."""
        declared = self.rules.get(entrypoint, NO_RULES)["declared"]
        if declared is not None:
            self.set_rules(entrypoint, **declared, declared=None)
        if not name:
            return declared is not None
        if name not in self.schedules:
            raise Refused(InvalidJobError)
        entry = self.schedules[name]
        if entry["declared"] is None:
            return declared is not None
        self.schedules[name] = {**entry, "declared": None}
        self.changes += 1
        self.schedule(entry["declared"])
        return True

    def configure(self, given):
        """Change settings; returns all of them."""
        if given | self.settings != self.settings | given:
            self.changes += 1
        self.settings = self.settings | given
        return dict(self.settings)

    # Claims

    def next_to_claim(self, entrypoints, through=None, wanted=None, unsure=frozenset(), *, holder=None, ruled=True):
        """Return the first job that is ready and not held back.

        Args:
            entrypoints: of the job; None: any.
            through: largest place; None: any.
            wanted: a job that may be taken although jobs in `unsure` come first.
            unsure: ids of jobs that need not be found.
            holder: of the claim.
            ruled: False if the limits and pauses of entrypoints do not matter.
        """
        running = Counter(job["entrypoint"] for job in self.claimed())
        keys = Counter(job["concurrency_key"] for job in self.claimed())
        suspects = {process_of(job) for job in self.claimed() if is_suspect(job)}
        is_open = {
            name: self.is_open(name, running[name]) for name in {job["entrypoint"] for job in self.table.values()}
        }
        free = [
            job
            for job in self.table.values()
            if job["status"] == "queued"
            and not job["waits_for"]
            and (job["run_at"] is None or job["run_at"] <= self.now)
            and (entrypoints is None or job["entrypoint"] in entrypoints)
            and (through is None or int(job["place"]) <= through)
            and (is_open[job["entrypoint"]] or not ruled)
            and (job["concurrency_key"] is None or keys[job["concurrency_key"]] < (job["concurrency_limit"] or 1))
            and not (process_of({"holder": holder}) in suspects and is_suspect(job))
            and self.key_is_open(job)
            and (job["id"] == wanted or job["id"] not in unsure)
        ]
        return min(free, key=lambda job: (self.rank(job), job["id"] != wanted), default=None)

    def rank(self, job):
        """Return the rank: priority, then place. Jobs that share a place come in any order."""
        return job["priority"], int(job["place"])

    def is_open(self, entrypoint, running):
        """True if the limits of the entrypoint allow one more claim."""
        return self.claims_allowed(entrypoint, running, 1) > 0

    def claims_allowed(self, entrypoint, running, most):
        """Return the number of claims that the limits of the entrypoint allow, at most a number."""
        rules = self.rules.get(entrypoint, NO_RULES)
        if rules["paused"]:
            return 0
        if rules["running"] is not None:
            most = min(most, rules["running"] - running)
        if rules["rate"] is None:
            return most
        return min(most, rules["rate"] - self.counting(self.claims_made.get(entrypoint, ()), rules["per"]))

    def rated_key(self, job):
        """Return the entrypoint of a job and the key of its own, if there is a rate for each key; or None."""
        key = job["fair_key"] if job["concurrency_key"] is None else job["concurrency_key"]
        is_rated = key is not None and self.rules.get(job["entrypoint"], NO_RULES)["key_rate"] is not None
        return (job["entrypoint"], key) if is_rated else None

    def key_is_open(self, job):
        """True if the rate of its key allows a claim of a job."""
        if (rated := self.rated_key(job)) is None:
            return True
        rules = self.rules[job["entrypoint"]]
        return self.counting(self.key_claims.get(rated, ()), rules["key_per"]) < rules["key_rate"]

    def counting(self, made, window):
        """Return the number of claims within a window, by any clock that is near."""
        now = self.now.timestamp()
        near = [span for span in made if span[0].timestamp() - window < now < span[1].timestamp() + window]
        return sum(number for _, _, number in near)

    def count_claims(self, job, number=1):
        """Record claims of jobs that are like one.."""
        entrypoint, rated = job["entrypoint"], self.rated_key(job)
        rules = self.rules.get(entrypoint, NO_RULES)
        if rules["rate"] is not None:
            made = self.claims_made.get(entrypoint, ())
            self.claims_made[entrypoint] = self.counted(made, rules["per"], number, SPANS_OF_A_RATE)
        if rated is not None:
            made = self.key_claims.get(rated, ())
            self.key_claims[rated] = self.counted(made, rules["key_per"], number, SPANS_OF_A_KEY)

    def counted(self, claims, per, number, parts):
        """Return claims and some more. Those that are over count again in a longer window, or for a clock behind."""
        now, kept = self.now.timestamp(), per + max(per, 2)
        made = [span for span in claims if span[1].timestamp() + kept > now and span[0].timestamp() - now <= 86400]
        width = per / parts
        for place in reversed(range(len(made))):
            first, last, before = made[place]
            if last.timestamp() - width <= now <= first.timestamp() + width:
                made[place] = min(first, self.now), max(last, self.now), before + number
                break
        else:
            made.append((self.now, self.now, number))
        return tuple(made)

    def claimed(self):
        """Return the jobs in progress."""
        return [job for job in self.table.values() if job["status"] == "in_progress"]

    # Changes made by time

    def is_outlived(self, job):
        """True if the job's time is over: it expired, or its retention ended."""
        leaves_at = self.leaves_at(job)
        return leaves_at is not None and leaves_at <= self.now

    def leaves_at(self, job):
        """Return the time from which a job may be removed: it expires, or its retention ends. None: never."""
        if job["status"] == "queued":
            return job["expires_at"]
        since: Any = None
        kept: Any = None
        if job["status"] == "completed":
            if self.is_needed(job["id"]):
                return None
            since, kept = job["finished_at"] or job["created_at"], job["keep_result"] or 0
        elif job["status"] == "dead":
            since, kept = job["dead_at"] or job["created_at"], self.settings["dead_retention"]
        return None if kept is None else since + timedelta(seconds=kept)

    # Cron entries: each knows spans of time whose occurrences are done, as the clocks of several programs may differ

    def schedule(self, asked, by=""):
        """Set a cron entry. An equal one stays; one with the same times may be overdue."""
        entry = {**asked, "headers": dict(asked["headers"] or {}), "payload": bytes(asked["payload"])}
        known, second = self.schedules.get(entry["name"]), self.now.replace(microsecond=0)
        entry |= {"next_at": self.time_after(entry, self.now), "fired": ((second, second),)}
        if known is not None and (known["cron"], known["timezone"]) == (entry["cron"], entry["timezone"]):
            entry |= {"next_at": known["next_at"], "fired": known["fired"]}
        entry |= {"paused": known is not None and known["paused"], "declared": known and known["declared"]}
        if by == "program" and entry["declared"] is not None:
            entry = {**(known or {}), "declared": {name: entry[name] for name in ENTRY}}
        elif by == "operator" and entry["declared"] is None:
            entry["declared"] = {name: (known or entry)[name] for name in ENTRY}
        return self.set_entry(entry, known)

    def pause_schedule(self, name, paused):
        """Pause a cron entry, or resume it without the occurrences that it has missed."""
        if name not in self.schedules:
            raise Refused(InvalidJobError)
        known = self.schedules[name]
        entry, (*before, (first, last)) = {**known, "paused": paused}, known["fired"]
        if known["paused"] and not paused and last <= self.now:
            entry["next_at"] = self.time_after(entry, self.now)
            entry["fired"] = (*before, (first, self.now.replace(microsecond=0)))
        return self.set_entry(entry, known)

    def set_entry(self, entry, known):
        """Set an entry in place of a known one, and return it as it is shown."""
        if entry != known:
            self.schedules[entry["name"]] = entry
            self.changes += 1
        shown = {**entry, "next_at": self.next_time(entry), "fired": ()}
        return {name: value for name, value in shown.items() if name != "declared"}

    def unschedule(self, name):
        """Remove a cron entry; returns True if there was one."""
        if name not in self.schedules:
            return False
        del self.schedules[name]
        self.changes += 1
        return True

    def run_schedule(self, name, job_id):
        """Enqueue a job of a cron entry now. Its times stay."""
        if name not in self.schedules:
            raise Refused(InvalidJobError)
        return self.add_of_entry(self.schedules[name], self.now, job_id, "raise")

    def fire(self):
        """Enqueue one job for each cron entry that is due: for its last due time, even if several were missed."""
        for name, entry in sorted(self.schedules.items()):
            if name in self.not_fired or entry["paused"]:
                continue
            second, spans = self.now.replace(microsecond=0), entry["fired"]
            if self.now < spans[0][0] and self.time_after(entry, self.now) <= spans[0][0]:  # met by a clock behind all
                self.schedules[name] = {**entry, "fired": shortened([(second, second), *spans])}
                self.changes += 1
            elif self.next_time(entry) <= self.now:
                occurrence = self.last_time(entry)
                moment = occurrence.isoformat()
                self.add_of_entry(entry, occurrence, f"cron:{name}:{moment}", "return")
                self.schedules[name] = self.with_fired(entry, occurrence)
                self.changes += 1

    def with_fired(self, entry, occurrence):
        """Return a cron entry that was fired for an occurrence, by the clock of now."""
        spans, following = list(entry["fired"]), self.time_after(entry, occurrence)
        place = max(0, sum(first <= self.now for first, _ in spans) - 1)
        first, last = spans[place]
        is_last = place == len(spans) - 1
        if self.time_after(entry, last) == occurrence:
            spans[place] = first, occurrence
        else:
            place += 1
            spans.insert(place, (occurrence, occurrence))
        if not is_last and spans[place + 1][0] <= following:
            spans[place : place + 2] = [(spans[place][0], spans[place + 1][1])]
        return {**entry, "fired": shortened(spans), "next_at": following if is_last else entry["next_at"]}

    def next_time(self, entry):
        """Return the next time of an entry by the clock of now. It is in the past if the entry is due."""
        spans = entry["fired"]
        begun = [last for first, last in spans if first <= self.now]
        if spans[-1][1] <= self.now:
            return max(entry["next_at"], self.time_after(entry, spans[-1][1]))
        return self.time_after(entry, begun[-1] if begun else self.now)

    def last_time(self, entry):
        """Return the last time of an entry until now."""
        period, _ = self.crons[entry["cron"]]
        return self.time_after(entry, self.now) - timedelta(seconds=period)

    def time_after(self, entry, moment):
        """Return the first time of an entry after a moment."""
        period, offset = (timedelta(seconds=each) for each in self.crons[entry["cron"]])
        return moment - (moment - LONGEST_AGO - offset) % period + period

    def add_of_entry(self, entry, moment, job_id, on_conflict):
        """Enqueue a job of a cron entry."""
        raise NotImplementedError

    def is_needed(self, job_id):
        """True if another job needs the result of one."""
        raise NotImplementedError


def shortened(spans: Times) -> tuple[tuple[datetime, datetime], ...]:
    """Return spans of time, the first ones merged if there are too many."""
    while len(spans) > SPANS_KEPT:
        spans = [(spans[0][0], spans[1][1]), *spans[2:]]
    return tuple(spans)
