"""Values of the plain queue: the fields of its jobs, refusals, and errors as they are kept."""

import json
from datetime import datetime
from typing import Any

JobFields = dict[str, Any]

BLOB_BYTES = 400_000
"""Size limit of the queue in bytes: more than its jobs ever take, and less than an oversized result."""


class _Wording(str):
    """An error kept with a job. Its wording is no promise: it equals any that begins with the same word."""

    __slots__ = ()

    def __eq__(self, other):
        return isinstance(other, str) and other.partition(" ")[0] == self.partition(" ")[0]

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(self.partition(" ")[0])


STALE: str = _Wording("stale: no heartbeat within the claim's timeout")
"""The error of a job whose claim was revoked."""

ORDERED = "stale: the claim was taken back by an operator's order"
"""The error of a job whose claim an operator has revoked."""

DIED, SPARED = "the process of its worker died", "the process of its worker died while it had several jobs"
"""The errors of a job whose worker's process died: the first if it is charged with that, the second if not."""

GONE: str = _Wording("its parent is gone")
"""The error of a job that waited for one which has left the queue."""


class Refused(Exception):
    """Refusal that a call must end with: the class of the error, and its attributes besides its text."""

    def __init__(self, kind, **said):
        super().__init__(kind.__name__, said)
        self.kind = kind
        self.said = said


ABSENT: JobFields = {
    **dict.fromkeys(["heartbeat_at", "max_attempts", "run_at", "expires_at", "unique_key", "unique_for"]),
    **dict.fromkeys(["claim_timeout", "dead_at", "error", "concurrency_key", "concurrency_limit", "fair_key"]),
    **dict.fromkeys(["keep_result", "result", "finished_at", "holder", "claimed_at", "queued_at", "traceback"]),
    **dict.fromkeys(["claim_call", "group", "encoding", "progress"]),
    **dict.fromkeys(["priority", "attempt", "attempts_before", "failures", "error_dropped", "result_dropped"], 0),
    **{"cancel_requested": False, "headers": {}, "errors": (), "steps": ()},
    **{"after": (), "waits_for": (), "on_dead": None, "fair_weight": None},
}
"""Default values of most fields of a job."""

NO_CLAIM: JobFields = dict.fromkeys(["heartbeat_at", "claim_timeout", "holder", "claimed_at", "claim_call"])
"""Fields of a job that nobody works on."""

AS_ASKED = (
    *("entrypoint", "priority", "max_attempts", "expires_at", "unique_key", "unique_for"),
    *("concurrency_key", "concurrency_limit", "fair_key", "keep_result", "group", "encoding", "on_dead"),
    "fair_weight",
)
"""Fields of a job that its enqueue sets."""

ENTRY = (
    *("name", "cron", "timezone", "entrypoint", "payload", "priority", "max_attempts", "headers", "unique_key"),
    *("concurrency_key", "concurrency_limit", "fair_key", "keep_result", "encoding", "fair_weight"),
)
"""Fields of a cron entry that its caller sets."""


def step_of(weight: float | None) -> int:
    """Number of places by which a job stands behind the last one of its fair key."""
    return 1 if weight is None else round(1 / weight)


def is_suspect(job: JobFields) -> bool:
    """True if the last two workers of a job were lost: its process may have no other such job in progress then."""
    last = [text for _, _, text, *_ in job.get("errors", ())[-2:]]
    return len(last) == 2 and all(text.startswith(("stale: no ", DIED)) for text in last)


def process_of(job: JobFields) -> str:
    """The process of a claim's holder."""
    return (job["holder"] or "").rpartition("@")[2]


def ended(job: JobFields) -> datetime:
    """Time since which a job is in its present state, for a purge of old jobs."""
    since: datetime = job["dead_at"] or job["finished_at"] or job["created_at"]
    return since


def kept_text(error: Any, size: int = 2048) -> str:
    """Return an error as it is kept: text of at most 2 KiB as JSON writes it, and no half characters."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    while len(json.dumps(text, ensure_ascii=False).encode()) > len('""') + size:
        text = text[:-1]
    return text
