"""Semantics do not know where a job is: a queue with tiny segments answers as one without segments does."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.segment_machine import MACHINES

FAST = settings(
    max_examples=5,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
WIDE = settings(FAST, max_examples=40)
LONG = settings(FAST, max_examples=800, stateful_step_count=50)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_queue_with_segments_answers_as_one_without(machine):
    run_state_machine_as_test(machine, settings=FAST)


@pytest.mark.wide
@pytest.mark.parametrize("machine", MACHINES)
def test_a_queue_with_segments_answers_as_one_without_in_more_orders(machine):
    run_state_machine_as_test(machine, settings=WIDE)


@pytest.mark.full
@pytest.mark.parametrize("machine", MACHINES)
def test_a_queue_with_segments_answers_as_one_without_for_long(machine):
    run_state_machine_as_test(machine, settings=LONG)
