"""A state machine that makes any calls in any order, and compares the queue with the plain one after each.

Everything happens in virtual time, on one event loop for each example. All visible state is compared: what a call
returns or raises, the claims, every field of every job, their order, what is remembered of acked jobs and keys, the
figures, and the version: a call that changes nothing must write nothing.
"""

import asyncio
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from jqueue import (
    BrokerQueue,
    DirectQueue,
    InMemoryStorage,
    Job,
    Limits,
    QueueMissingError,
)
from jqueue.testing.virtual_time import EPOCH, VirtualClock, VirtualTimeLoop
from tests.property import queue_calls as calls
from tests.property.plain_program import PlainProgram
from tests.property.plain_queue import PlainQueue
from tests.property.queue_compare import figures, new_ids_of, same

CLAIM_TIMEOUTS: dict[type, float] = {DirectQueue: 40.0, BrokerQueue: 100.0}
NEVER = 1e7
"""Seconds after which claims are stale where they shall not become so."""

who = st.integers(0, 2)
"""The queue object that makes a call, counted around."""


class Draws:
    """UUIDs in order, and no jitter."""

    def __init__(self, name):
        self.maker, self.count = crc32(name.encode()), 0

    def new_id(self):
        self.count += 1
        return str(UUID(int=self.maker << 96 | self.count << 64))  # its first half tells writers and segments apart

    def jitter(self, bound):
        return 0.0


class Call(NamedTuple):
    """One call: operations that are done together, or each for itself."""

    operations: list
    atomic: bool = True

    def run(self, queue):
        """Make the call."""
        return queue.apply(*self.operations) if self.atomic else queue.apply_each(*self.operations)


