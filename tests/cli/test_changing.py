"""The commands that change a queue: one job, a selection counted first and asked about, limits, settings, cron."""

import asyncio
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from jqueue import BrokerQueue, DirectQueue, LocalFileSystemStorage
from jqueue.domain.errors import StorageFatalError
from jqueue.domain.header import WorkerRecord
from jqueue.operations import Enqueue
from jqueue.sync import SyncQueue
from jqueue.testing.faults import Fault, FaultyObjects
from tests.cli.commands import SECRET, at_a_terminal, refused, run, text, values


@pytest.fixture
def jobs(queue):
    """Three waiting jobs of mail, one of report, and a running and a dead one of mail."""
    queue.enqueue("mail", SECRET.encode(), -1, job_id="running")
    queue.dequeue("mail")
    queue.kill("dead")
    for job_id in ("m1", "m2", "m3"):
        queue.enqueue("mail", SECRET.encode(), job_id=job_id)
    queue.enqueue("report", SECRET.encode(), job_id="r1")
    return queue


BY_FILTERS = {
    "cancel --entrypoint mail --yes": ("cancelled", "m1 m2 m3"),
    "cancel --status running --running --yes": ("cancelled", "running"),
    "redrive --error BOOM --yes": ("redriven", "dead"),
    "purge --all --yes": ("purged", "dead"),
    "purge --entrypoint mail --yes": ("purged", "dead"),
    "purge --status queued --entrypoint mail --yes": ("purged", "m1 m2 m3"),
    "update --entrypoint mail --delay 1h --yes": ("updated", "m1 m2 m3"),
    "update --id r --priority 5 --yes": ("updated", "r1"),
}
"""Commands, the participle of the verb, and the jobs that change."""


def fields(queue):
    """Return the fields of each job that a command may change."""
    return {job.id: (job.status, job.run_at, job.priority, job.cancel_requested) for job in queue.jobs().values()}


