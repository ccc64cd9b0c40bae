"""`jqueue export` and `import`: jobs as JSON lines, and back into a queue without doubles."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli import on_queue
from jqueue.cli.app import app
from jqueue.core.blob.job_lines import export_line, import_line
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.operations import Enqueue
from jqueue.testing.faults import Fault, FaultyStorage
from tests.cli.hostile import HOSTILE
from tests.tiny_segments import spilled, tiny_queue


def run(*arguments, **options):
    runner = CliRunner(env={"COLUMNS": "80"})
    return runner.invoke(app, [*map(str, arguments)], catch_exceptions=False, **options)


def on(path, work):
    async def go():
        async with DirectQueue(LocalFileSystemStorage(path), limits=Limits(object_bytes=1000)) as queue:
            return await work(queue)

    return asyncio.run(go())


KEPT = ("entrypoint", "priority", "created_at", "run_at", "headers", "unique_key", "max_attempts", "error")
LARGE = bytes(range(256)) * 20


async def add(queue):
    """Add a job of each status; one has a large payload, one a large result."""
    await queue.enqueue("mail", LARGE, job_id="large", priority=5, headers={"a": "b"}, unique_key="k")
    await queue.enqueue("mail", b"\x1b[2J", job_id="later", delay=3600, max_attempts=7)
    for job_id in ("running", "dead", "done"):
        await queue.enqueue("report", job_id.encode(), job_id=job_id, priority=-1, keep_result=3600)
    _, dead, done = await queue.dequeue("report", batch_size=3)
    await queue.nack(dead, error="boom", dead=True)
    await queue.ack(done, result=["x" * 5000])


@pytest.fixture
def exported(tmp_path):
    path = tmp_path / "queue.json"
    on(path, add)
    assert 0 == run("export", path, "--output", tmp_path / "jobs.jsonl").exit_code
    return tmp_path / "jobs.jsonl"


def payloads(path):
    async def read(queue):
        state = await queue.read_state()
        return {job.id: b"".join([piece async for piece in queue.open_payload(job)]) for job in state.jobs}, state

    return on(path, read)


def test_an_import_restores_what_was_exported(exported, tmp_path):
    copy = tmp_path / "copy.json"
    result = run("import", copy, exported, "--create")
    assert (0, "") == (result.exit_code, result.stderr)
    assert "4 jobs added\n1 job left out: they were completed\n" == result.stdout
    found, state = payloads(copy)
    assert {"large": LARGE, "later": b"\x1b[2J", "running": b"running", "dead": b"dead"} == found
    original = payloads(exported.with_name("queue.json"))[1]
    for job in state.jobs:
        before = original.find(job.id)
        for name in (
            "entrypoint",
            "priority",
            "created_at",
            "run_at",
            "headers",
            "unique_key",
            "max_attempts",
            "error",
        ):
            assert getattr(before, name) == getattr(job, name), (job.id, name)
        assert job.attempt >= before.attempt
    assert {"queued": 3, "dead": 1} == {
        status: sum(job.status == status for job in state.jobs) for status in ("queued", "dead")
    }


def test_an_import_repeated_adds_nothing(exported, tmp_path):
    copy = tmp_path / "copy.json"
    run("import", copy, exported, "--create")
    [job] = on(copy, lambda queue: queue.dequeue("mail"))
    on(copy, lambda queue: queue.cancel("later"))
    on(copy, lambda queue: queue.ack(job))
    dry = json.loads(run("import", copy, exported, "--dry-run", "--json").stdout)
    expected = {"added": 1, "there": 2, "finished": 1, "completed": 1, "refused": [], "dry_run": False}
    assert {**expected, "dry_run": True} == dry
    assert expected == json.loads(run("import", copy, exported, "--json").stdout)
    assert {"running", "dead", "later"} == set(payloads(copy)[0])


def test_an_export_is_ascii_and_holds_the_results(exported, tmp_path):
    jobs = {each["id"]: each for each in map(json.loads, exported.read_text(encoding="ascii").splitlines())}
    assert [["x" * 5000]] == [job["result"] for job in jobs.values() if "result" in job]
    assert 0o600 == exported.stat().st_mode & 0o777
    path = tmp_path / "queue.json"
    assert exported.read_text() == run("export", path).stdout
    assert ["dead"] == [json.loads(line)["id"] for line in run("export", path, "--status", "dead").stdout.splitlines()]
    again = run("export", path, "--output", exported)
    assert (2, f"jqueue: the file '{exported}' exists already: choose another name, or remove it\n") == (
        again.exit_code,
        again.stderr,
    )
    missing = run("export", path, "--output", tmp_path / "no" / "file", "--json")
    assert "cannot be made: No such file or directory" in json.loads(missing.stdout)["error"]


def test_lines_that_are_no_jobs_are_refused_and_the_others_added(exported, tmp_path):
    lines = exported.read_text().splitlines()
    text = "\n".join([lines[0], "{hunter2", "", "[]", '{"id": "a", "entrypoint": 3}', lines[1]])
    copy = tmp_path / "copy.json"
    result = run("import", copy, "-", "--create", input=text)
    assert (1, "2 jobs added\n3 jobs refused\n") == (result.exit_code, result.stdout)
    assert ["jqueue: line 2: it is not JSON", 'jqueue: line 4: it is not an object with an "id"'] == (
        result.stderr.splitlines()[:2]
    )
    assert "jqueue: line 5: it is not a job: " in result.stderr
    assert "hunter2" not in result.stderr


def test_an_import_needs_a_queue_and_a_file(exported, tmp_path):
    missing = run("import", tmp_path / "copy.json", exported)
    assert (2, "") == (missing.exit_code, missing.stdout)
    assert "check the URL, or add --create to make the queue" in missing.stderr
    no_file = run("import", tmp_path / "queue.json", tmp_path / "absent")
    assert 2 == no_file.exit_code
    assert "cannot be read: No such file or directory" in no_file.stderr


def test_a_full_queue_refuses_what_does_not_fit(exported, tmp_path):
    copy = tmp_path / "copy.json"
    on(copy, lambda queue: queue.configure(blob_bytes=600))
    result = run("import", copy, exported, "--json")
    assert 1 == result.exit_code
    report = json.loads(result.stdout)
    assert report["refused"]
    assert 4 == report["added"] + len(report["refused"])


def test_a_line_of_any_job_is_read_back(tmp_path):
    path = tmp_path / "queue.json"

    async def make(queue):
        await queue.enqueue("mail", b"\xff", headers={"k": "ü\u202e"}, unique_key="漢字", concurrency_key="c")
        await queue.dequeue(holder="w@h:1")
        return (await queue.read_state()).jobs[0]

    job = on(path, make)
    line = export_line(job)
    assert line.isascii()
    assert "\n" not in line
    assert job == import_line(line.encode())
    odd = job.evolve(error=HOSTILE, entrypoint=HOSTILE)
    assert odd == import_line(export_line(odd).encode())


@pytest.mark.parametrize("line", [b"", b"3", b'{"id": ""}', b'{"id": 3}', b'{"id": "a"}', b"\xff"])
def test_other_lines_are_refused(line):
    with pytest.raises(InvalidJobError, match=r"^it is not "):
        import_line(line)


def test_an_import_that_loses_its_connection_can_be_repeated(tmp_path, monkeypatch):
    path, lines = tmp_path / "queue.json", tmp_path / "jobs.jsonl"
    job = Job.new("mail", b"x")
    lines.write_text("".join(export_line(job.evolve(id=f"job-{number}")) + "\n" for number in range(1200)))
    storage = FaultyStorage(LocalFileSystemStorage(path))
    storage.on_write(Fault.LOST_ANSWER, *[Fault.LOST_REQUEST] * 1000)
    monkeypatch.setattr(on_queue, "SECOND_THOUGHT", 0.2)
    monkeypatch.setattr("jqueue.cli.import_.BATCH", 500)
    monkeypatch.setattr(on_queue, "connect_queue", lambda *_, **__: DirectQueue(storage, deadline=1))
    broken = run("import", path, lines, "--create")
    assert (2, "", 1) == (broken.exit_code, broken.stdout, broken.stderr.count("\n"))
    assert "500 jobs added before: repeat the import" in broken.stderr
    monkeypatch.undo()
    again = json.loads(run("import", path, lines, "--json").stdout)
    assert (700, 500, []) == (again["added"], again["there"], again["refused"])
    assert {f"job-{number}" for number in range(1200)} == set(payloads(path)[0])


async def fill(queue, *, deep):
    """Add jobs of several priorities and times. Some are claimed, one is due by now, and some come back."""

    async def settled():
        if deep:
            await spilled(queue)

    for start in (0, 12):
        jobs = [Enqueue("mail", b"", number % 3, job_id=f"{number:02}") for number in range(start, start + 12)]
        late = [Enqueue("mail", b"", job_id=f"late {start} {number}", delay=3600 - number) for number in range(3)]
        await queue.enqueue_many([*jobs, *late])
        await settled()
    await queue.enqueue("mail", b"", job_id="due", delay=0.001)
    for job in await queue.dequeue(batch_size=3):
        await queue.nack(job)
    await settled()
    await queue.dequeue(batch_size=2)
    await queue.enqueue("mail", b"", job_id="first", priority=-1)


async def served(queue):
    """Claim all ready jobs, and return the ids in their order; then the scheduled ones, as they are due."""
    later = [job async for job in queue.iterate_jobs() if job.run_at is not None and job.id != "due"]
    ready = [job.id for job in await queue.dequeue(batch_size=100)]
    return ready, [job.id for job in sorted(later, key=lambda job: (job.run_at, job.priority, job.sequence))]


@pytest.mark.parametrize("deep", [False, True])
def test_an_export_has_the_order_of_the_queue_and_an_import_keeps_it(tmp_path, deep):
    path, copy, lines = tmp_path / "queue.json", tmp_path / "copy.json", tmp_path / "jobs.jsonl"

    async def make():
        async with tiny_queue(LocalFileSystemStorage(path), hot_bytes=0 if deep else 1 << 20) as queue:
            await fill(queue, deep=deep)
            return len((await queue.read_state()).segments)

    assert deep == (asyncio.run(make()) > 1)
    assert 0 == run("export", path, "--output", lines).exit_code
    assert 0 == run("import", copy, lines, "--create").exit_code
    on(path, lambda queue: queue.requeue_stale(0))
    exported = [json.loads(line)["id"] for line in lines.read_text().splitlines()]
    ready, later = on(copy, served)
    assert exported == [*ready, *later]
    assert ["first"] == ready[:1]
    ours, ours_later = on(path, served)
    assert (set(ours), ours_later) == (set(ready), later)