class QueueMachine(RuleBasedStateMachine):
    """Any calls, in any order, to queue objects that share a store.

    Attributes:
        kinds: the class of each queue object.
        limits: of all queue objects.
        becomes_stale: True if a claim can become stale by the reads of a call. Which calls read first is known only of
            a queue object that is alone.
        is_segmented: True if waiting jobs move to segments in the background. This takes commits of its own, and a job
            that expires there stays until it comes up.
    """

    kinds: ClassVar[tuple[type, ...]] = (DirectQueue, BrokerQueue)
    limits: ClassVar[Limits] = Limits()
    becomes_stale: ClassVar[bool] = True
    is_segmented: ClassVar[bool] = False

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.seen = calls.Seen()
        self.storage = InMemoryStorage(clock=VirtualClock())
        self.opened, self.abandoned, self.turns = 0, [], 0
        self.queues: dict[int, Any] = {}
        self.programs: dict[int, PlainProgram] = {}
        for number in range(len(self.kinds)):
            self.open(number)
        self.plain = PlainQueue()
        self.plain.now = self.now()

    def open(self, number):
        """Open a queue object in this place, as a process does that has just begun."""
        kind = self.kinds[number]
        timeout = CLAIM_TIMEOUTS[kind] if self.becomes_stale else NEVER
        self.opened += 1
        queue = kind(
            self.storage,
            stale_timeout=timeout,
            limits=self.limits,
            clock=VirtualClock(),
            entropy=Draws(f"{kind.__name__}{self.opened}"),
        )
        self.queues[number] = self.runner.run(queue.__aenter__())
        self.programs[number] = PlainProgram(timeout, groups=kind is BrokerQueue)

    def teardown(self):
        for queue in (*self.queues.values(), *self.abandoned):
            self.runner.run(queue.__aexit__(None, None, None))
        self.runner.close()

    def now(self):
        """The time that the queues see."""
        return EPOCH + timedelta(seconds=self.runner.get_loop().time())

    # Rules

    @initialize(jobs=st.lists(calls.enqueues, max_size=4), turns=st.sampled_from([0, 3, 50]))
    def begin(self, jobs, turns):
        self.turns = turns if self.is_segmented else 0
        for asked in jobs:
            self.one(0, asked)

    @rule(who=who, asked=calls.enqueues | calls.dequeues | calls.claims | calls.orders)
    def call(self, who, asked):
        self.one(who, asked)

    @rule(who=who)
    def a_job_dies_and_is_redriven(self, who):
        self.one(who, calls.Asked("nack", {"job": ("job", 0), "dead": True}))
        self.one(who, calls.Asked("redrive"))

    @rule(who=who, closed=st.booleans())
    def another_process_takes_over(self, who, closed):
        """Close a queue object or leave it as a process that was killed, and open another."""
        number = who % len(self.queues)
        if closed:
            self.runner.run(self.queues[number].__aexit__(None, None, None))
        else:
            self.abandoned.append(self.queues[number])
        self.open(number)

    @rule(who=who, asked=calls.limits, jobs=st.lists(calls.enqueues, min_size=1, max_size=3), wanted=calls.dequeues)
    def hold_back(self, who, asked, jobs, wanted):
        """Set a limit where jobs are, and then dequeue them."""
        self.one(who, asked)
        for job in jobs:
            self.one(who, calls.Asked("enqueue", {**job.options, "entrypoint": asked.options["entrypoint"]}))
        self.one(who, wanted)

    @rule(who=who, seconds=calls.waits, asked=calls.dequeues)
    def dequeue_later(self, who, seconds, asked):
        self.time_passes(seconds)
        self.one(who, asked)

    @rule(who=who, many=calls.several, atomic=st.booleans())
    def apply(self, who, many, atomic):
        self.make(who, [Call(self.operations(many), atomic)])

    @rule(who=who, many=st.lists(calls.anything, min_size=2, max_size=4))
    def at_the_same_time(self, who, many):
        self.make(who, [Call(self.operations([asked])) for asked in many])

    @rule(seconds=calls.waits)
    def time_passes(self, seconds):
        self.runner.run(asyncio.sleep(seconds))
        self.plain.now = self.now()

    @rule(who=who, seconds=calls.waits)
    def time_passes_with_reads(self, who, seconds):
        self.time_passes(seconds)
        self.one(who, calls.Asked("ack", {"job": (calls.NOBODY, 0)}))

    @rule(who=who)
    def claims_are_lost_to_others(self, who):
        self.one(who, calls.Asked("requeue_stale", {"timeout": 0}))
        self.one(who + 1, calls.Asked("dequeue", {"batch_size": 100}))

    # Making calls

    def operations(self, many):
        return [self.seen.operation(self.allowed(asked), self.plain.now) for asked in many]

    def allowed(self, asked):
        """Return a call without the options that make what happens depend on more than the plain queue knows."""
        left_out = {"expires_in"} if self.is_segmented else set()
        left_out |= set() if self.becomes_stale else {"claim_timeout"}
        return calls.Asked(asked.verb, {name: each for name, each in asked.options.items() if name not in left_out})

    def one(self, who, asked):
        self.make(who, [Call(self.operations([asked]))])

    def make(self, who, made):
        """Make calls at the same time, and check that each ends as it should."""
        queue, program = self.queues[who % len(self.queues)], self.programs[who % len(self.queues)]

        async def run():
            return await asyncio.gather(*(call.run(queue) for call in made), return_exceptions=True)

        outcomes = self.runner.run(run())
        assert self.plain.now == self.now(), "a call took time"
        new_ids = [new_ids_of(call, outcome) for call, outcome in zip(made, outcomes, strict=True)]
        expected = program.do(self.plain, made, new_ids)
        for wanted, outcome in zip(expected, outcomes, strict=True):
            same(wanted, outcome)
            self.look_at(outcome)
        self.runner.run(self.background())

    async def background(self):
        """Let segments be written."""
        for _ in range(self.turns):
            await asyncio.sleep(0)

    def look_at(self, answer: Any) -> None:
        """Note the jobs that were returned."""
        for each in answer if isinstance(answer, list | tuple) else [answer]:
            if isinstance(each, list | tuple):
                self.look_at(each)
            elif isinstance(each, Job):
                self.seen.note([each], claimed=each.status == "in_progress")

    # Invariants after each call

    @invariant()
    def the_state_is_as_it_should_be(self):
        for queue in self.queues.values():
            state, jobs = self.runner.run(self.read(queue))
            places = sorted(job.sequence for job in jobs)
            assert sorted(set(places)) == places, "two jobs have the same sequence number"
            for job in jobs:
                same(self.plain.find(job.id), job)
            by_place = [job["id"] for job in sorted(self.plain.jobs, key=lambda job: job["place"])]
            assert by_place == [job.id for job in sorted(jobs, key=lambda job: job.sequence)]
            is_written = state.version if self.is_segmented else self.plain.version
            assert is_written == state.version, "the write was needless or is missing"
            assert self.plain.finished == state.finished
            holds = {key: (hold.job_id, hold.until) for key, hold in state.holds.items()}
            assert {key: (job_id, until.timestamp()) for key, (job_id, until) in self.plain.holds.items()} == holds
            assert self.plain.attempt_floor == state.attempt_floor
            self.what_is_decided_is_as_it_should_be(state)

    async def read(self, queue):
        """Return the header with its jobs, and all jobs, in whatever object they are."""
        state = await queue.read_state()
        if not (self.is_segmented and state.version):
            return state, state.jobs
        return state, [job async for job in queue.iterate_jobs()]

    def what_is_decided_is_as_it_should_be(self, state):
        found = {
            name: {"paused": rules.paused, "running": rules.max_running, "rate": rules.rate, "per": rules.per}
            for name, rules in state.entrypoints.items()
        }
        assert self.plain.rules == found
        assert self.plain.settings == {name: getattr(state.settings, name) for name in self.plain.settings}
        assert self.plain.is_critical == ("limits" in state.critical)
        assert set(state.critical) <= ({"limits", "segments"} if self.is_segmented else {"limits"})
        assert self.plain.schedules.keys() == state.schedules.keys()
        for name, entry in self.plain.schedules.items():
            same(entry, state.schedules[name])
        since = {name: self.now().timestamp() - rules["per"] for name, rules in found.items() if rules["rate"]}
        counted = {
            name: sum(span.claims for span in state.recent.get(name, ()) if span.last > began)
            for name, began in since.items()
        }
        assert {name: len(self.plain.counting(name)) for name in since} == counted
        assert state.recent.keys() <= since.keys()

    @invariant()
    def the_figures_are_as_they_should_be(self):
        if not self.plain.version:
            with pytest.raises(QueueMissingError):
                self.runner.run(self.queues[0].stats())
            return
        stats = self.runner.run(self.queues[0].stats())
        assert self.plain.figures() == figures(stats)
        names = {job["entrypoint"] for job in self.plain.jobs}
        names |= {name for name, rules in self.plain.rules.items() if rules["paused"]}
        assert names <= stats.entrypoints.keys()
        for name, each in stats.entrypoints.items():  # entrypoints that had jobs once are there too
            assert self.plain.figures(name) == figures(each)
        content, _ = self.runner.run(self.storage.read())
        assert len(content) == stats.size
        assert self.is_segmented or self.plain.version == stats.version
        assert (0, ()) == (stats.unreadable, stats.warnings)


class DirectMachine(QueueMachine):
    """One direct queue."""

    kinds = (DirectQueue,)


class BrokerMachine(QueueMachine):
    """One broker."""

    kinds = (BrokerQueue,)


class SharedMachine(QueueMachine):
    """A direct queue and a broker on one store, each with its own calls and claims of the other's."""

    becomes_stale = False


class SegmentsMachine(QueueMachine):
    """A direct queue and a broker that move all waiting jobs to segments."""

    limits = Limits(hot_bytes=1)
    becomes_stale = False
    is_segmented = True


MACHINES = [DirectMachine, BrokerMachine, SharedMachine, SegmentsMachine]
