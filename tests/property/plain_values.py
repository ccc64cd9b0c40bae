"""What the plain queue is made of: the fields of its jobs, what is refused, and what is kept of an error."""

import json

STALE = "stale"
"""Stands for the error that is kept with a job whose claim was revoked; its wording is not a promise."""


class Refused(Exception):
    """What a call must be refused with: the class of the error, and what it says besides its text."""

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
"""What most fields of a job are when nobody says otherwise."""

AS_ASKED = (
    *("entrypoint", "priority", "max_attempts", "expires_at", "unique_key", "unique_for"),
    *("concurrency_key", "concurrency_limit", "keep_result"),
)
"""What a job has as its enqueue says."""


def ended(job):
    """Since when a job is as it is, for who purges old ones."""
    return job["dead_at"] or job["finished_at"] or job["created_at"]


def kept_text(error):
    """An error as it is kept: as text, at most 2 KiB of it as JSON writes it, and no half letters."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
    while len(json.dumps(text, ensure_ascii=False).encode()) > len('""') + 2048:
        text = text[:-1]
    return text
