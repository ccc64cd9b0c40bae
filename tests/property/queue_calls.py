"""Calls as Hypothesis draws them, before they are made: what is asked for, and of which of the jobs seen so far.

A drawn call names jobs by how recently they were seen ("the last claim but two"), and times by how far off they are,
so that it means something in whatever state it is made, and a failing example shrinks to few and small numbers.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from jqueue import Ack, Cancel, Dequeue, Enqueue, Heartbeat, JobStatus, Nack, Purge, Redrive, RequeueStale

NOBODY = "nobody"
"""An id that no job has."""

ENQUEUE_OPTIONS = (
    "job_id",
    "delay",
    "run_at",
    "expires_at",
    "max_attempts",
    "headers",
    "unique_key",
    "unique_for",
    "on_conflict",
)


@dataclass(frozen=True)
class Asked:
    """One operation, as drawn."""

    verb: str
    options: dict[str, Any] = field(default_factory=dict)


entrypoints = st.sampled_from(["x", "y", "z"])
ids = st.sampled_from(["a", "b", "c", "d"])
waits = st.sampled_from([0, 0.25, 1, 3, 10, 40, 100])
"""Seconds, each a whole number of quarters: the sums are exact, and things fall due in the very same moment."""

recent = st.integers(0, 4)
"""How many others were seen since."""

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
    },
).map(lambda options: Asked("enqueue", options))
dequeues = st.fixed_dictionaries(
    {"batch_size": st.sampled_from([1, 1, 2, 3, 100, 0])},
    optional={
        "entrypoint": entrypoints | st.lists(entrypoints, min_size=1, max_size=3),
        "claim_timeout": waits,
    },
).map(lambda options: Asked("dequeue", options))
acks = st.fixed_dictionaries({"job": references}).map(lambda options: Asked("ack", options))
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
    st.fixed_dictionaries({"job_id": ids | recent}).map(lambda options: Asked("cancel", options)),
    st.sampled_from([Asked("redrive"), *(Asked("redrive", {"entrypoint": name}) for name in "xyz")]),
    st.fixed_dictionaries({"job_id": ids | recent}).map(lambda options: Asked("redrive", options)),
    st.fixed_dictionaries(
        {"status": st.sampled_from([JobStatus.DEAD, JobStatus.QUEUED])},
        optional={"entrypoint": entrypoints, "older_than": waits},
    ).map(lambda options: Asked("purge", options)),
    st.fixed_dictionaries({"timeout": waits}).map(lambda options: Asked("requeue_stale", options)),
)
anything = st.one_of(enqueues, dequeues, acks, nacks, heartbeats, operators)


class Seen:
    """The claims and the jobs that were seen so far, by whoever makes the calls."""

    def __init__(self):
        self.claims = []
        self.ids = []

    def note(self, jobs, *, claimed):
        """Jobs were returned."""
        if claimed:
            self.claims += jobs
        self.ids += [job.id for job in jobs if job.id not in self.ids]

    def job_id(self, which):
        """An id as it is, or that of a job by how recently it was first seen."""
        return which if isinstance(which, str) else self.ids[-1 - which % len(self.ids)] if self.ids else NOBODY

    def reference(self, drawn):
        """A claim as callers may name it."""
        kind, back = drawn
        if kind == NOBODY or not self.claims:
            return self.job_id(back) if kind == "job" else NOBODY
        job = self.claims[-1 - back % len(self.claims)]
        return {"job": job, "claim": job.claim, "id": job.id}[kind]

    def operation(self, asked, now):
        """The operation that was asked for, as a value of the public API."""
        options = dict(asked.options)
        match asked.verb:
            case "enqueue":
                if "unique_key" not in options:
                    options.pop("unique_for", None)
                if "run_in" in options:
                    seconds = options.pop("run_in")
                    options |= {} if "delay" in options else {"run_at": now + timedelta(seconds=seconds)}
                if "expires_in" in options:
                    options["expires_at"] = now + timedelta(seconds=options.pop("expires_in"))
                return Enqueue(**options)
            case "dequeue":
                return Dequeue(options.pop("entrypoint", None), **options)
            case "ack":
                return Ack(self.reference(options["job"]))
            case "nack":
                return Nack(self.reference(options.pop("job")), **options)
            case "heartbeat":
                references = tuple(self.reference(drawn) for drawn in options["jobs"])
                return Heartbeat(references, tolerant=options["tolerant"])
            case "cancel":
                return Cancel(self.job_id(options["job_id"]))
            case "redrive":
                job_id = options.get("job_id")
                return Redrive(None if job_id is None else self.job_id(job_id), options.get("entrypoint"))
            case "purge":
                return Purge(**options)
            case "requeue_stale":
                return RequeueStale(**options)
        raise AssertionError(asked)


async def by_verb(queue, operation):
    """Do what an operation says by the verb for it."""
    match operation:
        case Enqueue(entrypoint, payload, priority):
            options = {name: getattr(operation, name) for name in ENQUEUE_OPTIONS}
            return await queue.enqueue(entrypoint, payload, priority, **options)
        case Dequeue(names, batch_size=size, claim_timeout=timeout):
            return await queue.dequeue(names, batch_size=size, claim_timeout=timeout)
        case Ack(job):
            return await queue.ack(job)
        case Nack(job, delay, error, dead, charge):
            return await queue.nack(job, delay=delay, error=error, dead=dead, charge=charge)
        case Heartbeat(jobs, tolerant):
            return await (queue.heartbeat_many(jobs) if tolerant else queue.heartbeat(jobs[0]))
        case Cancel(job_id):
            return await queue.cancel(job_id)
        case Redrive(job_id, entrypoint):
            return await queue.redrive(job_id, entrypoint=entrypoint)
        case Purge(status, entrypoint, older_than):
            return await queue.purge(status=status, entrypoint=entrypoint, older_than=older_than)
        case RequeueStale(timeout):
            return await queue.requeue_stale(timeout)
    raise AssertionError(operation)
