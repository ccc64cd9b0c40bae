"""Values of the plain queue: the fields of its jobs, refusals, and errors as they are kept."""

import json

STALE = "stale"
"""Stands for the error kept with a job whose claim was revoked; its wording is not a promise."""


class Refused(Exception):
    """Refusal that a call must end with: the class of the error, and its attributes besides its text."""

    def __init__(self, kind, **said):
        super().__init__(kind.__name__, said)
        self.kind = kind
        self.said = said


ABSENT = {
    **dict.fromkeys(["heartbeat_at", "max_attempts", "run_at", "expires_at", "unique_key", "unique_for"]),
    **dict.fromkeys(["claim_timeout", "dead_at", "error", "concurrency_key", "concurrency_limit"]),
    **dict.fromkeys(["keep_result", "result", "finished_at"]),
    **{"priority": 0, "attempt": 0, "failures": 0, "cancel_requested": False},
}
"""Default values of most fields of a job."""

AS_ASKED = (
    *("entrypoint", "priority", "max_attempts", "expires_at", "unique_key", "unique_for"),
    *("concurrency_key", "concurrency_limit", "keep_result"),
)
"""Fields of a job that its enqueue sets."""


def ended(job):
    """Time since which a job is in its present state, for a purge of old jobs."""
    return job["dead_at"] or job["finished_at"] or job["created_at"]


def kept_text(error):
    """Return an error as it is kept: text of at most 2 KiB as JSON writes it, and no half characters."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
    while len(json.dumps(text, ensure_ascii=False).encode()) > len('""') + 2048:
        text = text[:-1]
    return text
