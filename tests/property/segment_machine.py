"""A state machine that makes the same calls on a queue with tiny segments and on one without, and compares all.

After each call both answers, the time that it took, and the pictures of both queues must be equal. A row that has
expired may stand until it comes up, so there are two kinds of runs. In a run with expiry dates, expired jobs are left
out of the pictures, and are dropped before calls that would meet one by its id; claims never become stale. In all other
runs claims do, and even the versions and the histories are equal.
"""

import asyncio
from collections import Counter
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from jqueue import JobStatus, ResultTimeoutError
from jqueue.domain.operations import AwaitResult, CreateQueue, Find
from jqueue.domain.operations.amend import Amend
from jqueue.domain.operations.guarded import Guarded, JobAsSeen, JobMatches
from jqueue.domain.operations.lookup import CountQueued
from jqueue.domain.operations.schedules import RunSchedule
from jqueue.domain.selection import Phase, Selection
from jqueue.operations import Cancel, Dequeue, Purge, Reprioritise, Reschedule
from tests.property import queue_calls as calls
from tests.property import segment_worlds as worlds
from tests.property.call_machine import CallMachine, single, who

STALE, NEVER = 40.0, 1e7

sizes = st.fixed_dictionaries(
    {
        "hot_bytes": st.sampled_from([1, 1, 300, 1200]),
        "fewest_rows": st.integers(1, 2),
        "most_rows": st.sampled_from([3, 8, 100]),
        "chunk_rows": st.integers(1, 3),
        "merged": st.integers(2, 3),
        "holes": st.integers(0, 2),
    }
)
loads = st.tuples(st.sampled_from([1, 4, 1000]), st.sampled_from([0, 1, 4, 100]))
clients = st.lists(
    st.tuples(st.sampled_from(["direct", "broker"]), st.none() | st.tuples(sizes, loads)), min_size=1, max_size=2
)
writers = st.tuples(st.sampled_from(["direct", "broker"]), st.tuples(sizes, loads))

large = st.sampled_from([b"large" * 50, b"larger" * 60])
enqueues = st.one_of(
    calls.enqueues,
    calls.enqueues,
    st.builds(
        lambda asked, payload: calls.Asked("enqueue", {**asked.options, "payload": payload}), calls.enqueues, large
    ),
)
plain_enqueues = st.builds(
    lambda name, priority: calls.Asked("enqueue", {"entrypoint": name, "payload": b"p", "priority": priority}),
    calls.entrypoints,
    st.integers(-1, 1),
)
names = calls.entrypoints | st.lists(calls.entrypoints, min_size=1, max_size=3) | st.none()
changes = st.sampled_from(
    [{}, {"priority": 1}, {"unique_key": "k"}, {"concurrency_key": "one"}, {"headers": {"a": "b"}}]
)
selections = st.sampled_from(
    [
        Selection(),
        Selection(phases=frozenset({Phase.READY})),
        Selection(phases=frozenset({Phase.SCHEDULED})),
        Selection(entrypoints=frozenset({"x"})),
        Selection(older_than=3.0),
    ]
)
BY_ID = (Cancel, Find, AwaitResult, Purge, Guarded, CountQueued, Amend, Reschedule, Reprioritise)
"""Operations that can meet a job that has expired."""


