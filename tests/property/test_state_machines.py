"""Any calls in any order: a queue does what its plain model does, and with segments what it does without.

The plain model is the documentation as a program. Semantics do not know where a job is.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property import queue_machine, segment_machine

FAST = settings(
    max_examples=5,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
LONG = settings(FAST, max_examples=600, stateful_step_count=60)

machines = pytest.mark.parametrize("machine", [*queue_machine.MACHINES, *segment_machine.MACHINES])


@machines
def test_no_call_has_another_outcome(machine):
    run_state_machine_as_test(machine, settings=FAST)


@pytest.mark.full
@machines
def test_no_call_has_another_outcome_for_long(machine):
    run_state_machine_as_test(machine, settings=LONG)
