"""`jqueue export`, `import` and `migrate`: jobs leave a queue and come into another, once each."""

import asyncio
import json
import os

import pytest

from jqueue import LocalFileSystemStorage, connect
from jqueue.operations import Enqueue, RecordStep
from jqueue.sync import SyncQueue
from jqueue.testing.faults import Fault, FaultyObjects
from tests.cli.commands import SECRET, Blocking, deep, refused, run, text, values

LARGE = bytes(range(256)) * 400


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy.json"


@pytest.fixture
def lines(tmp_path):
    return tmp_path / "jobs.jsonl"


@pytest.fixture
def exported(path, queue, lines):
    """A queue with a job of each status, one with a large payload and one with a large result; and its export."""
    queue.enqueue("mail", LARGE, job_id="large", priority=5, headers={"a": "ü\u202e"}, unique_key="漢字")
    queue.enqueue("mail", b"\x1b[2J", job_id="later", delay=3600, max_attempts=7)
    for job_id in ("running", "dead", "done"):
        queue.enqueue("report", job_id.encode(), job_id=job_id, priority=-1, keep_result=3600)
    _, dead, done = queue.dequeue("report", batch_size=3)
    queue.apply_each(RecordStep(dead, "fetch", 1, "x" * 70_000), RecordStep(dead, "fetch", 2))
    queue.nack(dead, error="boom\nforged", dead=True)
    queue.ack(done, result=["x" * 70_000])
    assert 0 == run("export", path, "--output", lines).exit_code
    return queue


def payloads(path):
    with SyncQueue(path) as queue:
        return {job.id: b"".join(queue.open_payload(job)) for job in queue.iterate_jobs()}


def test_an_import_restores_what_was_exported(exported, lines, copy):
    result = run("import", copy, lines, "--create")
    assert (0, "4 jobs added\n1 job left out: they were completed\n") == (result.exit_code, result.stdout)
    assert {"large": LARGE, "later": b"\x1b[2J", "running": b"running", "dead": b"dead"} == payloads(copy)
    before = exported.jobs()
    same = ("entrypoint", "priority", "created_at", "run_at", "headers", "unique_key", "max_attempts", "error")
    for job in Blocking(copy).jobs().values():
        assert [getattr(before[job.id], name) for name in same] == [getattr(job, name) for name in same]
        if job.id == "dead":
            assert [("fetch", 1, "x" * 70_000), ("fetch", 2, None)] == [step[:2] + step[3:4] for step in job.steps]
        assert job.attempt >= before[job.id].attempt


def test_an_import_repeated_adds_only_what_is_missing(exported, lines, copy):
    run("import", copy, lines, "--create")
    queue = Blocking(copy)
    queue.cancel("later")
    queue.ack(queue.dequeue("mail")[0].claim)
    expected = {"added": 1, "there": 2, "finished": 1, "completed": 1, "refused": [], "dry_run": False}
    assert {**expected, "dry_run": True} == values("import", copy, lines, "--dry-run")
    assert expected == values("import", copy, lines)
    assert {"running", "dead", "later"} == set(payloads(copy))


def test_an_export_is_ascii_with_results_in_a_file_of_the_user(exported, path, lines):
    jobs = [json.loads(line) for line in lines.read_text(encoding="ascii").splitlines()]
    assert [["x" * 70_000]] == [job["result"] for job in jobs if "result" in job]
    assert 0o600 == lines.stat().st_mode & 0o777
    assert lines.read_text() == run("export", path).stdout
    assert ["dead"] == [json.loads(line)["id"] for line in run("export", path, "--status", "dead").stdout.splitlines()]
    assert "exists already: choose another name, or remove it" in refused("export", path, "--output", lines)
    assert "cannot be read: No such file or directory" in refused("import", path, "absent")


def test_lines_that_are_no_jobs_are_refused_by_number_and_the_others_added(exported, lines, copy):
    first, second, *_ = lines.read_text().splitlines()
    wrong = ["{hunter2", "", "[]", '{"id": "a", "entrypoint": 3}', '{"id": ""}']
    result = run("import", copy, "-", "--create", stdin="\n".join([first, *wrong, second]))
    assert (1, "2 jobs added\n4 jobs refused\n") == (result.exit_code, result.stdout)
    errors = result.stderr.splitlines()
    assert ["jqueue: line 2: it is not JSON", 'jqueue: line 4: it is not an object with an "id"'] == errors[:2]
    assert [True, True] == ["it is not a" in error for error in errors[2:]]


def test_an_import_that_loses_its_connection_says_what_it_added_and_can_be_repeated(
    path, queue, lines, copy, url_of, virtual
):
    queue.enqueue_many([Enqueue("mail", b"", job_id=f"job-{number}") for number in range(3000)])
    assert 0 == run("export", path, "--output", lines).exit_code
    run("init", copy)
    store = FaultyObjects(LocalFileSystemStorage(copy))
    store.on_write(Fault.LOST_ANSWER, *[Fault.LOST_REQUEST] * 1000)
    error = refused("import", url_of(store), lines)
    assert "jobs added before: repeat the import" in error
    added = Blocking(copy).stats().depth
    assert 0 < added < 3000
    again = values("import", copy, lines)
    assert (3000 - added, added, []) == (again["added"], again["there"], again["refused"])


