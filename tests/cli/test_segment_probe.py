"""`jqueue doctor` and `jqueue stats` on a queue with segments: they exist, or the queue is damaged."""

import asyncio
import json
import os
import time
from collections import Counter
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from jqueue import LocalFileSystemStorage
from jqueue.cli import checks
from jqueue.cli.app import app
from jqueue.operations import Enqueue
from tests.cli.commands import refused, text, values
from tests.tiny_segments import spilled, tiny_queue


@pytest.fixture
def path(tmp_path):
    """A queue in a file, with two segments of eight jobs together."""
    path = tmp_path / "queue.json"

    async def fill():
        async with tiny_queue(LocalFileSystemStorage(path)) as queue:
            await queue.enqueue_many([Enqueue(name, b"") for name in ("mail", "mail", "report", "mail") * 2])
            await spilled(queue)

    asyncio.run(fill())
    return path


@pytest.fixture
def look(path, monkeypatch):
    """A function that runs the probe alone. It returns the exit code and what was said."""
    only = tuple(check for check in checks.CHECKS if check.name == "segments")
    monkeypatch.setattr(checks, "CHECKS", only)
    monkeypatch.setattr("jqueue.cli.doctor.CHECKS", only)

    def run(*arguments):
        result = CliRunner().invoke(app, ["doctor", str(path), "--json", *arguments], catch_exceptions=False)
        return result.exit_code, json.loads(result.stdout)

    return run


def segments_of(path):
    return sorted((path.parent / "queue.json.segments").iterdir())


def test_segments_that_exist_pass(look):
    code, said = look()
    assert 0 == code
    assert ["passed", "2 segments with 8 waiting jobs"] == [said["checks"][0][name] for name in ("outcome", "detail")]


@pytest.mark.parametrize("cut", [False, True])
def test_a_segment_that_is_missing_or_cut_off_is_named_with_the_number_of_its_jobs(look, path, cut):
    first, _ = segments_of(path)
    jobs = first.read_bytes().partition(b'\n{"rows"')[0].count(b"\n")
    if cut:
        first.write_bytes(first.read_bytes()[:-1])
    else:
        first.unlink()
    code, said = look()
    assert 1 == code
    assert first.name in said["checks"][0]["detail"]
    assert f"{jobs} jobs" in said["harm"][0]
    assert "the queue is damaged" in said["verdict"]


def test_a_changed_byte_of_any_row_or_index_is_found(look, path):
    mail, _ = sorted(segments_of(path), key=lambda each: b'"entrypoint": "mail"' not in each.read_bytes())
    whole = mail.read_bytes()
    end = whole.rindex(b"\n{")
    for place, lost in ((whole.index(b"\1"), 4), (whole.rindex(b"\1", 0, end), 2), (end + 20, 6)):
        content = bytearray(whole)
        content[place] ^= 1
        mail.write_bytes(content)
        code, said = look()
        assert 1 == code
        assert mail.name in said["checks"][0]["detail"]
        [advice] = said["advice"]
        assert f"Segment .segments/{mail.name} (mail): " in advice
        assert "the checksum does not match" in advice
        assert f"{lost} of its 6 jobs cannot be read" in advice
        assert 1 == advice.count("from a backup")
        assert f"`jqueue drop-segment URL {mail.name}`" in advice
        assert f"not run {lost} jobs" in said["harm"][0]
        if place != end + 20:
            assert 0 == look("--quick")[0]
    mail.write_bytes(whole)
    assert "rows were not read" in look("--quick")[1]["checks"][0]["detail"]
    assert 0 == look()[0]


def test_each_damaged_segment_has_its_own_advice_up_to_a_number(look, path, monkeypatch):
    first, second = segments_of(path)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    said = look()[1]
    assert all(any(each.name in advice for advice in said["advice"]) for each in (first, second))
    assert ["it is cut off", "it is missing"] == sorted(
        advice.split(": ")[1].split(".")[0] for advice in said["advice"]
    )
    monkeypatch.setattr("jqueue.cli.segment_probe.ADVISED", 1)
    assert "1 more segment is damaged: mend these first" in look()[1]["advice"][1]


def test_a_damaged_chunk_whose_jobs_have_all_left_is_no_damage(look, path):
    async def work():
        async with tiny_queue(LocalFileSystemStorage(path)) as queue:
            await queue.ack_many(await queue.dequeue("mail", batch_size=4))

    asyncio.run(work())
    mail = next(each for each in segments_of(path) if b'"entrypoint": "mail"' in each.read_bytes())
    damage(mail, missing=False)
    assert 0 == look()[0]


def test_old_objects_that_nothing_names_are_noted_and_young_ones_are_not(look, path):
    stray = path.parent / "queue.json.segments" / "stray"
    stray.write_bytes(b"x" * 2048)
    assert ["passed"] == [check["outcome"] for check in look()[1]["checks"]]
    before = time.time() - 3 * 3600
    os.utime(stray, (before, before))
    code, said = look()
    assert 0 == code
    assert "1 object that nothing names, 2.0 KiB" in said["checks"][0]["detail"]


def kept(path):
    """The numbers of jobs of each entrypoint that can be read, in the queue and in its segments."""

    async def look():
        async with tiny_queue(LocalFileSystemStorage(path)) as queue:
            jobs = [job async for job in queue.iterate_jobs()]
            stats = await queue.stats()
            assert stats.totals is not None
            return Counter(job.entrypoint for job in jobs), stats.depth, stats.totals.removed

    return asyncio.run(look())