class SegmentMachine(CallMachine):
    """Any calls, in any order, on both queues."""

    expiring: ClassVar[bool]

    def __init__(self):
        super().__init__()
        self.loop = self.runner.get_loop()
        self.pair: list[worlds.World] = []
        self.turns, self.segments = 50, 0

    @initialize(
        first=writers, others=clients, turns=st.sampled_from([0, 2, 50, 50]), jobs=st.lists(enqueues, max_size=9)
    )
    def begin(self, first, others, turns, jobs):
        several, self.turns = [first, *others], turns
        timeout = NEVER if self.expiring else STALE
        without = [(kind, None) for kind, _ in several]
        self.pair = [worlds.World(each, worlds.LIMITS, timeout) for each in (without, several)]
        for world in self.pair:
            self.runner.run(world.open())
        self.call(0, lambda queue: queue.apply(CreateQueue()))  # a look needs a queue
        for asked in jobs:
            self.one(0, asked)

    def teardown(self):
        try:
            if self.pair:
                self.histories_are_equal()
            for world in self.pair:
                self.runner.run(world.close())
        finally:
            self.runner.close()

    def now(self):
        return worlds.moment(self.loop)

    # Rules

    @rule(who=who, asked=enqueues)
    def enqueue(self, who, asked):
        self.one(who, asked)

    @rule(who=who, many=st.lists(plain_enqueues | enqueues, min_size=1, max_size=7))
    def enqueue_many(self, who, many):
        operations = self.operations(many)
        self.call(who, lambda queue: queue.enqueue_many(operations), operations)

    @rule(who=who, many=st.lists(plain_enqueues, min_size=1, max_size=7))
    def enqueue_one_by_one(self, who, many):
        for asked in many:
            self.one(who, asked)

    @rule(who=who, name=names, number=st.integers(1, 3), back=st.integers(0, 12), holder=st.sampled_from([None, "me"]))
    def dequeue_through(self, who, name, number, back, holder):
        [state] = self.runner.run(self.looks(self.pair[:1]))
        through = max(0, state.last_sequence - back)
        operation = Dequeue(name, batch_size=number, through=through, holder=holder)
        self.call(who, lambda queue: queue.apply(operation))

    @rule(who=who, name=names, seconds=calls.waits, other=st.none() | enqueues, later=calls.waits)
    def wait_for_a_job(self, who, name, seconds, other, later):
        """A dequeue that waits, and perhaps an enqueue by another client meanwhile."""
        operations = self.operations([other]) if other is not None else []
        if self.expiring:  # the intervals between two polls depend on commits, which an expired row does not need
            seconds = 0

        async def run(world):
            async def add():
                await asyncio.sleep(later + 0.01)  # not at the moment at which a job is due: either may be first then
                queue = world.queues[(who + 1) % len(world.queues)]
                return [await outcome(calls.by_verb(queue, each)) for each in operations]

            wait = outcome(world.queues[who % len(world.queues)].dequeue(name, wait=seconds))
            return await asyncio.gather(wait, add())

        self.compare(run)

    @rule(who=who, asked=calls.limits, wanted=calls.dequeues)
    def hold_back(self, who, asked, wanted):
        self.one(who, asked)
        self.one(who, wanted)

    @rule(who=who, job_id=calls.ids | calls.recent)
    def look_for_a_job(self, who, job_id):
        wanted = self.seen.job_id(job_id)
        self.call(who, lambda queue: queue.find(wanted), [Find(wanted)])
        self.call(who, lambda queue: queue.result(wanted, timeout=0), [AwaitResult(wanted)])

    @rule(who=who, name=names, number=st.integers(1, 5))
    def peek(self, who, name, number):
        self.call(who, lambda queue: queue.peek(name, batch_size=number))

    @rule(who=who)
    def count(self, who):
        self.call(who, lambda queue: queue.apply(CountQueued()), [CountQueued()])

    @rule(who=who, job_id=calls.ids | calls.recent, options=changes, payload=st.sampled_from([None, b"other"]))
    def amend(self, who, job_id, options, payload):
        operation = Amend(self.seen.job_id(job_id), options, payload)
        self.call(who, lambda queue: queue.apply(operation), [operation])

    @rule(who=who, job_id=calls.ids | calls.recent, status=st.sampled_from([JobStatus.QUEUED, JobStatus.DEAD]))
    def purge_one(self, who, job_id, status):
        operation = Purge(status, job_id=self.seen.job_id(job_id))
        self.call(who, lambda queue: queue.apply(operation), [operation])

    @rule(who=who, name=st.sampled_from("mn"))
    def run_now(self, who, name):
        self.call(who, lambda queue: queue.apply(RunSchedule(name)))

    @rule(who=who, job_id=calls.ids | calls.recent, selection=selections, asked=calls.operators)
    def act_if_it_matches(self, who, job_id, selection, asked):
        operation = Guarded(JobMatches(self.seen.job_id(job_id), selection), self.operations([asked])[0])
        self.call(who, lambda queue: queue.apply_each(operation), [operation])

    @rule(who=who, number=st.integers(0, 20), wait=calls.waits, asked=calls.operators)
    def act_if_it_is_as_seen(self, who, number, wait, asked):
        jobs = self.runner.run(self.all_jobs())
        if jobs:
            self.time_passes(wait)
            operation = Guarded(JobAsSeen(jobs[number % len(jobs)]), self.operations([asked])[0])
            self.call(who, lambda queue: queue.apply_each(operation), [operation])

    @rule(who=who, many=st.lists(calls.anything, min_size=1, max_size=4))
    def apply_each(self, who, many):
        operations = self.operations(many)
        self.call(who, lambda queue: queue.apply_each(*operations), operations)

    @rule(who=who, many=st.lists(calls.anything, min_size=1, max_size=4))
    def apply(self, who, many):
        operations = self.operations(many)
        self.call(who, lambda queue: queue.apply(*operations), operations)

    @rule(who=who, many=st.lists(calls.anything, min_size=2, max_size=4))
    def at_the_same_time(self, who, many):
        operations = self.operations(many)
        self.expired_jobs_leave(who, operations)

        async def run(world):
            queue = world.queues[who % len(world.queues)]
            return await asyncio.gather(*(outcome(calls.by_verb(queue, single(each))) for each in operations))

        self.compare(run)

    @rule(seconds=calls.waits)
    def time_passes(self, seconds):
        self.runner.run(asyncio.sleep(seconds))

    @rule(turns=st.sampled_from([0, 1, 5, 50]))
    def the_background_goes_on(self, turns):
        self.runner.run(worlds.background(turns))

    @rule(who=who)
    def reopen(self, who):
        for world in self.pair:
            self.runner.run(world.reopen(who % len(world.queues)))

    @rule(kept=st.sampled_from([100, 1000, None]))
    def keep_a_history(self, kept):
        self.call(0, lambda queue: queue.configure(history=kept, history_payloads=True))

    @rule(who=who, seconds=calls.waits)
    def claims_are_lost_to_others(self, who, seconds):
        self.one(who, calls.Asked("requeue_stale", {"timeout": seconds}))
        self.one(who + 1, calls.Asked("dequeue", {"batch_size": 3}))

    # Making calls

    def operations(self, many):
        return [self.seen.operation(self.allowed(asked), self.now()) for asked in many]

    def allowed(self, asked):
        """Return a call without the expiry date, or with claims that last, by the kind of the run."""
        left_out = "claim_timeout" if self.expiring else "expires_in"
        return calls.Asked(asked.verb, {name: each for name, each in asked.options.items() if name != left_out})

    def one(self, who, asked):
        [operation] = self.operations([asked])
        self.call(who, lambda queue: calls.by_verb(queue, single(operation)), [operation])

    def call(self, who, make, operations=()):
        """Make a call on both queues, and compare its answers."""
        self.expired_jobs_leave(who, operations)
        self.compare(lambda world: outcome(make(world.queues[who % len(world.queues)])))

    def expired_jobs_leave(self, who, operations):
        """Drop expired jobs before operations that could meet one by its id."""
        if self.expiring and any(isinstance(each, BY_ID) or getattr(each, "job_id", None) for each in operations):
            for world in self.pair:
                self.runner.run(world.bring_up(who % len(world.queues)))

    def compare(self, run):
        async def both():
            async def timed(world):
                return await run(world), self.loop.time()

            return await asyncio.gather(*map(timed, self.pair))

        [(expected, at), (actual, then)] = self.runner.run(both())
        one, other = worlds.told(expected), worlds.told(actual)
        assert one == other, differences(one, other)
        assert at == then, "the call took another time"
        self.look_at(expected)
        self.runner.run(worlds.background(self.turns))

    async def looks(self, pair):
        return [await world.queues[0].read_state() for world in pair]

    async def all_jobs(self):
        now = self.now()
        return [job async for job in self.pair[0].queues[0].iterate_jobs() if not worlds.is_expired(job, now)]

    # Invariants after each call

    @invariant()
    def the_pictures_are_equal(self):
        if not self.pair:
            return
        now = self.now()
        (one, version, gone), (other, other_version, standing) = [
            self.runner.run(worlds.picture(world, now)) for world in self.pair
        ]
        if standing:  # an expired row is counted until it comes up
            for name, figures in other["figures"].items():
                surplus = figures["ready"] - one["figures"][name]["ready"]
                assert 0 <= surplus <= (standing[name] if name else standing.total())
        if standing or gone:
            for seen in (one, other):
                del seen["figures"], seen["attempt_floor"]
        assert one == other, differences(one, other)
        assert self.expiring or version == other_version

    @invariant()
    def the_manifest_tells_the_truth(self):
        if self.pair:
            self.segments += self.runner.run(worlds.check_manifest(self.pair[1]))

    def histories_are_equal(self):
        async def read(world):
            return [event async for event in world.queues[0].history()]

        one, other = [self.runner.run(read(world)) for world in self.pair]
        assert _purged(one) == _purged(other)
        one, other = [
            sorted(
                (event.at, event.verb, str(event.job_id), str(event.after), event.attempt)
                for event in events
                if event.verb != "expire" and not _is_of_waiting(event)
            )
            for events in (one, other)
        ]
        assert one == other


