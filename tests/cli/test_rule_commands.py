"""`jqueue limit`, `configure`, `schedule`, `unschedule`, `run-now --schedule` and `requeue-stale`."""

from datetime import UTC, datetime, timedelta

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.job_flags import flag_of
from jqueue.domain.job_options import SCHEDULE_OPTIONS
from jqueue.domain.models import QueueSettings
from tests.cli.commands import SECRET, Blocking, refused, run, text, values


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def queue(path):
    run("init", path)
    return Blocking(path)


def test_each_limit_is_set_for_itself(path, queue):
    assert "in progress: at most 2; claims: no limit" == text("limit", path, "mail", "--running", "2")
    found = values("limit", path, "mail", "--rate", "100", "--per", "1m")
    assert {"running": 2, "rate": 100, "per": 60, "paused": False, "changed": True}.items() <= found.items()
    queue.pause("mail")
    said = text("limit", path, "mail", "--no-running")
    assert "in progress: no limit; claims: at most 100 in 60 s; this entrypoint is paused" == said
    assert values("limit", path, "mail", "--no-rate")["rate"] is None
    assert queue.read_state().entrypoints["mail"].paused


def test_limits_are_shown_without_a_commit(path, queue):
    before = path.read_bytes()
    assert "in progress: no limit; claims: no limit" == text("limit", path, "mail")
    assert not values("limit", path, "mail", "--no-running")["changed"]
    assert before == path.read_bytes()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--rate 5", "give --rate and --per together"),
        ("--running 5 --no-running", "give a limit, or the option that removes it, not both"),
        ("--rate 5 --per soon", "--per takes seconds, or a number with a unit"),
        ("--rate 5 --per 0", "per must be more than 0 seconds"),
    ],
)
def test_wrong_limits_are_refused_in_one_line(path, queue, flags, said):
    assert said in refused("limit", path, "mail", *flags.split())


def test_a_limit_set_by_another_operator_meanwhile_is_not_lost(path, queue, monkeypatch):
    """Two at once: both read, the other sets a rate, and then we set the number of running jobs."""
    original = DirectQueue.apply
    others = iter([lambda: DirectQueue(LocalFileSystemStorage(path)).limit("mail", rate=5, per=60)])

    async def apply(self, *operations, **options):
        for other in others:
            await other()
        return await original(self, *operations, **options)

    monkeypatch.setattr(DirectQueue, "apply", apply)
    assert {"running": 2, "rate": 5}.items() <= values("limit", path, "mail", "--running", "2").items()


SETTINGS = [
    ("--history 7d", "history", 7 * 86400),
    ("--history-bytes 2GiB", "history_bytes", 2 << 30),
    ("--history-payloads", "history_payloads", True),
    ("--dead-retention 90s", "dead_retention", 90),
    ("--aging 60", "aging", 60),
    ("--blob-bytes 64MiB", "blob_bytes", 64 << 20),
]


def test_every_setting_of_a_queue_can_be_configured(path, queue):
    for flags, name, value in SETTINGS:
        assert value == values("configure", path, *flags.split())[name]
    assert {name: value for _, name, value in SETTINGS} == values("configure", path)
    assert QueueSettings.model_fields.keys() == {name for _, name, _ in SETTINGS}
    shown = text("configure", path)
    assert "history 7 d" in shown
    assert "blob-bytes 64.0 MiB" in shown
    for flags, _, _ in SETTINGS:
        values("configure", path, f"--no-{flags.split()[0][2:]}")
    assert QueueSettings() == queue.read_state().settings


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--history 7d --no-history", "give --history or --no-history, not both"),
        ("--history 0", "history must be more than 0 seconds"),
        ("--aging long", "--aging takes seconds"),
        ("--blob-bytes 5TB", "--blob-bytes takes a number of bytes, or one with a unit"),
        ("--blob-bytes 0", "blob_bytes must be from 1"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(path, queue, flags, said):
    assert said in refused("configure", path, *flags.split())
    assert QueueSettings() == queue.read_state().settings


def test_a_cron_entry_is_set_run_now_and_removed(path, queue):
    cron = ["--cron", "30 2 * * *", "--entrypoint", "clean", "--timezone", "Europe/Berlin", "--max-attempts", "3"]
    said = text("schedule", path, "nightly", '{"all": true}', *cron)
    [entry] = queue.schedules()
    assert f"added; the first job is enqueued at {entry.next_at:%Y-%m-%d %H:%M:%S} UTC" == said
    assert ("30 2 * * *", "Europe/Berlin", "clean", 3) == (
        entry.cron, entry.timezone, entry.entrypoint, entry.max_attempts
    )  # fmt: skip
    assert values("schedule", path, "nightly", *cron)["replaced"]
    ran = values("run-now", path, "--schedule", "nightly")
    assert ("clean", 3) == (queue.jobs()[ran["id"]].entrypoint, queue.jobs()[ran["id"]].max_attempts)
    assert {"name": "nightly", "removed": True} == values("unschedule", path, "nightly")
    assert "there is no cron entry of this name" in refused("unschedule", path, "nightly")
    assert "there is no cron entry 'nightly'" == refused("run-now", path, "--schedule", "nightly")


def test_every_option_of_the_jobs_of_a_cron_entry_is_a_flag():
    shown = run("schedule", "--help").stdout
    assert all(flag_of(name, option) in shown for name, option in SCHEDULE_OPTIONS.items())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cron", "at noon", "--entrypoint", "x"], "cron"),
        (["--cron", "0 2 * * *", "--entrypoint", "x", "--timezone", "Moon/Base"], "Moon/Base"),
        (["--cron", "0 2 * * *", "--entrypoint", "x", "--file", "-"], "the payload of a cron entry is kept in"),
    ],
)
def test_a_wrong_cron_entry_is_refused_in_one_line(path, queue, flags, said):
    assert said in refused("schedule", path, "nightly", *flags, stdin=SECRET * 100_000)
    assert [] == queue.schedules()


def test_stale_jobs_are_counted_and_taken_back(path, queue):
    queue.enqueue("mail", job_id="one")
    queue.dequeue()
    assert {"requeued": 0} == values("requeue-stale", path, "--timeout", "5m")
    assert {"requeued": 0, "would_requeue": 1} == values("requeue-stale", path, "--timeout", "0", "--dry-run")
    assert "1 job has no heartbeat within this time" == text("requeue-stale", path, "--timeout", "0", "--dry-run")
    assert "1 job taken back" == text("requeue-stale", path, "--timeout", "0")
    assert ["one"] == [job.id for job in queue.read_state().queued_jobs()]
    assert "--timeout takes seconds" in refused("requeue-stale", path, "--timeout", "long")


def test_a_scheduled_job_is_made_ready(path, queue):
    job = queue.enqueue("mail", run_at=datetime.now(UTC) + timedelta(days=1))
    assert [] == queue.dequeue()
    assert "the job (mail) is ready" == text("run-now", path, job.id[:8])
    assert [job.id] == [claimed.id for claimed in queue.dequeue()]


def test_a_pause_of_an_entrypoint_that_nobody_has_says_so(path, queue):
    queue.enqueue("mail", b"")
    result = run("pause", path, "nope")
    assert (0, True) == (result.exit_code, result.stdout.startswith("paused until"))
    assert "jqueue: no job, worker or cron entry has this entrypoint yet: check its name\n" == result.stderr
    text("pause", path, "mail")
