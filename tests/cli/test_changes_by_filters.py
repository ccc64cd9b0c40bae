"""Commands that change the jobs of a selection: counted first, asked about, and checked again at the commit."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli import on_jobs, on_queue
from jqueue.domain.errors import StorageFatalError
from jqueue.domain.models import JobStatus
from jqueue.operations import Enqueue
from jqueue.testing import virtual_time
from jqueue.testing.faults import Fault, FaultyStorage
from tests.cli.commands import SECRET, Blocking, refused, run, text, values
from tests.tiny_segments import spilled, tiny_queue


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def queue(path):
    """Three waiting jobs of mail, one of report, and a running and a dead one of mail."""
    queue = Blocking(path)
    queue.enqueue("mail", SECRET.encode(), -1, job_id="running")
    queue.dequeue("mail")
    queue.kill("dead")
    for job_id in ("m1", "m2", "m3"):
        queue.enqueue("mail", SECRET.encode(), job_id=job_id)
    queue.enqueue("report", SECRET.encode(), job_id="r1")
    return queue


def _words(value):
    return " ".join(value) if isinstance(value, list) else ""


BY_FILTERS = [
    (["cancel", "--entrypoint", "mail", "--yes"], "cancelled", {"m1", "m2", "m3"}),
    (["cancel", "--entrypoint", "mail", "--running", "--yes"], "cancelled", {"m1", "m2", "m3", "running"}),
    (["cancel", "--status", "running", "--running", "--yes"], "cancelled", {"running"}),
    (["cancel", "--all", "--yes"], "cancelled", {"m1", "m2", "m3", "r1"}),
    (["redrive", "--error", "BOOM"], "redriven", {"dead"}),
    (["purge", "--yes"], "purged", {"dead"}),
    (["purge", "--entrypoint", "report", "--yes"], "purged", set()),
    (["purge", "--status", "queued", "--yes"], "purged", {"m1", "m2", "m3", "r1"}),
    (["purge", "--status", "queued", "--entrypoint", "mail", "--yes"], "purged", {"m1", "m2", "m3"}),
    (["reschedule", "--entrypoint", "mail", "--delay", "1h"], "rescheduled", {"m1", "m2", "m3"}),
    (["reschedule", "--id", "m", "--at", "2030-01-02T03:04"], "rescheduled", {"m1", "m2", "m3"}),
    (["reprioritise", "--all", "--priority", "7"], "reprioritised", {"m1", "m2", "m3", "r1"}),
]
"""Arguments after the URL, the participle of the verb, and the jobs that change."""


def signatures(queue):
    """The fields of each job that a command of this module may change."""
    return {
        job_id: (job.status, job.run_at, job.priority, job.cancel_requested) for job_id, job in queue.jobs().items()
    }


@pytest.mark.parametrize(("arguments", "done", "changed"), BY_FILTERS, ids=_words)
def test_the_jobs_that_match_are_changed_and_no_others(path, queue, arguments, done, changed):
    before = signatures(queue)
    command, *options = arguments
    found = values(command, path, *options)
    assert (len(changed), len(changed)) == (found["matched"], found[done])
    after = signatures(queue)
    assert changed == {job_id for job_id, signature in before.items() if after.get(job_id) != signature}


@pytest.mark.parametrize(("arguments", "done", "changed"), BY_FILTERS, ids=_words)
def test_a_dry_run_counts_and_changes_nothing(path, queue, arguments, done, changed):
    before = path.read_bytes()
    command, *options = arguments
    options = [option for option in options if option != "--yes"]
    assert {"matched": len(changed), done: 0, "dry_run": True} == values(command, path, *options, "--dry-run")
    assert before == path.read_bytes()


@pytest.mark.parametrize(
    ("command", "done"),
    [
        ("cancel m1", "cancelled"),
        ("cancel running --running", "cancelled"),
        ("purge dead", "purged"),
        ("redrive dead", "redriven"),
        ("reschedule m1 --delay 1h", "rescheduled"),
        ("reprioritise m1 -p 5", "reprioritised"),
    ],
)
def test_a_dry_run_for_one_job_changes_nothing(path, queue, command, done):
    before = path.read_bytes()
    name, *options = command.split()
    assert {"matched": 1, done: 0, "dry_run": True} == values(name, path, *options, "--dry-run")
    assert f"1 job would be {done}" in text(name, path, *options, "--dry-run")
    assert before == path.read_bytes()


def test_a_dry_run_for_a_job_that_cannot_be_changed_says_why(path, queue):
    assert "this job waits: `jqueue cancel` removes it" == refused("purge", path, "m1", "--dry-run")


@pytest.mark.parametrize("option", ["--id", "--holder", "--key", "--error", "--entrypoint"])
def test_an_empty_filter_is_refused_and_does_not_mean_all_jobs(path, queue, option):
    before = path.read_bytes()
    assert f"{option} is empty: give" in refused("cancel", path, option, "", "--yes")
    assert before == path.read_bytes()


@pytest.mark.parametrize(
    "command", ["cancel --all", "cancel --entrypoint mail", "purge", "purge --status queued", "purge --older-than 0s"]
)
def test_jobs_are_not_destroyed_without_a_terminal_or_yes(path, queue, command):
    before = path.read_bytes()
    name, *options = command.split()
    said = refused(name, path, *options)
    assert "there is no terminal to ask at: add --yes to go ahead, or --dry-run to only count" in said
    assert before == path.read_bytes()


@pytest.mark.parametrize("command", ["cancel", "redrive", "reschedule --delay 1", "reprioritise -p 1"])
@pytest.mark.parametrize("choice", ["", "m1 --all", "m1 --entrypoint mail", "--all --key k"])
def test_jobs_are_chosen_in_exactly_one_way(path, queue, command, choice):
    name, *options = command.split()
    said = refused(name, path, *options, *choice.split())
    assert "choose the jobs: one ID, filters such as --entrypoint NAME, or --all" == said


def test_running_and_dead_jobs_that_match_are_left_alone_and_told_about(path, queue):
    said = text("cancel", path, "--entrypoint", "mail", "--yes")
    assert "3 jobs were cancelled" in said
    assert "2 jobs match but were left alone: running jobs need --running" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reschedule", "m1", "--delay", "1h"], "the job (mail) is scheduled for "),
        (["reschedule", "m1", "--delay", "0"], "the job (mail) is ready"),
        (["reprioritise", "m1", "-p", "-5"], "the job (mail) has priority -5"),
        (["redrive", "dea"], "the job (mail) is queued again"),
        (["redrive", "dea…"], "the job (mail) is queued again"),
        (["purge", "dea"], "the job (mail) was removed"),
        (["cancel", "r"], None),
        (["run-now", "m2"], "the job (mail) is ready"),
    ],
    ids=_words,
)
def test_the_beginning_of_an_id_is_enough_if_it_is_clear(path, queue, arguments, said):
    command, *options = arguments
    if said is None:
        assert "2 jobs have ids that begin like this" in refused(command, path, *options)
    else:
        assert text(command, path, *options).startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reschedule", "running", "--delay", "1"], "this job is in progress: it has no time"),
        (["reprioritise", "dead", "-p", "1"], "this job is dead: it no longer waits"),
        (["purge", "m1"], "this job waits: `jqueue cancel` removes it"),
        (["purge", "--status", "ready"], "purge takes dead and completed jobs, or --status queued"),
        (["purge", "--status", "queued", "--older-than", "1d"], "purge takes dead and completed jobs, or --status"),
        (["run-now", "dead"], "this job is dead: only a queued job can be run now"),
        (["run-now"], "give the ID of a scheduled job, or --schedule NAME for a cron entry"),
        (["reschedule", "m1"], "give one time: either --delay DURATION or --at TIME"),
        (["reschedule", "m1", "--at", "noon"], "--at takes a time such as"),
    ],
    ids=_words,
)
def test_a_job_that_cannot_be_changed_is_refused_in_one_line(path, queue, arguments, said):
    before = path.read_bytes()
    command, *options = arguments
    assert said in refused(command, path, *options)
    assert before == path.read_bytes()


def test_running_jobs_are_told_to_stop_and_counted(path, queue):
    said = text("cancel", path, "--entrypoint", "mail", "--running", "--yes")
    assert "4 jobs were cancelled 1 of them is still in progress: their workers are told to stop" in said
    assert 1 == values("cancel", path, "--all", "--running", "--yes")["told"]


def test_completed_jobs_are_purged_on_request(path, queue):
    queue.enqueue("kept", job_id="kept", keep_result=600)
    queue.ack(queue.dequeue("kept")[0].claim)
    assert 1 == values("purge", path, "--status", "completed", "--yes")["purged"]
    assert {"dead", "kept"} - queue.jobs().keys() == {"kept"}


def test_a_job_that_comes_during_the_question_is_left_alone(path, queue, monkeypatch):
    monkeypatch.setattr(on_jobs, "ask", lambda *_, **__: queue.enqueue("mail", b"", job_id="new"))
    assert {"matched": 3, "cancelled": 3} == {
        name: number
        for name, number in values("cancel", path, "--entrypoint", "mail").items()
        if name in ("matched", "cancelled")
    }
    assert "new" in queue.jobs()


def test_jobs_of_segments_are_changed_in_chunks_and_a_damaged_segment_is_named_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(on_jobs, "CHUNK", 5)
    path = tmp_path / "queue.json"

    async def fill():
        async with tiny_queue(LocalFileSystemStorage(path)) as queue:
            for name in ("mail", "report"):
                await queue.enqueue_many([Enqueue(name, b"") for _ in range(12)])
                await spilled(queue)
            await queue.enqueue("mail", b"", delay=60)

    asyncio.run(fill())
    assert 13 == values("reprioritise", path, "--entrypoint", "mail", "-p", "3")["reprioritised"]
    folder = tmp_path / "queue.json.segments"
    [lost] = [each for each in folder.iterdir() if b'"entrypoint": "report"' in each.read_bytes()]
    lost.unlink()
    shown = run("cancel", path, "--all", "--dry-run")
    assert (2, "13 jobs would be cancelled\n", 1) == (shown.exit_code, shown.stdout, shown.stderr.count("\n"))
    assert lost.name in shown.stderr
    found = values("cancel", path, "--all", "--dry-run", status=2)
    assert (13, 0, True) == (found["matched"], found["cancelled"], found["dry_run"])
    assert lost.name in found["error"]
    assert lost.name in refused("cancel", path, "--entrypoint", "report", "--dry-run")
    assert "13 jobs were cancelled before" in refused("cancel", path, "--all", "--yes")
    assert {"ready": 0, "scheduled": 0} == {
        name: values("stats", path)["entrypoints"]["mail"][name] for name in ("ready", "scheduled")
    }


def test_a_job_that_a_worker_claims_during_the_question_is_left_alone(path, queue, monkeypatch):
    """Two at once: an operator is asked, and a worker claims one of the jobs before the answer."""
    monkeypatch.setattr(on_jobs, "ask", lambda *_, **__: queue.dequeue("mail"))
    found = values("cancel", path, "--entrypoint", "mail", status=1)
    assert {"matched": 3, "cancelled": 2, "told": 0, "changed_meanwhile": 1, "refused": 0} == found
    assert JobStatus.IN_PROGRESS == queue.jobs()["m1"].status


def test_two_operators_who_cancel_the_same_jobs_cancel_each_once(path, queue, monkeypatch):
    def other(*_, **__):
        monkeypatch.undo()
        assert 3 == values("cancel", path, "--entrypoint", "mail", "--yes")["cancelled"]

    monkeypatch.setattr(on_jobs, "ask", other)
    result = run("cancel", path, "--entrypoint", "mail")
    assert 1 == result.exit_code
    assert "0 jobs were cancelled\nleft alone: 3 jobs that had changed meanwhile\n" in result.stdout


def test_many_jobs_are_changed_in_chunks(path, queue, monkeypatch):
    monkeypatch.setattr(on_jobs, "CHUNK", 2)
    before = queue.read_state().version
    assert 4 == values("cancel", path, "--all", "--yes")["cancelled"]
    assert before + 2 == queue.read_state().version


@pytest.fixture
def faulty(path, queue, monkeypatch):
    """The store of the file with faults; commands reach it in virtual time."""
    store = FaultyStorage(LocalFileSystemStorage(path))
    monkeypatch.setattr(on_queue, "connect_queue", lambda url, kind, create: DirectQueue(store))
    monkeypatch.setattr(asyncio, "run", virtual_time.run)
    monkeypatch.setattr(on_jobs, "CHUNK", 2)
    return store


def test_a_connection_lost_half_way_leaves_the_rest_and_says_that_the_outcome_is_unknown(faulty, monkeypatch):
    # the first chunk lands; the answer of the second is lost, and so is every read after it
    faulty.on_write(Fault.NONE, Fault.LOST_ANSWER)
    original = faulty.write

    async def write(content, if_match=None):
        if faulty.writes == 1:
            faulty.on_read(*[Fault.LOST_REQUEST] * 10_000)
        return await original(content, if_match)

    faulty.write = write
    said = refused("cancel", "q.json", "--all", "--yes")
    assert "the outcome is unknown for 2 jobs: the connection failed before it was certain" in said
    assert "2 jobs were cancelled before. Look at the queue before you repeat it" in said


def test_a_store_that_refuses_half_way_is_an_error_that_counts_the_changed_jobs(faulty, queue, monkeypatch):
    original = faulty.write

    async def write(content, if_match=None):
        if faulty.writes == 1:
            raise StorageFatalError("access to the bucket 'jobs' was refused")
        return await original(content, if_match)

    faulty.write = write
    said = refused("cancel", "q.json", "--all", "--yes")
    assert (
        "access to the bucket 'jobs' was refused. 2 jobs were cancelled before. Run the command again for the rest"
        == said
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["enqueue", "mail"], "the job is then added at most once"),
        (["limit", "mail", "--running", "2"], "Look at the queue (`jqueue ls`, `jqueue stats`) before you repeat it"),
        (["pause", "mail"], "the outcome is unknown"),
        (["cancel", "m1"], "the outcome is unknown"),
        (["configure", "--aging", "60"], "the outcome is unknown"),
        (["schedule", "n", "--cron", "0 2 * * *", "--entrypoint", "e"], "the outcome is unknown"),
    ],
    ids=_words,
)
def test_a_change_whose_answer_is_lost_for_good_has_an_unknown_outcome(faulty, arguments, said):
    original = faulty.write

    async def write(content, if_match=None):
        faulty.on_read(*[Fault.LOST_REQUEST] * 10_000)
        faulty.on_write(Fault.LOST_ANSWER)
        return await original(content, if_match)

    faulty.write = write
    command, *options = arguments
    line = refused(command, "q.json", *options)
    assert line.startswith("the outcome is unknown")
    assert said in line


def test_an_interrupted_change_says_that_its_outcome_is_not_known(capsys):
    async def interrupt():
        change = asyncio.create_task(on_queue.certain(asyncio.Event().wait()))
        await asyncio.sleep(0)
        change.cancel()
        await asyncio.wait([change])
        return change.cancelled()

    assert asyncio.run(interrupt())
    assert "jqueue: interrupted: it is not known whether the last change was made\n" == capsys.readouterr().err


def test_a_store_that_never_answers_is_named_in_the_error(faulty):
    faulty.read = lambda: asyncio.Event().wait()
    said = refused("cancel", "q.json", "m1")
    assert "the queue could not be read before the deadline: the store did not answer" == said


def test_an_answer_that_is_lost_once_is_found_out(faulty, queue):
    faulty.on_write(Fault.LOST_ANSWER)
    job_id = text("enqueue", "q.json", "mail")
    assert job_id in {job.id for job in asyncio.run(DirectQueue(faulty).read_state()).jobs}


def test_an_entrypoint_from_a_blob_cannot_command_the_terminal(path, queue):
    path.write_text(path.read_text().replace('"report"', r'"\u001b[2J\u202eevil\r"'))
    said = ask_at_a_terminal(["cancel", path, "--all"], "n")
    assert r"\x1b[2J\u202eevil\r 1" in said.stderr
    assert not set("\x1b\u202e\r") & set(said.stderr)


def ask_at_a_terminal(arguments, answer, during=lambda: None):
    """Run a command whose standard input is a terminal, and answer its question."""
    keyboard, terminal = os.openpty()
    try:
        command = [sys.executable, "-m", "jqueue", *map(str, arguments)]
        process = subprocess.Popen(command, stdin=terminal, stdout=-1, stderr=-1, text=True)
        os.write(keyboard, f"{answer}\n".encode())
        stdout, stderr = process.communicate(timeout=60)
    finally:
        os.close(keyboard)
        os.close(terminal)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@pytest.mark.wide
@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, 4), ("y", 0, 0)])
def test_cancel_asks_at_a_terminal_and_names_the_entrypoints(path, queue, answer, status, left):
    result = ask_at_a_terminal(["cancel", path, "--all"], answer)
    assert "Cancel 4 jobs? (mail 3, report 1) [y/N]:" in result.stderr
    assert status == result.returncode
    assert left == len(queue.read_state().queued_jobs())
    assert ("nothing was changed" in result.stderr) is (answer == "n")


@pytest.mark.wide
def test_tens_of_thousands_of_jobs_are_cancelled_in_chunks(path):
    queue = Blocking(path)
    for _ in range(3):
        queue.enqueue_many([Enqueue("mail")] * 10_000)
    assert 30_000 == values("cancel", path, "--all", "--yes")["cancelled"]
    assert () == queue.read_state().jobs


def test_ids_of_dead_jobs_can_be_pasted_into_a_command(path):
    queue = Blocking(path)
    long = "a job with an id that is longer than a column of the table"
    dead = [f"{long}, one", f"its own beginning, then {long}", "it has spaces", "plain"]
    queue.kill(*dead)
    shown = run("dead", path).stdout
    for job_id in ("plain", *re.findall(r"^'[^']*'", shown, re.MULTILINE)):
        text("redrive", path, *shlex.split(job_id))
    assert {JobStatus.QUEUED} == {job.status for job in queue.jobs().values()}


@pytest.mark.parametrize("command", [("redrive",), ("reprioritise", "--priority", "1"), ("reschedule", "--delay", "1")])
def test_commands_that_ask_no_question_take_yes_too(path, command):
    queue = Blocking(path)
    queue.kill("dead")
    queue.enqueue("mail", b"", delay=60)
    assert "1 job was" in text(command[0], path, *command[1:], "--all", "--yes")


def test_show_names_no_time_at_which_a_dead_job_will_not_run(path):
    queue = Blocking(path)
    queue.enqueue("mail", b"", job_id="dead", expires_at=datetime.now(UTC) + timedelta(hours=1))
    [job] = queue.dequeue()
    queue.nack(job, delay=600)
    assert "runs at" in text("show", path, "dead")
    queue.reschedule("dead", delay=0)
    [job] = queue.dequeue()
    queue.nack(job, delay=600, dead=True)
    shown = text("show", path, "dead")
    assert "dead for" in shown
    assert not re.search(r"runs at|expires|, in ", shown)