def damage(segment, *, missing):
    if missing:
        segment.unlink()
        return
    content = bytearray(segment.read_bytes())
    content[content.index(b"\1")] ^= 1  # in the first chunk, of four rows
    segment.write_bytes(content)


@pytest.mark.parametrize("missing", [False, True])
def test_what_cannot_be_read_of_a_damaged_segment_is_given_up_and_no_more(path, missing):
    mail = next(each for each in segments_of(path) if b'"entrypoint": "mail"' in each.read_bytes())
    damage(mail, missing=missing)
    lost = 6 if missing else 4
    arguments = ("drop-segment", path, mail.name)
    counts = {"unreadable": lost, "readable": 6 - lost, "in_ranges": 0, "dropped": 0, "dry_run": True}
    assert counts == values(*arguments, "--dry-run")
    assert "there is no terminal to ask at" in refused(*arguments)
    assert f"{lost} jobs (mail) dropped, {6 - lost} of the segment kept" == text(*arguments, "--yes")
    assert (Counter(mail=6 - lost, report=2), 8 - lost, lost) == kept(path)
    assert "nothing was dropped" in refused(*arguments) or missing


@pytest.fixture
def with_range(path):
    """A function that claims the first two of six jobs as a range, and removes their segment. It returns its name."""

    def claim(claim_timeout):
        async def work():
            async with tiny_queue(LocalFileSystemStorage(path)) as queue:
                claimed = await queue.claim_range("mail", 2, claim_timeout=claim_timeout)
                assert claimed is not None
                assert 2 == claimed.rows

        asyncio.run(work())
        mail = next(each for each in segments_of(path) if b'"entrypoint": "mail"' in each.read_bytes())
        mail.unlink()
        return mail.name

    return claim


def test_jobs_of_a_missing_segment_in_claimed_ranges_are_told_apart_and_stay_until_their_claims_end(
    look, path, with_range
):
    name = with_range(timedelta(seconds=90))
    [advice] = look()[1]["advice"]
    assert "6 of its 6 jobs (4 waiting, 2 in claimed ranges) cannot be read" in advice
    assert advice.endswith("It gives up jobs in claimed ranges only once these claims have ended.")
    [warning] = values("stats", path)["warnings"]
    assert "4 jobs in it wait (2 more are in claimed ranges) until" in warning
    counts = {"unreadable": 4, "readable": 0, "in_ranges": 2}
    assert {**counts, "dropped": 0, "dry_run": True} == values("drop-segment", path, name, "--dry-run")
    later = "2 jobs that cannot be read stay in claimed ranges. Run the command again once these claims have ended."
    said = " ".join(text("drop-segment", path, name, "--yes").split())
    assert said.startswith(f"4 jobs (mail) dropped, 0 of the segment kept {later}")
    assert "90 s after its last heartbeat; if no worker runs, `jqueue requeue-stale URL --timeout 90`" in said
    said = refused("drop-segment", path, name, "--yes")
    assert f"nothing was dropped of the segment {name}. {later}" in said
    assert "can be read" not in said
    assert "requeue-stale" in said
    text("requeue-stale", path, "--timeout", "0")
    assert "2 jobs (mail) dropped, 0 of the segment kept" == text("drop-segment", path, name, "--yes")
    assert (Counter(report=2), 2, 6) == kept(path)


def test_jobs_in_a_range_whose_claim_is_stale_are_given_up_with_those_that_wait(path, with_range):
    name = with_range(timedelta(milliseconds=1))
    assert "6 jobs (mail) dropped, 0 of the segment kept" == text("drop-segment", path, name, "--yes")
    assert (Counter(report=2), 2, 6) == kept(path)


def test_a_whole_segment_or_an_unknown_one_is_left_alone(path):
    before = path.read_bytes()
    first, _ = segments_of(path)
    assert "can be read: nothing was dropped" in refused("drop-segment", path, f".segments/{first.name}", "--yes")
    assert "the queue has no segment other" in refused("drop-segment", path, "other", "--yes")
    assert before == path.read_bytes()


def test_the_statistics_name_a_missing_segment_in_one_line(path):
    assert [] == values("stats", path)["warnings"]
    lost = next(each for each in segments_of(path) if b'"entrypoint": "report"' in each.read_bytes())
    lost.unlink()
    [warning] = values("stats", path)["warnings"]
    assert f"Segment .segments/{lost.name} (report) cannot be read, and 2 jobs in it wait until" in warning
    assert warning.endswith("given up with `jqueue drop-segment`: it is missing. All other jobs go on.")
    assert warning in " ".join(text("stats", path).split())


@pytest.mark.parametrize("missing", [False, True])
def test_the_statistics_name_a_segment_once_if_a_listing_and_a_read_have_met_its_damage(path, missing):
    async def work():
        async with tiny_queue(LocalFileSystemStorage(path)) as queue:
            await queue.dequeue("mail")  # the age of the next job needs a read of the segment

    asyncio.run(work())
    mail = next(each for each in segments_of(path) if b'"entrypoint": "mail"' in each.read_bytes())
    damage(mail, missing=missing)
    [warning] = values("stats", path)["warnings"]
    jobs, how = (5, "cannot be read") if missing else (3, "cannot be read in part")
    assert warning.startswith(f"Segment .segments/{mail.name} (mail) {how}, and {jobs} jobs in it wait")
    assert 1 == text("stats", path).count(mail.name)