@pytest.mark.parametrize("arguments", BY_FILTERS)
def test_the_jobs_that_match_are_counted_by_a_dry_run_and_then_changed_and_no_others(path, jobs, arguments):
    command, *options = arguments.split()
    done, ids = BY_FILTERS[arguments]
    before, content = fields(jobs), path.read_bytes()
    counts = values(command, path, *[option for option in options if option != "--yes"], "--dry-run")
    assert {"matched": len(ids.split()), done: 0, "dry_run": True} == counts
    assert content == path.read_bytes()
    report = values(command, path, *options)
    if "matched" in report:
        assert (len(ids.split()),) * 2 == (report["matched"], report[done])
    after = fields(jobs)
    assert set(ids.split()) == {job_id for job_id, values in before.items() if after.get(job_id) != values}


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("cancel running --running", "will be told to stop"),
        ("cancel --all --running --yes", "1 of them is still in progress: their workers are told to stop"),
        ("purge dead", "the job (mail) was removed"),
        ("update r1 --run-at 2031-01-02T03:04", "the job (report) is scheduled for 2031-01-02 03:04:00 UTC"),
        ("update r1 --delay 0", "the job (report) is ready"),
        ("update r1 -p -3", "the job (report) has priority -3"),
        ("pause mail", "paused until `jqueue resume`: 3 jobs wait, 1 job in progress continues"),
        ("pause --all", "2 entrypoints (mail, report): paused until `jqueue resume`: 4 jobs wait, 1 job in progress"),
        ("resume --all", "2 entrypoints (mail, report): resumed: 4 jobs are ready"),
    ],
)
def test_a_change_is_confirmed_in_a_sentence(path, jobs, arguments, answer):
    command, *options = arguments.split()
    assert answer in text(command, path, *options)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("cancel running", "this job is in progress: add --running to tell its worker to stop"),
        ("cancel dead --running", "this job is already dead: remove dead jobs with `jqueue purge`"),
        ("cancel m", "3 jobs have ids that begin like this"),
        ("redrive m1", "is queued: only a dead job can be redriven"),
        ("update running -p 1", "is in_progress: only a queued job can be given another priority"),
        ("update --priority 1", "choose the jobs: one ID, filters such as --entrypoint NAME, or --all"),
        ("purge --yes", "choose the jobs: one ID, filters such as --entrypoint NAME, or --all"),
        ("purge --all --status dead --yes", "choose the jobs: one ID, filters such as --entrypoint NAME, or --all"),
        ("purge --all --status queued --yes", "--status queued with no filter but --entrypoint"),
        ("cancel", "choose the jobs: one ID, filters such as --entrypoint NAME, or --all"),
        ("cancel --all", "there is no terminal to ask at: add --yes to go ahead, or --dry-run to only count"),
        ("redrive --all", "1 job matches, and there is no terminal to ask at: add --yes"),
        ("update --all -p 1", "4 jobs match, and there is no terminal to ask at: add --yes"),
        ("cancel mail", "no job has this id, but an entrypoint has this name: --entrypoint NAME chooses its jobs"),
        ("redrive --all --worker w", "--worker goes with --stale AGE"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(path, jobs, arguments, reason):
    before = path.read_bytes()
    command, *options = arguments.split()
    assert reason in refused(command, path, *options)
    assert before == path.read_bytes()


def test_a_dead_job_is_queued_again_with_a_corrected_payload(path, queue, tmp_path):
    for payload in (b"worng", b"other"):
        job = queue.enqueue("mail", payload)
        queue.nack(queue.dequeue("mail")[0], dead=True)
    file = tmp_path / "payload"
    error = refused("redrive", path, job.id, "--payload", file)
    assert f"the file {str(file)!r} of the payload cannot be read: No such file or directory" in error
    assert "the standard input, whose name is -" in error
    file.write_bytes(b"right")
    assert {"id": job.id, "entrypoint": "mail", "redriven": 1} == values("redrive", path, job.id, "--payload", file)
    assert [b"right"] == [each.payload for each in queue.dequeue("mail", batch_size=9)]
    assert 1 == values("redrive", path, "--payload", "worng", "--yes")["redriven"]  # without an ID, it is a filter


def test_a_dead_job_whose_key_is_taken_stays_dead_and_is_named(path, queue):
    job = queue.enqueue("mail", b"", unique_key="k")
    queue.nack(queue.dequeue("mail")[0], dead=True)
    holder = queue.enqueue("mail", b"", unique_key="k")
    counts = {"matched": 1, "redriven": 0, "changed_meanwhile": 0, "refused": 1, "taken": {job.id: holder.id}}
    assert counts == values("redrive", path, "--all", "--yes", status=1)
    told = text("redrive", path, "--all", "--yes", status=1)
    assert "not redriven: 1 job: another job has taken the unique key" in told
    assert "Unique key 'k' is taken" in refused("redrive", path, job.id)


def test_the_claims_of_silent_workers_are_revoked_on_request(path, jobs):
    assert {"matched": 0, "requeued": 0, "dry_run": True} == values("redrive", path, "--stale", "1h", "--dry-run")
    assert {"matched": 1, "requeued": 0, "dry_run": True} == values("redrive", path, "--stale", "0", "--dry-run")
    assert "revoked: 0 stale claims" == text("redrive", path, "--stale", "1h")
    assert "in_progress" == jobs.find("running").status
    assert {"requeued": 1} == values("redrive", path, "--stale", "0")
    assert "queued" == jobs.find("running").status
    for also in (["--all"], ["--entrypoint", "mail"], ["running"]):
        assert "without an ID, filters and --all" in refused("redrive", path, "--stale", "0", *also)


def test_the_claims_of_one_worker_are_taken_back_and_the_error_says_that_it_was_an_order(path, queue):
    for holder in ("mailer@web:1", "mailer@web:2", "mail@er@web:1"):
        queue.enqueue("mail", b"", job_id=holder)
        queue.dequeue("mail", holder=holder)
    order = ["redrive", path, "--stale", "0", "--worker"]
    assert {"matched": 2, "requeued": 0, "dry_run": True} == values(*order, "mailer", "--dry-run")
    assert {"requeued": 1} == values(*order, "mailer@web:2")
    assert {"requeued": 1} == values(*order, "mail@er")
    assert ["queued", "in_progress", "queued"] == [queue.find(each).status for each in sorted(queue.jobs())][::-1]
    errors = {queue.find(each).error for each in ("mailer@web:2", "mail@er@web:1")}
    assert {"stale: the claim was taken back by an operator's order"} == errors


def test_a_worker_is_stopped_by_its_name(path, queue):
    async def commit():
        async with BrokerQueue(LocalFileSystemStorage(path)) as opened:
            for number in (1, 2):
                opened.attend(str(number), partial(seen, number), list)
            await opened.enqueue("mail")

    def seen(number, at):
        return WorkerRecord(name="mailer", host="web", pid=number, at=at)

    queue.enqueue("mail")
    asyncio.run(commit())
    error = refused("stop", path, "4711")
    assert "No worker '4711' in the queue" in error
    assert "Its workers: mailer@web:1, mailer@web:2" in error
    assert {"stopping": ["mailer@web:2"]} == values("stop", path, "mailer@web:2")
    assert [False, True] == [each["stopping"] for each in values("stats", path)["workers_seen"]]
    assert "mailer@web:1 stops within 60 s, or is lost mailer@web:2 stops" in text("stop", path, "mailer")


@pytest.mark.wide
@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, 4), ("y", 0, 0)])
def test_a_command_asks_at_a_terminal_and_names_the_entrypoints(path, jobs, answer, status, left):
    result = at_a_terminal("cancel", path, "--all", answer=answer)
    assert "Cancel 4 jobs? (mail 3, report 1) [y/N]:" in result.stderr
    assert (status, left) == (result.returncode, len(jobs.read_state().queued_jobs()))


