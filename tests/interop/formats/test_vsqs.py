"""jqueue and the real vsqs 0.3 on one folder."""

import os
from collections import Counter

import pytest

from jqueue import ClaimLostError, JobStatus, connect
from tests.interop.formats.mixed import take_turns
from tests.interop.formats.originals import Original

pytestmark = pytest.mark.wide


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "queue"


@pytest.fixture
def theirs(original, folder):
    with Original("vsqs", original("vsqs"), folder) as theirs:
        yield theirs


def ours(folder):
    return connect(f"vsqs://{folder}", stale_timeout=3600)


async def test_folders_made_by_vsqs_are_read(unpacked):
    folder = unpacked("vsqs-0.3")
    queue = ours(folder / "queue")
    state = await queue.read_state()
    assert Counter({JobStatus.QUEUED: 7, JobStatus.IN_PROGRESS: 1}) == Counter(job.status for job in state.jobs)
    assert {b"", bytes(range(256))} <= {job.payload for job in state.jobs}
    jobs = await queue.dequeue(batch_size=99)
    assert sorted(job.id for job in jobs) == [job.id for job in jobs]
    assert 7 == len(jobs)
    assert {("queue", 2026)} == {(job.entrypoint, job.created_at.year) for job in jobs}
    [expired] = await ours(folder / "expired").dequeue(batch_size=9)
    assert 2 == expired.attempt
    jobs = await ours(folder / "other").dequeue(batch_size=9)
    assert 2 == len(jobs), "one of them was claimed with a fraction of a second, which vsqs cannot read"
    assert 1 == len([name for name in os.listdir(folder / "other") if name.endswith(".new")])


@pytest.mark.parametrize("rounds", [40, pytest.param(600, marks=pytest.mark.full)])
async def test_random_turns_of_both_programs_lose_nothing_and_do_nothing_twice(theirs, folder, rounds):
    await take_turns([ours(folder), ours(folder)], theirs, rounds)
    assert 0 == theirs.size()


async def test_each_program_serves_in_order_and_leaves_claims_of_the_other_alone_until_they_end(theirs, folder):
    queue = ours(folder)
    for number in range(3):
        theirs.add(b"%d" % (2 * number))
        await queue.enqueue("work", b"%d" % (2 * number + 1))
    [first] = await queue.dequeue()
    second, payload = theirs.receive(3600)
    assert (b"0", b"1") == (first.payload, payload)
    third, payload = theirs.receive(0)  # a claim that ends at once
    [again] = await queue.dequeue()
    assert b"2" == payload == again.payload
    theirs.finish(third)  # has no effect: the claim is now jqueue's
    await queue.ack(again)
    await queue.nack(first, charge=False)
    name, payload = theirs.receive(3600)
    assert b"0" == payload
    with pytest.raises(ClaimLostError):
        await queue.ack(first)
    assert [b"3", b"4", b"5"] == [job.payload for job in await queue.dequeue(batch_size=9)]
    theirs.finish(name)
    theirs.finish(second)
    assert 3 == theirs.size()


async def test_vsqs_sees_no_delayed_or_dead_job(theirs, folder):
    queue = ours(folder)
    await queue.enqueue("work", b"later", delay=3600)
    await queue.enqueue("work", b"payload", headers={"large": "x" * 4000})
    [job] = await queue.dequeue()
    await queue.nack(job, dead=True)
    assert [] == theirs.claim(1)
    await queue.redrive(job.id)
    assert b"payload" == theirs.receive(0)[1]
    [job] = await queue.dequeue()
    assert {"large": "x" * 4000} == dict(job.headers)
