"""Small runs of the soak (`python -m tests.soak`)."""

import asyncio

import pytest

from tests.object_stores import store_of
from tests.soak.journal import Kind, Verb
from tests.soak.places import FILE, Place, place_of
from tests.soak.run import Settings, Soak


async def run(settings, place):
    soak = Soak(settings, place)
    async with asyncio.timeout(200):
        await soak.run()
    assert soak.ledger.violations == []
    assert soak.ledger.version > 0
    return soak


@pytest.mark.parametrize(
    "segments", [False, pytest.param(True, marks=pytest.mark.wide)], ids=["in the file", "in segments"]
)
async def test_processes_killed_at_random_moments_lose_no_acknowledged_call(tmp_path, segments):
    place = Place(FILE, str(tmp_path / "queue.json"), {}, None)
    soak = await run(Settings(kills=60 if segments else 15, seed=7, segments=segments), place)
    verbs = [Verb.ENQUEUE, Verb.ACK, *([Verb.CANCEL, Verb.CLAIM_RANGE, Verb.END_RANGE] if segments else [])]
    assert all(soak.ledger.kinds[Kind.DONE, verb] for verb in verbs)


@pytest.mark.wide
async def test_processes_with_lost_answers_get_true_outcomes(request):
    settings = Settings(seconds=2.0, processes=2, rate=0.1, seed=7, session=1.0)
    soak = await run(settings, place_of(store_of(request, "gcs_server")))
    assert soak.requests > 0
    assert soak.ledger.kinds[Kind.DONE, Verb.LEAVE] >= 2
