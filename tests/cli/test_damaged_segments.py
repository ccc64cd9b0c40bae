"""Commands on a queue with damaged segments: they name it, go on with all other jobs, and give up what is lost."""

import json
from pathlib import Path

import pytest

from jqueue import LocalFileSystemStorage
from jqueue.domain.errors import StorageFatalError
from tests.cli.commands import SECRET, Blocking, deep, refused, rows, run, text, values


@pytest.fixture
def segments(path):
    """The files of two segments by entrypoint: six jobs of mail, two of report."""
    return deep(path, mail=6, report=2)


def queue_check(path, status=0):
    """The check of the queue by `jqueue doctor`."""
    [check] = [each for each in values("doctor", path, status=status)["checks"] if each["name"] == "queue"]
    return check


def test_the_doctor_names_a_damaged_segment_with_what_to_do(path, segments):
    check = queue_check(path)
    assert ("passed", True) == (check["outcome"], check["detail"].startswith("8 jobs can be read"))
    segments["mail"].unlink()
    said = queue_check(path, status=1)["detail"]
    assert f"segment .segments/{segments['mail'].name}: it is missing" in said
    assert "from a backup, or keep what can be read with `jqueue repair`" in said


def test_a_repair_gives_up_what_cannot_be_read_of_a_damaged_segment_and_brings_back_the_rest(path, segments):
    content = bytearray(segments["mail"].read_bytes())
    content[content.index(b"payload")] ^= 1  # in the first chunk, of four rows
    segments["mail"].write_bytes(content)
    arguments = ("repair", path)
    assert {"segments": 1, "unreadable": 4, "readable": 2}.items() <= values(*arguments, "--dry-run").items()
    assert "there is no terminal to ask at" in refused(*arguments)
    assert "4 jobs of 1 damaged segment (mail) dropped, 2 kept" == text(*arguments, "--yes")
    assert ["mail"] * 2 + ["report"] * 2 == sorted(job["entrypoint"] for job in rows("ls", path))


def test_a_repair_takes_out_lines_that_are_no_jobs_and_keeps_the_others(path, queue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "every job of the queue can be read: nothing was dropped" == refused("repair", path)
    queue.enqueue("mail", b"", job_id="broken")
    queue.enqueue("report", b"", job_id="kept")
    queue.limit("report", running=3)
    path.write_text(broken := path.read_text().replace('"entrypoint":"mail"', '"entrypoint":7'))
    [warning] = values("stats", path)["warnings"]
    assert "1 line cannot be read as a job: " in warning
    advice = values("doctor", path, status=1)["advice"]
    assert ["`jqueue repair URL` takes these lines out of the queue, and saves the object as it was."] == advice
    assert "that of broken: entrypoint" in text("repair", path, "--dry-run")
    assert path.read_text() == broken
    report = values("repair", path, "--yes")
    assert (1, 1, broken) == (report["lines"], report["jobs"], (tmp_path / report["saved"]).read_text())
    assert ["kept"] == [job.id for job in queue.read_state().jobs]
    assert 3 == queue.read_state().entrypoints["report"].max_running
    assert 0 == values("doctor", path)["status"]
    queue.enqueue("mail", b"", job_id="broken")


def test_a_segment_that_the_store_refuses_to_read_is_named_and_never_given_up(path, segments, url_of):
    class Refusing(LocalFileSystemStorage):
        async def read_object(self, suffix, start=0, stop=None):
            raise StorageFatalError("to read, s3:GetObject is needed")

    url = url_of(Refusing(path))
    assert "s3:GetObject" in refused("repair", url, "--yes")
    assert "s3:GetObject" in queue_check(url, status=1)["detail"]
    assert 8 == len(rows("ls", path))


def test_the_statistics_name_a_damaged_segment(path, segments):
    Blocking(path).dequeue("mail")  # the age of the next job needs a read of the segment
    segments["mail"].unlink()
    [warning] = values("stats", path)["warnings"]
    assert f"segment .segments/{segments['mail'].name} (mail) cannot be read, and" in warning


def test_a_list_has_all_jobs_that_can_be_read_and_then_names_the_damaged_segment(path, segments):
    segments["report"].unlink()
    result = run("ls", path)
    listed = len(result.stdout.splitlines()) - 1
    assert (2, True) == (result.exit_code, listed >= 5)
    assert segments["report"].name in result.stderr
    *jobs, error = run("ls", path, "--json").stdout.splitlines()
    assert (listed, True) == (len(jobs), segments["report"].name in json.loads(error)["error"])


def test_jobs_of_segments_are_changed_and_a_damaged_segment_is_named_at_the_end(path, segments):
    assert 6 == values("update", path, "--entrypoint", "mail", "-p", "3", "--yes")["updated"]
    segments["report"].unlink()
    counts = values("cancel", path, "--all", "--dry-run", status=2)
    assert (6, 0, True) == (counts["matched"], counts["cancelled"], counts["dry_run"])
    assert segments["report"].name in counts["error"]
    assert "6 jobs were cancelled before" in refused("cancel", path, "--all", "--yes")
    assert [] == rows("ls", path, "--entrypoint", "mail")


def test_what_can_be_read_of_an_object_that_is_cut_off_is_brought_back(path, queue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        queue.enqueue("mail", SECRET.encode(), job_id=f"j{number}")
    whole = path.read_bytes()
    cut = whole[: whole.index(b'"j3"') + 30]
    path.write_bytes(cut)
    assert "failed" == queue_check(path, status=1)["outcome"]
    assert "add --yes to go ahead" in refused("repair", path)
    assert {"jobs": 3, "bytes_lost": 28, "dry_run": True} == values("repair", path, "--dry-run")
    assert "its limits, settings and cron entries and 3 jobs can be read" in text("repair", path, "--dry-run")
    assert cut == path.read_bytes()
    saved = values("repair", path, "--yes")["saved"]
    assert (cut, 0o600) == (Path(saved).read_bytes(), Path(saved).stat().st_mode & 0o777)
    state = queue.read_state()
    assert (["j0", "j1", "j2"], 6) == ([job.id for job in state.jobs], state.version)
    assert "every job of the queue can be read" in refused("repair", path)