class ExpiringMachine(SegmentMachine):
    """Jobs may have expiry dates, and no claim becomes stale."""

    expiring = True


class StaleMachine(SegmentMachine):
    """Claims become stale, and no job has an expiry date."""

    expiring = False


MACHINES = [ExpiringMachine, StaleMachine]


def _is_of_waiting(event):
    """Return True if an event is a purge of waiting jobs, which may be one event for all rows of a segment."""
    return event.verb == "purge" and event.before is JobStatus.QUEUED


def _purged(events):
    """Return the number of waiting jobs that were purged, by time and entrypoint."""
    found: Counter[Any] = Counter()
    for event in filter(_is_of_waiting, events):
        found[event.at, event.entrypoint] += event.jobs
    return found


def differences(one, other, path=""):
    """Return the places at which two pictures differ, with both values."""
    if isinstance(one, list) and isinstance(other, list):
        one, other = ({_name(each, place): each for place, each in enumerate(several)} for several in (one, other))
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [(path, one, other)]
    names = dict.fromkeys((*one, *other))
    return [each for name in names for each in differences(one.get(name), other.get(name), f"{path}/{name}")]


def _name(each, place):
    return each.get("id", place) if isinstance(each, dict) else place


async def outcome(call):
    """Return the result of a call, or its error."""
    try:
        return await call
    except (ResultTimeoutError, Exception) as error:
        return error