# Others at work, and stores that fail


class Meanwhile(FaultyObjects):
    """The file of a queue. Something happens before its n-th write."""

    def __init__(self, path, happen, number=1):
        super().__init__(LocalFileSystemStorage(path))
        self.happen, self.number, self.began = happen, number, 0

    async def write(self, content, if_match=None):
        self.began += 1
        if self.began == self.number:
            await self.happen(self)
        return await super().write(content, if_match)


def other(path):
    return DirectQueue(LocalFileSystemStorage(path))


def test_jobs_that_a_worker_claims_or_that_come_meanwhile_are_left_alone(path, jobs, url_of):
    async def happen(_):
        await other(path).dequeue("mail")
        await other(path).enqueue("mail", b"", job_id="new")

    counts = values("cancel", url_of(Meanwhile(path, happen)), "--entrypoint", "mail", "--yes", status=1)
    assert {"matched": 3, "cancelled": 2, "told": 0, "changed_meanwhile": 1, "refused": 0} == counts
    assert {"running", "dead", "m1", "r1", "new"} == jobs.jobs().keys()


def test_a_job_that_comes_after_the_count_is_left_alone(path, jobs, url_of):
    class Late(FaultyObjects):
        async def read(self):
            if self.reads == 1:  # the first was for the count
                await other(path).enqueue("report", b"", job_id="late")
            return await super().read()

    storage = Late(LocalFileSystemStorage(path))
    assert 1 == values("cancel", url_of(storage), "--entrypoint", "report", "--yes")["cancelled"]
    assert {"running", "dead", "m1", "m2", "m3", "late"} == jobs.jobs().keys()


def test_a_job_that_no_longer_fits_the_filters_is_left_alone(path, queue, url_of):
    async def happen(_):
        await other(path).reschedule("later", delay=0)

    queue.enqueue("mail", b"", job_id="later", delay=3600)
    counts = values("update", url_of(Meanwhile(path, happen)), "--status", "scheduled", "-p", "5", "-y", status=1)
    assert {"matched": 1, "updated": 0, "changed_meanwhile": 1, "refused": 0} == counts
    assert 0 == queue.find("later").priority


