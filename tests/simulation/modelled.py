"""Versions of the queue in the words of the plain model, to load them into it and to compare them with it."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tests.simulation.chain import Fields, Version, attempt_of, failures_of, status_of
from tests.simulation.plain_groups import COUNTS
from tests.simulation.plain_queue import EXPIRED, PlainQueue
from tests.simulation.plain_rules import NO_LIMITS, NO_RULES, SETTINGS
from tests.simulation.plain_values import ABSENT, ENTRY, JobFields
from tests.simulation.workload import CRONS

TIMES = ("created_at", "run_at", "expires_at", "heartbeat_at", "claimed_at", "queued_at", "dead_at", "finished_at")
CLOCK = 0.002
"""Seconds by which the time of a commit is rounded."""


class Model(PlainQueue):
    """The plain model, with the cron expressions of the simulation.

    Attributes:
        staying: ids of the jobs that may have expired and stay all the same, as no operation has loaded their rows.
        expired: the jobs that have expired in this commit, by id.
    """

    crons = CRONS
    staying: frozenset[str] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.expired: dict[str, JobFields] = {}

    def remove(self, job: JobFields, kind: int) -> None:
        """Remove a job. One that stays is only hidden until the end of the commit: it is not counted as removed."""
        if job["id"] in self.staying:
            del self.table[job["id"]]
            self.hidden = {**self.hidden, job["id"]: job}
            return
        super().remove(job, kind)
        if kind == EXPIRED:
            self.expired = {**self.expired, job["id"]: job}

    def bring_back(self, job_id: str) -> None:
        """Bring back a job that has expired, as its row was not loaded then: another operation will remove it."""
        job = self.table[job_id] = self.expired[job_id]
        self.count_member(job, gone=-1)
        counts = self.counters[job["entrypoint"]]
        self.counters[job["entrypoint"]] = (*counts[:EXPIRED], counts[EXPIRED] - 1, *counts[EXPIRED + 1 :])


class Unsaid(int):
    """The place of a job that a person or jqueue 1.0.0 has added: behind all others. Its number is not known yet."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0


class Shown:
    """Versions as the model would have them. Each job is converted once, as versions share them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Fields, JobFields]] = {}

    def jobs(self, version: Version) -> dict[str, JobFields]:
        """Return the jobs of a version."""
        jobs = {job_id: self._job(job_id, fields) for job_id, fields in version.jobs.items()}
        for job_id, (lease, _) in version.leased.items():
            jobs[job_id] = {**jobs[job_id], "lease": lease}
        return jobs

    def _job(self, job_id: str, fields: Fields) -> JobFields:
        known = self._known.get(id(fields))
        if known is None:
            known = self._known[id(fields)] = fields, job_of(job_id, fields)
        return known[1]


def job_of(job_id: str, fields: Fields) -> JobFields:
    """Return a job in the words of the model."""
    job: JobFields = {**ABSENT, "id": job_id, **fields, "status": status_of(fields), "place": fields.get("sequence")}
    job.pop("sequence", None)
    job |= {name: datetime.fromisoformat(fields[name]) for name in TIMES if fields.get(name)}
    job |= {"attempt": attempt_of(fields), "failures": failures_of(fields), "payload": b64decode(fields["payload"])}
    job["errors"] = tuple(
        (attempt, datetime.fromisoformat(at), text, holder, begun and datetime.fromisoformat(begun))
        for attempt, at, text, holder, begun in job["errors"]
    )
    job["steps"] = tuple((name, number, datetime.fromisoformat(at), said) for name, number, at, said in job["steps"])
    job |= {name: tuple(job[name]) for name in ("after", "waits_for")}
    if job["progress"] is not None:
        *how_far, at = job["progress"]
        job["progress"] = (*how_far, datetime.fromisoformat(at))
    job.setdefault("created_at", None)
    return job


def load(model: Model, version: Version, shown: Shown) -> None:
    """Let the model begin anew with a version that no commit has made."""
    model.table = shown.jobs(version)
    last = max((job["place"] or 0 for job in model.table.values()), default=0)
    for job_id, job in model.table.items():
        if not job["place"]:
            last += 1
            model.table[job_id] = {**job, "place": Unsaid(last)}
        if job["created_at"] is None:
            model.table[job_id] = {**model.table[job_id], "created_at": datetime.fromtimestamp(version.last_clock, UTC)}
    model.places = max(last, version.last_sequence)
    model.attempt_floor = version.attempt_floor
    for name, part in parts_of(version).items():
        setattr(model, name, part)
    model.claims_made = {
        name: tuple((_moment(first), _moment(last), claims) for first, last, claims in spans)
        for name, spans in version.recent.items()
    }
    model.key_claims = {
        (name, key): tuple((_moment(first), _moment(last), claims) for first, last, claims in spans)
        for name, keys in version.recent_keys.items()
        for key, spans in keys.items()
    }
    model.leases = {
        lease_id: {
            "attempt": held["claims"],
            "heartbeat_at": datetime.fromisoformat(held["heartbeat_at"]),
            "rows": {job_id: row for job_id, (name, row) in version.leased.items() if name == lease_id},
            "is_whole": is_whole(held["failures"], held.get("spare")),
        }
        for lease_id, held in version.leases.items()
    }
    model.version = version.number


def first_difference(model: Model, version: Version, shown: Shown) -> str | None:
    """Return the first thing that a version has otherwise than the model; None if they are alike."""
    pairs: dict[str, tuple[Any, Any]] = {
        "jobs": (model.table, shown.jobs(version)),
        "last_sequence": (model.places, version.last_sequence),
        "leases": (
            {lease_id: held["attempt"] for lease_id, held in model.leases.items()},
            {lease_id: held["claims"] for lease_id, held in version.leases.items()},
        ),
    }
    pairs |= {name: (getattr(model, name), part) for name, part in parts_of(version).items()}
    pairs["stopping workers"] = (  # any commit may show a worker, or drop an old record
        {run for run in version.workers if model.is_told(run)},
        {run for run, seen in version.workers.items() if seen.get("stopping")},
    )
    pairs["counters"] = _counted(pairs["counters"][0]), _counted(pairs["counters"][1])
    pairs["holds"] = _living(pairs["holds"][0], version), _living(pairs["holds"][1], version)
    for name, (expected, actual) in pairs.items():
        if expected == actual:
            continue
        if isinstance(expected, dict):
            key = min(key for key in expected.keys() | actual.keys() if expected.get(key) != actual.get(key))
            name, expected, actual = f"{name} {key}", expected.get(key), actual.get(key)
        if isinstance(expected, dict) and isinstance(actual, dict):
            both = expected.keys() | actual.keys()
            fields = sorted(each for each in both if expected.get(each) != actual.get(each))
            expected, actual = ({each: part.get(each) for each in fields} for part in (expected, actual))
        return f"{name}: {actual}, and the model says {expected}"
    return None


def _counted(counters: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Return the counters of the entrypoints to which something has happened: another may stand there with zeros."""
    return {name: tuple(each) for name, each in counters.items() if any(each)}


