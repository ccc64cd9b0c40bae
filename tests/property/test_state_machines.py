"""Any calls in any order: a queue does what its plain model does, wherever its jobs are.

The plain model is the documentation as a program.
"""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property import queue_machine

FAST = settings(
    max_examples=10,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,  # so that what is found today is found tomorrow
    phases=[Phase.generate],  # the long runs shorten what they find, which takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
LONG = settings(FAST, max_examples=600, stateful_step_count=60, derandomize=False, phases=tuple(Phase), print_blob=True)

machines = pytest.mark.parametrize("machine", queue_machine.MACHINES)


@machines
def test_no_call_has_another_outcome(machine):
    run_state_machine_as_test(machine, settings=FAST)


@pytest.mark.full
@machines
def test_no_call_has_another_outcome_for_long(machine):
    run_state_machine_as_test(machine, settings=LONG)