async def lose_the_store(storage):
    storage.on_read(*[Fault.LOST_REQUEST] * 10_000)
    storage.on_write(Fault.LOST_ANSWER)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ("enqueue mail", "the job is then added at most once"),
        ("limit mail --running 2", "Look at the queue (`jqueue ls`, `jqueue stats`) before you repeat it"),
        ("cancel --all --yes", "for 4 jobs: the connection failed before it was certain"),
    ],
)
def test_a_change_whose_answer_is_lost_for_good_has_an_unknown_outcome(path, jobs, url_of, virtual, arguments, advice):
    command, *options = arguments.split()
    error = refused(command, url_of(Meanwhile(path, lose_the_store)), *options)
    assert error.startswith("the outcome is unknown")
    assert advice in error


def test_a_store_that_refuses_half_way_is_an_error_that_counts_the_changed_jobs(path, queue, url_of):
    async def refuse(_):
        raise StorageFatalError("access to the bucket 'jobs' was refused")

    queue.enqueue_many([Enqueue("mail")] * 2500)
    error = refused("cancel", url_of(Meanwhile(path, refuse, number=2)), "--all", "--yes")
    assert error.startswith("access to the bucket 'jobs' was refused. 1,000 jobs were cancelled before. Run the")


# One job more


def test_every_option_of_a_job_is_a_flag(path, queue):
    flags = {
        "--priority=-5": ("priority", -5),
        "--job-id=mine": ("id", "mine"),
        "--run-at=2030-01-02T03:04": ("run_at", datetime(2030, 1, 2, 3, 4, tzinfo=UTC)),
        "--expires-at=2030-01-02T03:04+01:00": ("expires_at", datetime(2030, 1, 2, 2, 4, tzinfo=UTC)),
        "--unique-key=k": ("unique_key", "k"),
        "--header=a=b=c": ("headers", {"a": "b=c"}),
        "--max-attempts=3": ("max_attempts", 3),
        "--concurrency-key=c": ("concurrency_key", "c"),
        "--concurrency-limit=2": ("concurrency_limit", 2),
        "--fair-key=f": ("fair_key", "f"),
        "--fair-weight=0.25": ("fair_weight", 0.25),
        "--keep-result=2h": ("keep_result", 7200),
    }
    assert "mine" == text("enqueue", path, "mail", "text", *flags, "--unique-for", "60", "--on-conflict", "raise")
    job = queue.jobs()["mine"]
    assert dict(flags.values()) == {name: getattr(job, name) for name, _ in flags.values()}
    assert b"text" == job.payload
    later = queue.find(text("enqueue", path, "mail", "--delay", "15m"))
    assert timedelta(minutes=15) == later.run_at - later.created_at


@pytest.mark.parametrize("source", ["-", "--file pipe"])
def test_a_payload_of_any_size_is_taken_from_a_file_a_pipe_or_the_standard_input(
    path, queue, tmp_path, monkeypatch, source
):
    monkeypatch.chdir(tmp_path)
    content = bytes(range(256)) * 300
    os.mkfifo("pipe")
    writer = threading.Thread(target=Path("pipe").write_bytes, args=(content,))
    if source.endswith("pipe"):  # the shell writes `--file <(command)` so: it cannot be read twice
        writer.start()
    job_id = text("enqueue", path, "mail", *source.split(), stdin=content if source == "-" else None)
    if source.endswith("pipe"):
        writer.join()
    with SyncQueue(path) as opened:
        assert content == b"".join(opened.open_payload(queue.find(job_id)))


def test_a_job_that_is_there_already_is_named_and_not_added_again(path, queue):
    for flags in (["--job-id", "one"], ["--unique-key", "k"]):
        first, again = (values("enqueue", path, "mail", *flags) for _ in range(2))
        assert (True, False, first["id"]) == (first["added"], again["added"], again["id"])
        result = run("enqueue", path, "mail", *flags)
        assert (0, f"{first['id']}\n") == (result.exit_code, result.stdout)
        assert result.stderr.startswith("jqueue: no job was added: ")
    assert "Unique key 'k' is taken" in refused("enqueue", path, "mail", "--unique-key", "k", "--on-conflict", "raise")
    queue.ack_many(queue.dequeue(batch_size=2))
    assert "that job has finished" in run("enqueue", path, "mail", "--job-id", "one").stderr


