"""Commands on a queue with damaged segments: they name it, go on with all other jobs, and give up what is lost."""

import asyncio
import json
import os
from collections import Counter
from datetime import timedelta

import pytest

from jqueue import LocalFileSystemStorage
from tests.cli.commands import Blocking, deep, refused, rows, run, text, values
from tests.tiny_segments import tiny_queue


@pytest.fixture
def segments(path):
    """The files of two segments by entrypoint: six jobs of mail, two of report."""
    return deep(path, mail=6, report=2)


def change_a_row(segment):
    """Change a byte in the first chunk, of four rows."""
    content = bytearray(segment.read_bytes())
    content[content.index(b"\1")] ^= 1
    segment.write_bytes(content)


def segment_check(path, *options):
    """The exit code of the doctor, what it says of the segments, and all it says."""
    result = run("doctor", path, "--json", *options)
    verdict = json.loads(result.stdout)
    return result.exit_code, next(each for each in verdict["checks"] if each["name"] == "segments"), verdict


def test_the_doctor_reads_the_rows_of_all_segments_unless_it_is_to_be_quick(path, segments):
    code, check, _ = segment_check(path)
    assert (0, "passed", "2 segments with 8 waiting jobs") == (code, check["outcome"], check["detail"])
    change_a_row(segments["mail"])
    assert "rows were not read" in segment_check(path, "--quick")[1]["detail"]
    assert 1 == segment_check(path)[0]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (os.unlink, "it is missing"),
        (lambda segment: segment.write_bytes(segment.read_bytes()[:-1]), "it is cut off"),
        (change_a_row, "rows of it were changed or cut off: the checksum does not match"),
    ],
)
def test_the_doctor_names_a_damaged_segment_with_what_to_do(path, segments, damage, reason):
    damage(segments["mail"])
    code, check, verdict = segment_check(path)
    name = segments["mail"].name
    [advice] = verdict["advice"]
    assert (1, True) == (code, name in check["detail"])
    assert f"Segment .segments/{name} (mail): {reason}" in advice
    assert "from a backup" in advice
    assert f"`jqueue drop-segment URL {name}`" in advice
    assert "not run" in verdict["harm"][0]


def test_old_objects_that_nothing_names_are_noted_and_young_ones_are_not(path, segments):
    stray = segments["mail"].with_name("stray")
    stray.write_bytes(b"x" * 2048)
    assert "passed" == segment_check(path)[1]["outcome"]
    os.utime(stray, (0, 0))
    code, check, _ = segment_check(path)
    assert (0, True) == (code, "1 object that nothing names, 2.0 KiB" in check["detail"])


def readable(path):
    """The number of jobs of each entrypoint that can be read, of waiting jobs, and of removed ones."""

    async def look():
        async with tiny_queue(LocalFileSystemStorage(path)) as queue:
            jobs = Counter([job.entrypoint async for job in queue.iterate_jobs()])
            stats = await queue.stats()
            assert stats.totals is not None
            return jobs, stats.depth, stats.totals.removed

    return asyncio.run(look())


@pytest.mark.parametrize(("damage", "lost"), [(os.unlink, 6), (change_a_row, 4)])
def test_what_cannot_be_read_of_a_damaged_segment_is_given_up_and_no_more(path, segments, damage, lost):
    damage(segments["mail"])
    arguments = ("drop-segment", path, segments["mail"].name)
    counts = {"unreadable": lost, "readable": 6 - lost, "in_ranges": 0, "dropped": 0, "dry_run": True}
    assert counts == values(*arguments, "--dry-run")
    assert "there is no terminal to ask at" in refused(*arguments)
    assert f"{lost} jobs (mail) dropped, {6 - lost} of the segment kept" == text(*arguments, "--yes")
    assert (Counter(mail=6 - lost, report=2), 8 - lost, lost) == readable(path)


def test_jobs_of_a_missing_segment_in_claimed_ranges_stay_until_their_claims_end(path, segments):
    async def claim():
        async with tiny_queue(LocalFileSystemStorage(path)) as queue:
            await queue.claim_range("mail", 2, claim_timeout=timedelta(hours=1))

    asyncio.run(claim())
    segments["mail"].unlink()
    arguments = ("drop-segment", path, segments["mail"].name, "--yes")
    assert "6 of its 6 jobs (4 waiting, 2 in claimed ranges)" in segment_check(path)[2]["advice"][0]
    assert text(*arguments).startswith("4 jobs (mail) dropped, 0 of the segment kept 2 jobs that cannot be read stay")
    assert "Run the command again once these claims have ended" in refused(*arguments)
    text("requeue-stale", path, "--timeout", "0")
    assert "2 jobs (mail) dropped, 0 of the segment kept" == text(*arguments)
    assert (Counter(report=2), 2, 6) == readable(path)


def test_a_whole_segment_or_an_unknown_one_is_left_alone(path, segments):
    before = path.read_bytes()
    assert "can be read: nothing was dropped" in refused("drop-segment", path, segments["mail"].name, "--yes")
    assert "the queue has no segment other" in refused("drop-segment", path, "other", "--yes")
    assert before == path.read_bytes()


def test_the_statistics_name_a_damaged_segment_once(path, segments):
    assert [] == values("stats", path)["warnings"]
    Blocking(path).dequeue("mail")  # the age of the next job needs a read of the segment
    segments["mail"].unlink()
    [warning] = values("stats", path)["warnings"]
    assert f"Segment .segments/{segments['mail'].name} (mail) cannot be read, and" in warning
    assert warning in text("stats", path)


@pytest.mark.parametrize("arguments", [[], ["--sort", "id"]])
def test_a_list_has_all_jobs_that_can_be_read_and_then_names_the_damaged_segment(path, segments, arguments):
    segments["report"].unlink()
    result = run("ls", path, *arguments)
    listed = len(result.stdout.splitlines()) - 1
    assert (2, True) == (result.exit_code, listed >= 5)
    assert segments["report"].name in result.stderr
    *jobs, error = run("ls", path, *arguments, "--json").stdout.splitlines()
    assert (listed, True) == (len(jobs), segments["report"].name in json.loads(error)["error"])


def test_jobs_of_segments_are_changed_and_a_damaged_segment_is_named_at_the_end(path, segments):
    assert 6 == values("reprioritise", path, "--entrypoint", "mail", "-p", "3")["reprioritised"]
    segments["report"].unlink()
    counts = values("cancel", path, "--all", "--dry-run", status=2)
    assert (6, 0, True) == (counts["matched"], counts["cancelled"], counts["dry_run"])
    assert segments["report"].name in counts["error"]
    assert "6 jobs were cancelled before" in refused("cancel", path, "--all", "--yes")
    assert [] == rows("ls", path, "--entrypoint", "mail")


@pytest.mark.wide
def test_a_move_names_a_damaged_segment_and_the_number_of_the_jobs_that_moved(path, segments, tmp_path):
    segments["report"].unlink()
    dest, name = tmp_path / "dest.json", f".segments/{segments['report'].name}"
    assert f"6 jobs would be moved not moved: jobs of segment {name} " in text(
        "migrate", path, dest, "--dry-run", status=1
    ).replace(str(path), "")
    report = values("migrate", path, dest, status=1)
    assert (6, False, [name]) == (report["moved"], report["complete"], [*report["damaged"]])
    assert {"mail"} == {job.entrypoint for job in Blocking(dest).jobs().values()}
