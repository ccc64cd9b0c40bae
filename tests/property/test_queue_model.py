"""Any calls in any order: the queue does what the documentation says, in the form of a plain model."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.queue_machine import MACHINES

FAST = settings(
    max_examples=5,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
WIDE = settings(FAST, max_examples=25)
LONG = settings(FAST, max_examples=600, stateful_step_count=60)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_queue_does_what_the_documentation_says(machine):
    run_state_machine_as_test(machine, settings=FAST)


@pytest.mark.wide
@pytest.mark.parametrize("machine", MACHINES)
def test_a_queue_does_what_the_documentation_says_in_more_orders(machine):
    run_state_machine_as_test(machine, settings=WIDE)


@pytest.mark.full
@pytest.mark.parametrize("machine", MACHINES)
def test_a_queue_does_what_the_documentation_says_for_long(machine):
    run_state_machine_as_test(machine, settings=LONG)