def test_an_export_has_the_order_of_the_queue_and_an_import_keeps_it(path, lines, copy):
    deep(path, mail=12)
    queue = Blocking(path)
    queue.enqueue_many([Enqueue("mail", b"", number % 3, job_id=f"{number:02}") for number in range(12)])
    queue.enqueue_many([Enqueue("mail", b"", job_id=f"late {number}", delay=3600 - number) for number in range(3)])
    queue.nack(queue.dequeue()[0])  # comes back
    queue.enqueue("mail", b"", job_id="first", priority=-1)
    run("export", path, "--output", lines)
    run("import", copy, lines, "--create")
    ids = [json.loads(line)["id"] for line in lines.read_text().splitlines()]
    assert ("first", ["late 2", "late 1", "late 0"]) == (ids[0], ids[-3:])
    assert ids[:-3] == [job.id for job in Blocking(copy).dequeue(batch_size=100)]
    assert set(ids[:-3]) == {job.id for job in queue.dequeue(batch_size=100)}


def test_an_import_adds_jobs_after_their_parents_and_refuses_those_whose_parents_are_not_there(path, lines, copy):
    queue = Blocking(path)
    run("init", path)
    done = queue.enqueue("work", b"", job_id="done", keep_result=60)
    queue.ack(queue.dequeue("work")[0])
    first = queue.enqueue("work", b"", job_id="first")
    second = queue.enqueue("work", b"", job_id="second", priority=-1, after=[first])
    queue.enqueue("work", b"", job_id="third", priority=-2, after=[first, second], on_dead="run")
    queue.enqueue("work", b"", job_id="late", after=[done])
    run("export", path, "--output", lines)
    result = run("import", copy, lines, "--create")
    assert (1, "3 jobs added") == (result.exit_code, result.stdout.splitlines()[0])
    assert "after names job 'done', which the queue does not know" in result.stderr
    other = Blocking(copy)
    for name in ("first", "second", "third"):
        [job] = other.dequeue("work", batch_size=9)
        assert name == job.id
        other.ack(job)
    loops = [json.loads(line) for line in lines.read_text().splitlines() if '"second"' in line]
    again = [json.dumps({**job, "id": name, "after": [other]}) for job in loops[:1] for name, other in ("ab", "ba")]
    assert "it waits for a job that waits for it" in run("import", copy, "-", stdin="\n".join(again)).stderr


# `jqueue migrate`


@pytest.fixture
def source(path, queue):
    """A job in progress, two plain jobs, and two with a priority, which an older format cannot keep."""
    queue.enqueue("work", SECRET.encode(), job_id="held")
    queue.dequeue()
    for name, priority in (("one", 0), ("two", 0), ("urgent", -1), ("more urgent", -1)):
        queue.enqueue("work", SECRET.encode(), priority, job_id=name)
    return queue


@pytest.fixture
def older(tmp_path):
    return f"vsqs://{tmp_path}/older"


def ids(url):
    async def look():
        async with connect(str(url)) as queue:
            return sorted(job.id for job in (await queue.read_state()).jobs)

    return asyncio.run(look())


def test_a_move_is_described_by_a_dry_run_and_loses_no_feature_unasked(source, path, older, tmp_path):
    before = path.read_bytes()
    assert "2 jobs would be moved" in text("migrate", path, older, "--dry-run", status=1)
    plan = values("migrate", path, older, "--dry-run", status=1)
    assert (True, False, 2) == tuple(plan[name] for name in ("dry_run", "complete", "moved"))
    assert (1, 0) == (plan["left"]["in_progress"], plan["left"]["ready"])
    [refused] = plan["refused"]
    assert ("no priority" in refused["reason"], ["urgent", "more urgent"]) == (True, refused["ids"])
    assert (before, False) == (path.read_bytes(), (tmp_path / "older").exists())
    text("migrate", path, older, status=1)
    assert (["held", "more urgent", "urgent"], ["one", "two"]) == (sorted(ids(path)), ids(older))


def test_a_complete_move_names_the_limits_and_cron_entries_that_it_leaves_and_can_be_repeated(source, path, copy):
    source.requeue_stale(0)
    source.pause("mail")
    source.schedule("night", "0 3 * * *", "work")
    assert "5 jobs moved not copied: limits of mail, cron entry night." in text("migrate", path, copy)
    assert 5 == len(ids(copy))
    again = values("migrate", path, copy)
    assert (True, 0, str(path), str(copy)) == tuple(again[name] for name in ("complete", "moved", "source", "dest"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{0}/queue.json {0}/linked", "SOURCE and DEST are the same queue: there is nothing to move"),
        ("{0}/queue.json vsqs://{0}/file", ""),
    ],
)
def test_an_impossible_move_is_refused_and_changes_nothing(source, path, tmp_path, arguments, reason):
    os.symlink(path, tmp_path / "linked")
    (tmp_path / "file").write_text("mine")
    files = {each: each.read_bytes() for each in tmp_path.iterdir()}
    assert reason in refused("migrate", *arguments.format(tmp_path).split())
    assert files == {each: each.read_bytes() for each in tmp_path.iterdir()}