def is_whole(failures: int, spare: int | None) -> bool:
    """True if a stale lease is given back whole, as none of its jobs can be out of attempts."""
    return spare is None or failures < spare


def parts_of(version: Version) -> dict[str, Any]:
    """Return what the model has under these names, and neither jobs nor leases."""
    return {
        "rules": {entrypoint: {**NO_RULES, **_rules(rules)} for entrypoint, rules in version.entrypoints.items()},
        "settings": {**SETTINGS, "history_payloads": False, **version.settings},
        "schedules": {name: _entry(name, said) for name, said in version.schedules.items()},
        "turns": dict(version.turns),
        "fair": dict(version.fair),
        "transactions": {app: record[0] for app, record in version.transactions.items()},
        "groups": {name: _group(said) for name, said in version.groups.items()},
        "broker": tuple(
            version.broker.get(*part) for part in (("writer", ""), ("url", ""), ("term", 0), ("doubted_at", 0.0))
        ),
        "counters": {name: tuple(counters[0]) for name, counters in version.counters.items()},
        "finished": dict(version.finished),
        "finished_in": dict(zip(version.finished, _each(version.finished_minutes), strict=False)),
        "clients": {client: _batch(record) for client, record in version.clients.items()},
        "clients_evicted": version.clients_evicted,
        "holds": {key: (hold[0], _moment(hold[1])) for key, hold in version.holds.items()},
    }


def _rules(said: Fields) -> Fields:
    """Return the rules of an entrypoint that are given."""
    rules = {{"max_running": "running"}.get(name, name): value for name, value in said.items()}
    return {**rules, "declared": {**NO_LIMITS, **_rules(said["declared"])}} if "declared" in said else rules


def _entry(name: str, said: Fields) -> Fields:
    """Return a cron entry."""
    entry: Fields = {**dict.fromkeys(ENTRY), "priority": 0, "headers": {}, "timezone": "UTC", **said, "name": name}
    entry["payload"] = b64decode(said.get("payload", ""))
    entry["next_at"] = datetime.fromisoformat(said["next_at"])
    entry["fired"] = tuple(tuple(map(datetime.fromisoformat, span)) for span in said.get("fired", ()))
    entry |= {"paused": said.get("paused", False), "declared": None}
    if "declared" in said:
        declared = _entry(name, said["declared"])
        entry["declared"] = {each: declared[each] for each in ENTRY}
    return entry


def _group(said: Fields) -> Fields:
    """Return a group."""
    group = {"closed": False, "cancelled": False, "then": None, "on_end": None, "then_id": None, **said, "later": {}}
    group = {**dict.fromkeys(COUNTS, 0), **group, "ended": bool(said.get("ended_at"))}
    for name in ("then", "on_end"):
        if group[name] is not None:
            job, delay = group[name]
            payload = b64decode(job["payload"])
            group[name] = {"id": job["id"], "entrypoint": job["entrypoint"], "payload": payload, "delay": delay}
    return {name: value for name, value in group.items() if name not in ("opened_at", "ended_at")}


def _batch(record: Fields) -> tuple[tuple[int, str], int, int, dict[str, str]]:
    """Return the last batch of a client: its number and token, its version, and the names of its refusals."""
    refused = {place: refusal["error"] for place, refusal in record.get("refused", {}).items()}
    return (record["sequence"], record["token"]), record["version"], record.get("refusals", 0), refused


def _living(holds: dict[str, tuple[str, datetime]], version: Version) -> Fields:
    """Return the holds that last for some time yet: the time of the commit is rounded, and so are their ends."""
    return {
        key: (job_id, round(until.timestamp(), 3))
        for key, (job_id, until) in holds.items()
        if until.timestamp() > version.clock + CLOCK
    }


def _each(minutes: Sequence[tuple[int, int]]) -> list[int]:
    """Return the minute of each finished job, in the order of their ends."""
    return [minute for minute, number in minutes for _ in range(number)]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
