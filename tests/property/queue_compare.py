"""Comparison of the real queue's results and errors with the plain queue's."""

from jqueue import Job
from jqueue.domain.rules import QueueSettings, Schedule
from tests.property.plain_values import STALE, Refused

UNDONE = "undone-"
"""Prefix of the ids of jobs that were never visible."""

COMPARED = [name for name in Job.model_fields if name != "sequence"]


def new_ids_of(call, outcome):
    """Return the id that each operation of a call gave to a job, where it returned one."""
    results = outcome if isinstance(outcome, list) and len(outcome) == len(call.operations) else [outcome]
    results = results if len(results) == len(call.operations) else [None] * len(call.operations)
    return [result.id if isinstance(result, Job) else f"{UNDONE}{number}" for number, result in enumerate(results)]


def figures(stats):
    """Return the figures of an entrypoint, or of all."""
    counts = stats.ready, stats.scheduled, stats.in_progress, stats.dead
    return *counts, stats.oldest_ready_age, stats.completed, stats.paused


def same(expected, actual):
    """Compare the expected result or error with the real one."""
    if isinstance(expected, Refused):
        assert expected.kind is type(actual), (expected, actual)
        said = {name: without_wording(getattr(actual, name)) for name in expected.said}
        undone = str(expected.said["job_id"]).startswith(UNDONE)  # its key belonged to a job of a call that was undone
        assert expected.said == (said | {"job_id": expected.said["job_id"]} if undone else said)
    elif type(expected) is int:  # a count may say more, as that of `redrive` does
        assert isinstance(actual, int), (expected, actual)
        assert expected == actual
    elif isinstance(expected, list):
        assert isinstance(actual, list), (expected, actual)
        assert len(expected) == len(actual), (expected, actual)
        for one, other in zip(expected, actual, strict=True):
            same(one, other)
    elif isinstance(expected, dict) and isinstance(actual, QueueSettings | Schedule):
        assert expected == {name: getattr(actual, name) for name in expected}
    elif isinstance(expected, dict):
        assert isinstance(actual, Job), (expected, actual)
        shown = {name: getattr(actual, name) for name in COMPARED}
        shown["error"] = without_wording(shown["error"])
        assert {name: value for name, value in expected.items() if name != "place"} == {
            name: shown[name] for name in expected if name != "place"
        }
    else:
        assert (type(expected), expected) == (type(actual), actual)


def without_wording(said):
    """Remove the text of the error of a revoked job, which is not promised."""
    return STALE if isinstance(said, str) and said.startswith("stale:") else said
