"""How what a queue returned or raised is compared with what the plain one did."""

from dataclasses import dataclass

from jqueue import Job
from jqueue.domain.rules import QueueSettings, Schedule
from tests.property.plain_values import STALE, Refused

UNDONE = "undone-"
"""Begins the ids of jobs that nobody got to see."""

COMPARED = [name for name in Job.model_fields if name != "sequence"]


def result_of(found, late):
    """What the verb returns: the result of the job that was found; that it is late, if there was none."""
    return Value(found[0]["result"]) if found else late


@dataclass
class Value:
    """Any value that was returned, to be compared as it is."""

    value: object


def only_errors(results):
    """What a call of many operations returns that may fail one by one."""
    return [result for result in results if result is not None]


def new_ids_of(call, outcome):
    """The id that each operation of a call gave to a job, where it returned one."""
    results = outcome if isinstance(outcome, list) and len(outcome) == len(call.operations) else [outcome]
    results = results if len(results) == len(call.operations) else [None] * len(call.operations)
    return [result.id if isinstance(result, Job) else f"{UNDONE}{number}" for number, result in enumerate(results)]


def figures(stats):
    """The figures of an entrypoint, or of all."""
    counts = stats.depth, stats.scheduled, stats.in_progress, stats.dead
    return *counts, stats.oldest_ready_age, stats.completed, stats.paused


def same(expected, actual):
    """Compare what must be returned or raised with what was."""
    if isinstance(expected, Refused):
        assert expected.kind is type(actual), (expected, actual)
        said = {name: without_wording(getattr(actual, name)) for name in expected.said}
        undone = str(expected.said["job_id"]).startswith(UNDONE)  # a job of a call that was undone had its key
        assert expected.said == (said | {"job_id": expected.said["job_id"]} if undone else said)
    elif isinstance(expected, Value):
        assert expected.value == actual
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
    """The error of a job whose claim was revoked is worded as it likes."""
    return STALE if isinstance(said, str) and said.startswith("stale:") else said
