"""Small runs of the soak (`python -m tests.soak`)."""

import asyncio

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.operations import Enqueue
from tests.journal import Journal, Journals
from tests.object_stores import store_of
from tests.simulation.answers_audit import OF_MANY_CALLS
from tests.simulation.history import Call
from tests.soak.places import FILE, Place, place_of
from tests.soak.run import Soak
from tests.soak.worker import Settings


async def run(settings, place, folder):
    folder.mkdir()
    soak = Soak(settings, place, folder)
    async with asyncio.timeout(200):
        await soak.run()
    assert soak.violations == []
    assert soak.journals.landed > 0
    return soak


@pytest.fixture
def on_a_file(tmp_path):
    (tmp_path / "queue").mkdir()
    return Place(FILE, str(tmp_path / "queue" / "queue.json"), {}, None)


async def test_the_model_forgets_ended_jobs_when_the_queue_does(tmp_path):
    """The processes of a soak have the usual size limit, and those of the simulation a small one."""
    path, journal = tmp_path / "queue.json", Journal("w1", (written := bytearray()).extend)
    queue = DirectQueue(journal.of(LocalFileSystemStorage(path)))
    queue.observe(journal.recorder)

    async def work():
        await queue.enqueue_many([Enqueue("work")] * 500)
        await queue.ack_many(await queue.dequeue(batch_size=500))

    async with queue:
        await journal.record(Call("w1", OF_MANY_CALLS), work())
    journals = Journals({"w1": bytes(written)})
    journals.check(path.read_bytes())
    assert 3 == journals.landed


@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.full)])
@pytest.mark.wide
async def test_eight_processes_on_one_file_do_each_of_many_jobs_once(tmp_path, on_a_file, seconds):
    soak = await run(Settings(seconds, processes=8, seed=7), on_a_file, tmp_path / "journals")
    assert sum(call.verb == "ack" and call.succeeded for call in soak.journals.calls) > 10 * seconds


@pytest.mark.parametrize(
    "segments", [False, pytest.param(True, marks=pytest.mark.wide)], ids=["in the file", "in segments"]
)
async def test_processes_killed_at_random_moments_lose_no_acknowledged_call(tmp_path, on_a_file, segments):
    soak = await run(Settings(kills=15, seed=7, segments=segments), on_a_file, tmp_path / "journals")
    verbs = {"enqueue_many", "ack", *(["cancel", "claim_lease", "end_lease"] if segments else [])}
    assert verbs <= {call.verb for call in soak.journals.calls if call.succeeded}


@pytest.mark.parametrize(
    "segments", [pytest.param(False, marks=pytest.mark.full), True], ids=["in the file", "in segments"]
)
@pytest.mark.wide
async def test_brokers_and_clients_that_are_stopped_and_killed_do_each_call_once(tmp_path, on_a_file, segments):
    settings = Settings(kills=12, seed=7, segments=segments, session=4.0, shared=True)
    soak = await run(settings, on_a_file, tmp_path / "journals")
    assert soak.journals.seen["batch of a client landed"] > 10


@pytest.mark.wide
async def test_processes_with_lost_answers_get_true_outcomes(request, tmp_path):
    settings = Settings(seconds=2.0, processes=2, rate=0.1, seed=7, session=1.0)
    soak = await run(settings, place_of(store_of(request, "gcs_server")), tmp_path / "journals")
    assert soak.requests > 0


@pytest.mark.wide
async def test_brokers_and_clients_of_a_remote_store_that_are_stopped_and_killed_do_each_call_once(request, tmp_path):
    settings = Settings(kills=12, seed=7, rate=0.03, session=10.0, shared=True)
    soak = await run(settings, place_of(store_of(request, "seaweedfs")), tmp_path / "journals")
    assert soak.journals.seen["batch of a client landed"] > 5
