"""Calls as Hypothesis draws them, before they are made: the operation, and which of the jobs seen so far.

A drawn call names jobs by how recently they were seen ("the last claim but two"), and times by how far off they are,
so that it means something in whatever state it is made, and a failing example shrinks to few and small numbers.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from jqueue import JobStatus
from jqueue.domain.operations.lookups import AwaitResult
from jqueue.operations import (
    Ack,
    Cancel,
    Configure,
    Dequeue,
    Enqueue,
    Heartbeat,
    Nack,
    Pause,
    Purge,
    Redrive,
    Reprioritise,
    RequeueStale,
    Reschedule,
    Resume,
    SetLimits,
    SetSchedule,
    Unschedule,
)
from tests.property.plain_rules import CRONS

NOBODY = "nobody"
"""An id that no job has."""


@dataclass(frozen=True)
class Asked:
    """One operation as drawn."""

    verb: str
    options: dict[str, Any] = field(default_factory=dict)


entrypoints = st.sampled_from(["x", "y", "z"])
ids = st.sampled_from(["a", "b", "c", "d"])
waits = st.sampled_from([0, 0.25, 1, 3, 10, 40, 100])
"""Seconds, each a whole number of quarters: sums are exact, so events fall due at the very same moment."""

recent = st.integers(0, 4)
"""Number of jobs seen since the one meant."""

references = st.tuples(st.sampled_from(["job", "job", "job", "claim", "id", "id", NOBODY]), recent)
errors = st.sampled_from(["it failed", ValueError("no such image"), TimeoutError(), "é" * 1500, "a" + "é" * 1500])
enqueues = st.fixed_dictionaries(
    {"entrypoint": entrypoints, "payload": st.sampled_from([b"", b"payload", bytearray(b"\x00\xff")])},
    optional={
        "priority": st.integers(-1, 1),
        "job_id": ids,
        "delay": waits,
        "run_in": waits.map(lambda seconds: seconds - 10),
        "expires_in": waits.map(lambda seconds: seconds - 1),
        "max_attempts": st.integers(1, 2),
        "headers": st.dictionaries(ids, st.sampled_from(["", "text\n"]), max_size=2),
        "unique_key": st.sampled_from(["k", "l"]),
        "unique_for": waits,
        "on_conflict": st.sampled_from(["return", "raise", "replace"]),
        "concurrency_key": st.sampled_from(["one", "two"]),
        "concurrency_limit": st.integers(1, 2),
        "keep_result": waits,
    },
).map(lambda options: Asked("enqueue", options))
dequeues = st.fixed_dictionaries(
    {"batch_size": st.sampled_from([1, 1, 2, 3, 100, 0])},
    optional={
        "entrypoint": entrypoints | st.lists(entrypoints, min_size=1, max_size=3),
        "claim_timeout": waits,
    },
).map(lambda options: Asked("dequeue", options))
results = st.sampled_from([None, 7, "text", {"a": [1, 2.5]}, (1, (2,)), False])
acks = st.fixed_dictionaries({"job": references}, optional={"result": results}).map(
    lambda options: Asked("ack", options)
)
fates: st.SearchStrategy[dict[str, Any]] = (
    st.just({})
    | st.just({"dead": True})
    | st.just({"charge": False})
    | st.fixed_dictionaries({}, optional={"delay": waits, "error": errors})
    | st.fixed_dictionaries({"charge": st.just(False)}, optional={"delay": waits, "error": errors})
)
nacks = st.builds(lambda job, fate: Asked("nack", {"job": job, **fate}), references, fates)
heartbeats = st.fixed_dictionaries(
    {"jobs": st.lists(references, min_size=1, max_size=3), "tolerant": st.booleans()}
).map(lambda options: Asked("heartbeat", options))
operators = st.one_of(
    st.fixed_dictionaries({"job_id": ids | recent}, optional={"running": st.booleans()}).map(
        lambda options: Asked("cancel", options)
    ),
    st.fixed_dictionaries({"job_id": ids | recent, "delay": waits}).map(lambda options: Asked("reschedule", options)),
    st.fixed_dictionaries({"job_id": ids | recent, "run_in": waits.map(lambda seconds: seconds - 10)}).map(
        lambda options: Asked("reschedule", options)
    ),
    st.fixed_dictionaries({"job_id": ids | recent, "priority": st.integers(-1, 1)}).map(
        lambda options: Asked("reprioritise", options)
    ),
    st.sampled_from([Asked("redrive"), *(Asked("redrive", {"entrypoint": name}) for name in "xyz")]),
    st.fixed_dictionaries({"job_id": ids | recent}).map(lambda options: Asked("redrive", options)),
    st.fixed_dictionaries(
        {"status": st.sampled_from([JobStatus.DEAD, JobStatus.QUEUED, JobStatus.COMPLETED])},
        optional={"entrypoint": entrypoints, "older_than": waits},
    ).map(lambda options: Asked("purge", options)),
    st.fixed_dictionaries({"timeout": waits}).map(lambda options: Asked("requeue_stale", options)),
)
ceilings = st.none() | st.integers(1, 2)
rates: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.fixed_dictionaries(
    {"rate": st.integers(1, 3), "per": st.sampled_from([1, 3, 10])}
)
"""Windows so short that each quarter of a second is counted separately."""

limits = st.builds(
    lambda name, running, rate: Asked("limit", {"entrypoint": name, "running": running, **rate}),
    entrypoints,
    ceilings,
    rates,
)
keepers = st.one_of(
    limits,
    limits,
    st.builds(lambda name: Asked("pause", {"entrypoint": name}), entrypoints),
    st.builds(lambda name: Asked("resume", {"entrypoint": name}), entrypoints),
    st.fixed_dictionaries(
        {},
        optional={
            "dead_retention": st.none() | waits,
            "blob_bytes": st.sampled_from([None, 10_000_000]),
        },
    ).map(lambda options: Asked("configure", options)),
    st.fixed_dictionaries({"name": st.just("m"), "cron": st.sampled_from([*CRONS]), "entrypoint": entrypoints}).map(
        lambda options: Asked("schedule", options)
    ),
)
"""Operations for many jobs at once."""

cron_entries = st.fixed_dictionaries(
    {"name": st.sampled_from("mn"), "cron": st.sampled_from([*CRONS]), "entrypoint": entrypoints},
    optional={"keep_result": waits, "concurrency_key": st.sampled_from(["one", "two"])},
).map(lambda options: Asked("schedule", options)) | st.sampled_from("mn").map(
    lambda name: Asked("unschedule", {"name": name})
)
looks = st.fixed_dictionaries({"job_id": ids | recent}).map(lambda options: Asked("result", options))
claims = acks | nacks | heartbeats
orders = operators | keepers | cron_entries | looks
anything = st.one_of(enqueues, dequeues, acks, nacks, heartbeats, operators, keepers)
several = st.one_of(*(st.lists(each, min_size=1, max_size=4) for each in (anything, anything, enqueues, acks, nacks)))


class Seen:
    """The claims and jobs that the callers have seen so far."""

    def __init__(self):
        self.claims = []
        self.ids = []

    def note(self, jobs, *, claimed):
        """Note the jobs that were returned."""
        if claimed:
            self.claims += jobs
        self.ids += [job.id for job in jobs if job.id not in self.ids]

    def job_id(self, which):
        """Return an id unchanged, or the id of a job by how recently it was first seen."""
        return which if isinstance(which, str) else self.ids[-1 - which % len(self.ids)] if self.ids else NOBODY

    def reference(self, drawn):
        """Return a claim in a form that callers may use."""
        kind, back = drawn
        if kind == NOBODY or not self.claims:
            return self.job_id(back) if kind == "job" else NOBODY
        job = self.claims[-1 - back % len(self.claims)]
        return {"job": job, "claim": job.claim, "id": job.id}[kind]

    def operation(self, asked, now):
        """Return the operation that was asked for, as a value of the public API."""
        options = dict(asked.options)
        match asked.verb:
            case "enqueue":
                if "unique_key" not in options:
                    options.pop("unique_for", None)
                if "concurrency_key" not in options:
                    options.pop("concurrency_limit", None)
                if "run_in" in options:
                    seconds = options.pop("run_in")
                    options |= {} if "delay" in options else {"run_at": now + timedelta(seconds=seconds)}
                if "expires_in" in options:
                    options["expires_at"] = now + timedelta(seconds=options.pop("expires_in"))
                return Enqueue(**options)
            case "dequeue":
                return Dequeue(options.pop("entrypoint", None), **options)
            case "ack":
                return Ack(self.reference(options["job"]), options.get("result"))
            case "nack":
                return Nack(self.reference(options.pop("job")), **options)
            case "heartbeat":
                references = tuple(self.reference(drawn) for drawn in options["jobs"])
                return Heartbeat(references, tolerant=options["tolerant"])
            case "cancel":
                return Cancel(self.job_id(options["job_id"]), options.get("running", False))
            case "reschedule":
                if "run_in" in options:
                    options["run_at"] = now + timedelta(seconds=options.pop("run_in"))
                return Reschedule(self.job_id(options.pop("job_id")), **options)
            case "reprioritise":
                return Reprioritise(self.job_id(options["job_id"]), options["priority"])
            case "result":
                return AwaitResult(self.job_id(options["job_id"]))
            case "redrive":
                job_id = options.get("job_id")
                return Redrive(None if job_id is None else self.job_id(job_id), options.get("entrypoint"))
            case "purge":
                return Purge(**options)
            case "requeue_stale":
                return RequeueStale(**options)
        return DECISIONS[asked.verb](**options)


DECISIONS: dict[str, type[Any]] = {
    "limit": SetLimits,
    "pause": Pause,
    "resume": Resume,
    "configure": Configure,
    "schedule": SetSchedule,
    "unschedule": Unschedule,
}