def test_the_first_enqueue_creates_the_queue_and_says_so_and_a_folder_only_on_request(path):
    created = run("enqueue", path, "mail")
    assert (0, f"jqueue: there was no queue at {path}: this job created it\n") == (created.exit_code, created.stderr)
    text("enqueue", path, "mail")  # nothing to say
    missing = path.parent / "folder" / "queue.json"
    assert "does not exist; correct the path, or add --create" in refused("enqueue", missing, "mail")
    assert not missing.parent.exists()
    assert 0 == run("enqueue", missing, "mail", "--create").exit_code
    assert f"there is a queue at {path} already: it was left as it is" == refused("init", path)


# Limits, settings, cron entries


def test_each_limit_is_set_for_itself(path, queue):
    unknown = run("limit", path, "mail", "--running", "9")
    assert (0, True) == (unknown.exit_code, "has this entrypoint yet: check its name" in unknown.stderr)
    queue.enqueue("mail")
    assert "in progress: no limit; claims: no limit" == text("limit", path, "mail", "--reset")
    said = text("limit", path, "mail", "--running", "2")
    assert "in progress: at most 2; claims: no limit; set by an operator" == said
    answer = values("limit", path, "mail", "--rate", "100", "--per", "1m")
    assert {"running": 2, "rate": 100, "per": 60, "paused": False, "changed": True}.items() <= answer.items()
    said = text("limit", path, "mail", "--no-running")
    assert "in progress: no limit; claims: at most 100 in 60 s; set by an operator" == said
    assert "set by an operator" in text("stats", path)
    said = text("limit", path, "mail", "--no-rate", "--key-rate", "3", "--key-per", "1m")
    assert "in progress: no limit; claims: no limit; by key: at most 3 in 60 s; set by an operator" == said
    assert "3 in 60 s by key" in " ".join(text("stats", path).split())
    assert "give --reset alone" in refused("limit", path, "mail", "--reset", "--no-key-rate")
    assert "in progress: no limit; claims: no limit" == text("limit", path, "mail", "--reset")


def test_a_limit_equal_to_the_programs_is_an_operators_if_the_command_names_it(path, queue):
    queue.limit("mail", running=2)
    assert values("limit", path, "mail")["by_operator"] is False
    assert values("limit", path, "mail", "--running", "2")["by_operator"] is True
    assert values("limit", path, "mail", "--reset") == values("limit", path, "mail") | {"changed": True}


def test_a_cron_entry_is_paused_resumed_and_reset(path, queue):
    queue.schedule("nightly", "30 2 * * *", "clean")
    assert text("schedule", path, "nightly", "--pause").startswith("paused")
    assert "paused" in text("stats", path)
    assert text("schedule", path, "nightly", "--resume").startswith("resumed; the next job is enqueued at")
    text("schedule", path, "nightly", "--priority", "7")
    assert values("stats", path)["schedules"][0]["by_operator"] is True
    assert "the program's values hold again" == text("schedule", path, "nightly", "--reset")
    [entry] = queue.schedules()
    assert (0, None, False) == (entry.priority, entry.declared, entry.paused)
    assert "there is no cron entry 'hourly'" in refused("schedule", path, "hourly", "--pause")


def test_every_setting_of_a_queue_can_be_configured(path, queue):
    before = values("configure", path)
    settings = {
        "history": ("7d", 7 * 86400),
        "blob_bytes": ("64MiB", 64 << 20),
        "dead_retention": ("30d", 30 * 86400),
    }
    for name, (typed, value) in settings.items():
        assert value == values("configure", path, f"--{name.replace('_', '-')}", typed)[name]
    configured = values("configure", path)
    assert settings.keys() <= configured.keys() == before.keys()
    assert "history 7 d" in text("configure", path)
    assert "--history takes a number with a unit" in refused("configure", path, "--history", "30")
    for name in settings:
        values("configure", path, f"--no-{name.replace('_', '-')}")
    assert before == values("configure", path)


