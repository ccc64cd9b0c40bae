"""Work with segments, killed at each of its system calls, in a process of its own, since the tool forks."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from tests.kill.ledger import ViolationError
from tests.kill.segment_kills import JOBS, NAMES, enqueue, in_one_segment
from tests.kill.tiny_segments import IDLE, with_segments
from tests.kill.whole_queue import Place, folder_of, read_whole

ROOT = Path(__file__).parents[2]
SECONDS = 1200
UNAVAILABLE = 2


def _run(*arguments):
    command = [sys.executable, "-m", "tests.kill.segment_kills", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    if result.returncode == UNAVAILABLE:
        pytest.skip(result.stderr.strip())
    return result


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--every", "24"], marks=pytest.mark.wide),
        pytest.param(["--both"], marks=pytest.mark.full),
    ],
    ids=" ".join,
)
def test_segments_killed_at_any_system_call_have_each_job_in_one_place(arguments):
    result = _run(*arguments)
    assert 0 == result.returncode, result.stderr
    for line in result.stdout.splitlines():
        [(kills, done)] = re.findall(r"(\d+) kills, and it was done after (\d+)", line)
        assert 0 < int(done) < int(kills)


@pytest.mark.wide
def test_a_segment_that_is_named_before_it_is_there_is_found():
    result = _run("--case", "spill", "--hasty")
    assert 1 == result.returncode, result.stdout
    assert re.search(r"VIOLATION: spill, killed at .* is in the manifest, and is missing", result.stderr)


def _queue_with_every_place(file):
    """Make a queue with jobs in the file, in segments, and in a range."""

    async def make():
        queue = DirectQueue(LocalFileSystemStorage(file))
        await in_one_segment(queue)
        claim = await queue.claim_range("t", 4)
        assert claim is not None
        assert 4 == claim.rows
        await enqueue(with_segments(queue, IDLE), "hot")

    asyncio.run(make())


def _jobs(file):
    whole = read_whole(file)
    assert whole is not None
    return whole.jobs


def test_a_queue_is_decoded_with_the_place_of_each_job(tmp_path):
    _queue_with_every_place(tmp_path / "queue.json")
    jobs = _jobs(tmp_path / "queue.json")
    assert dict.fromkeys(NAMES[:4], Place.RANGE) | dict.fromkeys(NAMES[4:], Place.ROW) | {"hot": Place.LINE} == {
        job.id: job.place for job in jobs
    }
    assert [job.id for job in sorted(jobs, key=lambda job: job.sequence)] == [*NAMES, "hot"]
    assert JOBS + 1 == len(jobs)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda file, segment: segment.unlink(), "is missing"),
        (lambda file, segment: segment.write_bytes(segment.read_bytes()[:-1]), "bytes is wrong"),
        (lambda file, segment: _replace(segment, b"\x029\x03", b"\x028\x03"), "index|chunks|order"),
        (lambda file, segment: _replace(file, b'"hot": ', b'"old-7": '), "old-7 is in two places"),
        (lambda file, segment: _replace(file, b'"next": 4', b'"next": 3'), "comes before its head"),
        (lambda file, segment: _replace(file, b'"next": 4', b'"next": 9'), None),
    ],
    ids=["missing", "short", "changed", "double", "waits in a range", "all taken"],
)
def test_damage_that_a_kill_could_do_to_segments_is_found(tmp_path, damage, found):
    file = tmp_path / "queue.json"
    _queue_with_every_place(file)
    [segment] = folder_of(file).iterdir()
    damage(file, segment)
    if found is None:
        assert {*NAMES[4:]}.isdisjoint(job.id for job in _jobs(file)), "it shows as a loss"
        return
    with pytest.raises(ViolationError, match=found):
        read_whole(file)


def _replace(file, old, new):
    content = file.read_bytes()
    assert 1 == content.count(old)
    file.write_bytes(content.replace(old, new))
