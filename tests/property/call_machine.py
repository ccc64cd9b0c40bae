"""The rules that state machines have in common: calls of one verb, on any of the queue objects that share a store."""

import asyncio
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from jqueue import Job
from jqueue.operations import Heartbeat
from jqueue.testing.virtual_time import VirtualTimeLoop
from tests.property import queue_calls as calls

who = st.integers(0, 2)
"""The queue object that makes a call, counted around."""


def search(examples: int) -> settings:
    """Return settings to search for a planted fault.

    Args:
        examples: largest number of examples.
    """
    return settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        database=None,
        derandomize=True,  # so that what is found today is found tomorrow
        phases=[Phase.generate],
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )


class CallMachine(RuleBasedStateMachine):
    """Calls in virtual time, on one event loop for each example."""

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.seen = calls.Seen()

    def one(self, who: int, asked: calls.Asked) -> None:
        """Make a call and check its outcome."""
        raise NotImplementedError

    @rule(who=who, asked=calls.dequeues)
    def dequeue(self, who, asked):
        self.one(who, asked)

    @rule(who=who, asked=calls.acks | calls.nacks | calls.heartbeats)
    def end_or_keep_a_claim(self, who, asked):
        self.one(who, asked)

    @rule(who=who, asked=calls.nacks)
    def nack(self, who, asked):
        self.one(who, asked)

    @rule(who=who)
    def a_job_dies_and_is_redriven(self, who):
        self.one(who, calls.Asked("nack", {"job": ("job", 0), "dead": True}))
        self.one(who, calls.Asked("redrive"))

    @rule(who=who, asked=calls.operators)
    def operate(self, who, asked):
        self.one(who, asked)

    @rule(who=who, asked=calls.keepers)
    def decide(self, who, asked):
        self.one(who, asked)

    @rule(who=who, asked=calls.cron_entries)
    def set_cron_entries(self, who, asked):
        self.one(who, asked)

    def look_at(self, answer: Any) -> None:
        """Note the jobs that were returned."""
        for each in answer if isinstance(answer, list | tuple) else [answer]:
            if isinstance(each, list | tuple):
                self.look_at(each)
            elif isinstance(each, Job):
                self.seen.note([each], claimed=each.status == "in_progress")


def single(operation: Any) -> Any:
    """Return an operation that a verb can do: a strict heartbeat has one job."""
    if isinstance(operation, Heartbeat) and not operation.tolerant:
        return Heartbeat(operation.jobs[:1])
    return operation