def test_a_cron_entry_is_set_run_and_removed(path, queue):
    cron = ["--cron", "30 2 * * *", "--entrypoint", "clean", "--timezone", "Europe/Berlin", "--max-attempts", "3"]
    sentence = text("schedule", path, "nightly", '{"all": true}', *cron)
    [entry] = queue.schedules()
    assert f"added; the first job is enqueued at {entry.next_at:%Y-%m-%d %H:%M:%S} UTC" == sentence
    assert ("Europe/Berlin", 3, b'{"all": true}') == (entry.timezone, entry.max_attempts, entry.payload)
    assert values("schedule", path, "nightly", *cron)["replaced"]
    large = ["--file", "-"]
    assert "is kept in" in refused("schedule", path, "n", *cron, *large, stdin=SECRET * 100_000)
    assert "clean" == queue.find(values("schedule", path, "nightly", "--run-now")["id"]).entrypoint
    assert {"name": "nightly", "removed": True} == values("schedule", path, "nightly", "--remove")
    assert "'nightly'" in refused("schedule", path, "nightly", "--run-now")


def test_one_field_of_a_cron_entry_is_changed_and_the_others_stay(path, queue):
    queue.schedule("nightly", "30 2 * * *", "clean", b"all", timezone="Europe/Berlin", max_attempts=3, priority=-5)
    [before] = queue.schedules()
    changes = {
        "priority": (["--priority", "7"], 7),
        "cron": (["--cron", "0 4 * * *"], "0 4 * * *"),
        "payload": (["some"], b"some"),
        "timezone": (["--timezone", "UTC"], "UTC"),
    }
    for name, (options, value) in changes.items():
        assert text("schedule", path, "nightly", *options).startswith(
            "changed the entry of this name; the next job is "
        )
        [after] = queue.schedules()
        expected = before.evolve(**{name: value}, next_at=after.next_at, fired=after.fired, declared=after.declared)
        assert expected == after
        before = after
    assert "give what is to be changed" == refused("schedule", path, "nightly")
    assert "give --cron" in refused("schedule", path, "daily", "--cron", "0 4 * * *")


def test_all_entrypoints_are_paused_in_one_commit(path, jobs):
    before = jobs.read_state().version
    assert {"entrypoints": ["mail", "report"], "paused": True, "changed": 2} == values("pause", path, "--all")
    state = jobs.read_state()
    assert (before + 1, True, True) == (state.version, *(state.entrypoints[name].paused for name in ("mail", "report")))
    assert "give the name of one entrypoint, or --all" in refused("pause", path)


def test_redriven_jobs_become_ready_at_a_rate(path, queue):
    for number in range(3):
        queue.kill(f"dead{number}")
    assert 3 == values("redrive", path, "--all", "--delay", "1h", "--rate", "10/min", "--yes")["redriven"]
    times = [
        job.run_at - job.queued_at for job in sorted(queue.read_state().queued_jobs(), key=lambda job: job.sequence)
    ]
    assert [timedelta(seconds=3600 + 6 * number) for number in range(3)] == times
    queue.kill("one")
    assert "is queued again" in text("redrive", path, "one", "--rate", "10/min")
    assert queue.find("one").run_at is None
    for wrong in ("10", "0/min", "x/min", "10/x", "-1/s"):
        told = refused("redrive", path, "--all", f"--rate={wrong}")
        assert "--rate takes a number and a period: 5/s, 10/min, 100/h" in told


@pytest.mark.skipif(os.name != "posix", reason="no limits of processes")
def test_a_disk_that_takes_no_more_is_told_at_once_while_the_command_goes_on_trying(tmp_path):
    limited = ["sh", "-c", 'ulimit -f 0 && exec "$@"', "sh", sys.executable, "-m", "jqueue"]
    words = [*limited, "enqueue", tmp_path / "queue.json", "mail", "hello"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        try:
            assert command.stderr is not None
            assert "raise the limit (ulimit -f)" in command.stderr.readline()
            assert command.poll() is None
        finally:
            command.kill()
