"""The auditors of the simulation: they accept what is right, and notice what is wrong."""

import asyncio
import json
from collections.abc import Callable

import pytest

from jqueue import BrokerQueue, DirectQueue, Job
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock
from tests.simulation.answers_audit import AnswersAudit
from tests.simulation.chain import read_chain
from tests.simulation.history import Call, Calls, Evidence, History, Record, Recorder, Violation
from tests.simulation.model_audit import ModelAudit
from tests.simulation.network import HonestStore, Network
from tests.simulation.runner import Settings, run_seed
from tests.simulation.schedule import Schedule
from tests.tiny_segments import in_segments

pytestmark = pytest.mark.virtual_time


def urgent(content):
    """Edit the object as a person does: the job gets another priority, and the version keeps its number."""
    edited = json.loads(content)
    edited["jobs"]["j"]["priority"] = -1
    return json.dumps(edited).encode()


class EditedStore(HonestStore):
    """A store whose next read calls `at_read`, if it is set, and answers with what that returns."""

    at_read: Callable[[], tuple[bytes, str | None]] | None = None

    def read(self):
        at_read, self.at_read = self.at_read, None
        return super().read() if at_read is None else at_read()


async def look_beside_an_edit(*, before_the_call):
    """Let a process look at a job that a person edits, and answer it from the version before the edit. Audit it."""
    store, records, edits, history = EditedStore(), list[Record](), [], History()
    network = Network(store, Schedule(0), 0.0)
    queue = DirectQueue(network.client("p", 0.1, abilities=3), clock=VirtualClock())
    queue.observe(Recorder("p", records))

    async def enqueue():
        call = Call("p", "enqueue", job_ids=("j",), given={"priority": 5})
        await history.record(call, queue.enqueue("x", b"", 5, job_id="j"))

    def read():
        if not before_the_call:
            edits.append(asyncio.create_task(network.edit(urgent)))
        return first

    await enqueue()
    first = store.read()
    if before_the_call:
        await network.edit(urgent)
        await asyncio.sleep(1)
    store.at_read = read
    await enqueue()
    assert [None, "p"] == sorted((landing.by for landing in network.landings), key=str)

    evidence = Evidence(read_chain(network.landings), Calls(history.calls), records, {})
    audit = ModelAudit(evidence)
    audit.check()
    AnswersAudit(evidence, audit).check()


async def test_an_answer_may_come_from_the_version_before_an_edit_that_kept_its_number():
    await look_beside_an_edit(before_the_call=False)


async def test_an_answer_from_before_an_edit_that_preceded_its_call_is_noticed():
    with pytest.raises(Violation, match="nothing that was applied for it was current"):
        await look_beside_an_edit(before_the_call=True)


@pytest.mark.parametrize(
    ("add", "attempt"),
    [
        (lambda queue: queue.enqueue("y", b"", job_id="new"), 1),
        (lambda queue: queue.enqueue_many([Enqueue("y", b"", job_id="new")]), 1),
        (lambda queue: queue.dequeue("cron"), 2),
    ],
    ids=["enqueue", "bulk enqueue", "cron entry"],
)
async def test_a_new_job_begins_above_the_attempts_of_a_segment_whose_range_ended_in_its_commit(add, attempt):
    """The model knows the attempts of jobs, and not those by which a range of a segment raises `attempt_floor`."""
    records, history, network = list[Record](), History(), Network(HonestStore(), Schedule(0), 0.0)
    queue = BrokerQueue(network.client("p", 0.1, abilities=3), clock=VirtualClock())
    in_segments(queue, hot_bytes=1000, fewest_rows=2, bulk_jobs=0).observe(Recorder("p", records))

    async def do(work):
        return await history.record(Call("p", "anything"), work)

    async with queue:
        await do(queue.schedule("often", "*/2 * * * * *", "cron"))
        await do(queue.enqueue_many([Enqueue("x", b""), Enqueue("x", b"")]))
        held = await do(queue.claim_lease("x", 2))
        await asyncio.sleep(60)
        busy = asyncio.create_task(do(queue.pause("nothing")))
        await asyncio.sleep(0.01)
        _, added, _ = await asyncio.gather(do(queue.end_lease(held)), do(add(queue)), busy)
    job = added if isinstance(added, Job) else added[0]
    assert job.attempt == attempt
    assert len(records[-1].applied.calls) == 2

    versions = read_chain(network.landings, network.created)
    ModelAudit(Evidence(versions, Calls(history.calls), records, network.created)).check()


async def test_a_parent_leaves_in_the_commit_in_which_the_last_job_that_needs_it_leaves():
    records, history, network = list[Record](), History(), Network(HonestStore(), Schedule(0), 0.0)
    queue = DirectQueue(network.client("p", 0.1, abilities=3), clock=VirtualClock())
    queue.observe(Recorder("p", records))

    async def do(work):
        return await history.record(Call("p", "anything"), work)

    await do(queue.configure(dead_retention=1))
    await do(queue.enqueue("x", b"", job_id="needed"))
    await do(queue.enqueue("y", b"", job_id="cancelled"))
    await do(queue.enqueue("x", b"", job_id="child", after=["needed", "cancelled"]))
    await do(queue.ack((await do(queue.dequeue("x")))[0]))
    await do(queue.cancel("cancelled"))
    await asyncio.sleep(2)
    await do(queue.dequeue("x"))

    versions = read_chain(network.landings)
    assert [{"needed", "child"}, set()] == [{*version.jobs} for version in versions[-2:]]
    ModelAudit(Evidence(versions, Calls(history.calls), records, {})).check()


USUAL = Settings()
SHARED = Settings(rate=0.2, processes=6, shared=1.0)
ACCEPTED = [
    # The model forgot the job in an earlier version than the queue, and so expected another attempt.
    pytest.param(60017813, USUAL, id="an expired job whose row is not loaded does not raise the attempt of reused ids"),
    pytest.param(60019740, USUAL, id="nor does another"),
    # The model removed it earlier in the commit, as a job that had expired.
    pytest.param(70010907, USUAL, id="an expired job whose row is not loaded is purged with the others"),
    # The model took a segment for old that was named a minute ago, whatever the age that the purge asks for.
    pytest.param(7710168, USUAL, id="a purge by age keeps the rows of a segment that was named since"),
    # The auditor took the error for one of the store, which no commit has.
    pytest.param(99410389, USUAL, id="an operation whose object is too old is refused by the commit of the others"),
    pytest.param(70012931, USUAL, id="segments that were staged too long ago may be gone"),
    # A cancel that changed nothing, whose answer was lost, found its job gone when it was sent again.
    pytest.param(8420008, SHARED, id="a batch that changed nothing may be answered anew"),
    # The model fired it: its segment was damaged, and a field other than its times changed in the same commit.
    pytest.param(71003648, USUAL, id="an entry that is set anew and cannot fire stays due"),
    # The model saw them only when the answer of a later call had the job.
    pytest.param(71004437, USUAL, id="a cron job begins above the attempts that its commit forgets"),
]


@pytest.mark.parametrize(("seed", "settings"), ACCEPTED)
def test_what_the_queue_may_do_is_no_violation(seed, settings):
    run_seed(seed, settings)
