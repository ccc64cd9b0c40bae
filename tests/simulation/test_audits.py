"""The auditors of the simulation: they accept what is right, and notice what is wrong."""

import asyncio
import json
from collections.abc import Callable

import pytest

from jqueue import BrokerQueue, DirectQueue, Enqueue, Job
from jqueue.testing.virtual_time import VirtualClock
from tests.simulation.answers_audit import AnswersAudit
from tests.simulation.chain import read_chain
from tests.simulation.history import Call, Calls, Evidence, History, Record, Recorder, Violation
from tests.simulation.model_audit import ModelAudit
from tests.simulation.network import HonestStore, Network
from tests.simulation.runner import Settings, run_seed
from tests.simulation.schedule import Schedule
from tests.tiny_segments import in_segments
from tests.virtual_world import in_virtual_time


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


@in_virtual_time
async def test_an_answer_may_come_from_the_version_before_an_edit_that_kept_its_number():
    await look_beside_an_edit(before_the_call=False)


@in_virtual_time
async def test_an_answer_from_before_an_edit_that_preceded_its_call_is_noticed():
    with pytest.raises(Violation, match="nothing that was applied for it was current"):
        await look_beside_an_edit(before_the_call=True)


@pytest.mark.parametrize("seed", [60017813, 60019740])
def test_an_expired_job_whose_row_is_not_loaded_does_not_raise_the_attempt_of_reused_ids(seed):
    """The model forgot the job in an earlier version than the queue, and so expected another attempt."""
    run_seed(seed)


def test_an_expired_job_whose_row_is_not_loaded_is_purged_with_the_others():
    """The model removed it earlier in the commit, as a job that had expired."""
    run_seed(70010907)


@pytest.mark.parametrize(
    ("add", "attempt"),
    [
        (lambda queue: queue.enqueue("y", b"", job_id="new"), 1),
        (lambda queue: queue.enqueue_many([Enqueue("y", b"", job_id="new")]), 1),
        (lambda queue: queue.dequeue("cron"), 2),
    ],
    ids=["enqueue", "bulk enqueue", "cron entry"],
)
@in_virtual_time
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
        held = await do(queue.claim_range("x", 2))
        await asyncio.sleep(60)
        busy = asyncio.create_task(do(queue.pause("nothing")))
        await asyncio.sleep(0.01)
        _, added, _ = await asyncio.gather(do(queue.end_range(held)), do(add(queue)), busy)
    job = added if isinstance(added, Job) else added[0]
    assert job.attempt == attempt
    assert len(records[-1].applied.calls) == 2

    versions = read_chain(network.landings, network.created)
    ModelAudit(Evidence(versions, Calls(history.calls), records, network.created)).check()


def test_a_purge_by_age_keeps_the_rows_of_a_segment_that_was_named_since():
    """The model took a segment for old that was named a minute ago, whatever the age that the purge asks for."""
    run_seed(7710168)


def test_an_operation_whose_object_was_stored_too_long_ago_is_refused_by_the_commit_of_the_others():
    """The auditor took the error for one of the store, which no commit has."""
    run_seed(99410389)


def test_segments_that_were_staged_too_long_ago_may_be_gone():
    run_seed(70012931)


def test_a_batch_that_changed_nothing_may_be_answered_anew():
    """A cancel that changed nothing, whose answer was lost, found its job gone when it was sent again."""
    run_seed(8420008, Settings(rate=0.2, processes=6, shared=1.0))


def test_an_entry_that_is_set_anew_and_cannot_fire_stays_due():
    """The model fired it: its segment was damaged, and a field other than its times changed in the same commit."""
    run_seed(71003648)


def test_a_cron_job_begins_above_the_attempts_that_its_commit_forgets():
    """The model saw them only when the answer of a later call had the job."""
    run_seed(71004437)
