"""The auditor on short chains made by hand: histories so rare that no seed of the present workload has them."""

import pytest

from tests.simulation.auditor import Auditor
from tests.simulation.calls import Calls, Violation
from tests.simulation.chain import QUEUED, Version
from tests.simulation.history import Call


def _job(sequence, **more):
    fields = {"priority": 0, "attempt": 0, "failures": 0, "entrypoint": "a", "payload": "", "status": QUEUED}
    return {**fields, "sequence": sequence, "created_at": "2026-01-01T00:00:03+00:00", **more}


def _audit(*calls):
    versions = [
        Version(0, 4.0, None, 1, {"job": _job(1)}),
        Version(1, 5.0, "one", 2, {"job": _job(2, concurrency_key="key")}, clock=1767225605.0),
    ]
    Auditor(versions, Calls(calls)).check()


def _call(verb, **details):
    return Call("one", verb, started=2.0, ended=5.1, result=1, **details)


def test_a_job_purged_and_enqueued_again_in_one_commit_with_one_time_of_creation_is_another():
    again, purge = _call("enqueue_many", job_ids=("job",)), _call("purge", given={"status": QUEUED, "older_than": 0})
    _audit(again, purge)
    with pytest.raises(Violation, match="vanished while it was queued"):
        _audit(again)
    with pytest.raises(Violation, match="concurrency_key of job changed"):
        _audit(purge)
