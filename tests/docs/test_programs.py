"""Programs, tests and commands of the pages, run as their readers run them."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from jqueue import BrokerQueue, LocalFileSystemStorage, open_storage
from jqueue.domain.header import WorkerRecord
from jqueue.domain.limits import Limits
from tests.cli.commands import run
from tests.tiny_segments import tiny_queue

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CHANGING = re.compile(r"^\d{4}-\S+ \S+ |\b[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}\b", re.MULTILINE)


def blocks(text, language):
    return re.findall(rf"^```(?:{language})\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def python(folder, *arguments, **options):
    """Return the output of a program, with its errors."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        **options,
    )
    return ended.stdout


def shell(commands):
    subprocess.run(["bash", "-euc", commands], check=True, timeout=60)


@pytest.mark.wide
def test_the_first_job_is_short_and_prints_the_session_of_the_page(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## A first job")[2]
    program, session, *_ = blocks(text, "python|console")
    assert len(program.splitlines()) <= 30
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    enqueued = python(tmp_path, "app.py", check=True)
    worked = python(tmp_path, "-u", "-m", "jqueue", "worker", "app:worker", "queue.json", "--drain", check=True)
    *lines, last = worked.replace(str(tmp_path), "/srv/app").splitlines(keepends=True)
    shown = ["$ python app.py\n", enqueued, "$ jqueue worker app:worker queue.json\n", *lines, "^C\n", last]
    assert CHANGING.sub("", session) == CHANGING.sub("", "".join(shown))


@pytest.mark.wide
def test_the_tests_of_the_guide_pass(tmp_path):
    page = (DOCS / "guide/tests.md").read_text(encoding="utf-8")
    (tmp_path / "test_app.py").write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text("\n".join(blocks(page, "toml")), encoding="utf-8")
    output = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    assert output.splitlines()[-1].startswith(f"{page.count('def test_')} passed"), output


@pytest.mark.wide
@pytest.mark.parametrize("faulty", [False, True])
def test_the_tests_for_your_own_storage_pass_for_a_correct_one_and_fail_for_a_faulty_one(tmp_path, faulty):
    page = (DOCS / "reference/testing.md").read_text(encoding="utf-8").partition("## Your own storage")[2]
    storage, tests = blocks(page, "python")
    careless = storage.replace("if if_match != (await self.read())[1]:", "if False:")
    assert careless != storage
    (tmp_path / "test_my_storage.py").write_text((careless if faulty else storage) + tests, encoding="utf-8")
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", "-W", "ignore", "-o", "asyncio_mode=strict"]
    options += ["-x", "-k", "TestMyStorage"] if faulty else []
    output = python(tmp_path, "-m", "pytest", *options, str(tmp_path))
    if faulty:
        assert re.search(r"^FAILED .*TestMyStorage", output, re.MULTILINE), output
    else:
        assert re.search(r"^[6-9]\d passed", output.splitlines()[-1]), output


# Commands


TASKS = re.findall(
    r"^\| [^|]+ \| `(jqueue [^`]+)` \|", (DOCS / "operations/README.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.wide
@pytest.mark.parametrize("named", ["by an argument", "by the environment"])
def test_each_of_twenty_tasks_is_done_by_its_command(tmp_path, monkeypatch, named):
    assert len(TASKS) >= 20

    async def fill(path):
        async with BrokerQueue(LocalFileSystemStorage(path)) as queue:
            queue.attend("run", lambda at: WorkerRecord(name="WORKER", at=at), list)
            await queue.configure(history=86400)
            await queue.schedule("nightly", "0 3 * * *", "report")
            for name in ("mail", "resize"):
                await queue.enqueue(name, b"")
                await queue.enqueue(name, b"", max_attempts=1)
            await queue.ack((await queue.dequeue("mail"))[0])
            await queue.nack((await queue.dequeue("mail"))[0], error="TimeoutError: no answer")
            await queue.dequeue("resize")
            return (await queue.enqueue("mail", b"", delay=3600)).id

    for number, command in enumerate(TASKS):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        job_id = asyncio.run(fill(folder / "queue.json"))
        words = [job_id[:8] if word == "ID" else word for word in shlex.split(command)[1:]]
        if named == "by the environment":
            words.remove("queue.json")
            monkeypatch.setenv("JQUEUE_URL", "queue.json")
        if words[0] not in ("worker", "metrics", "dashboard") and "--watch" not in words:  # which do not end
            result = run(*words, *["--yes"] * (words[0] == "redrive" and "--entrypoint" in words))  # a terminal asks
            assert 0 == result.exit_code, (command, result.output)


def test_a_backup_is_a_queue_and_brings_back_jobs_of_every_kind(tmp_path, monkeypatch):
    """By the commands of the pages, for a queue with all four folders beside it."""
    monkeypatch.chdir(tmp_path)
    backup, _ = blocks((DOCS / "guide/operating.md").read_text(encoding="utf-8"), "bash")
    page = (DOCS / "operations/runbook.md").read_text(encoding="utf-8").partition("## Restore a backup")[2]
    restore, _, rest = blocks(textwrap.dedent(re.sub("(?m)^   ", "", page)), "bash")
    payloads = {f"job {number}": bytes([number]) * 600 * (1 + number % 2) for number in range(40)}

    def queue(path="queue.json"):
        limits = Limits(object_bytes=1000)
        return tiny_queue(LocalFileSystemStorage(path), limits, hot_bytes=5000, events_per_object=20)

    async def fill():
        first = queue()
        await first.configure(history=86400)
        await first.enqueue("result", b"", keep_result=86400, job_id="with a result", priority=-1)
        for job_id, payload in payloads.items():
            await first.enqueue("work", payload, job_id=job_id)
        await first.ack((await first.dequeue("result"))[0], result="r" * 1200)

    async def use():
        await queue().enqueue("work", b"new", job_id="new")
        while jobs := await queue().dequeue("work", batch_size=10):
            await queue().ack_many(jobs)
        await queue().enqueue("work", b"newer", job_id="newer")

    async def contents(path="queue.json"):
        opened = queue(path)
        jobs = [job async for job in opened.iterate_jobs() if job.status == "queued"]
        payloads = {job.id: b"".join([part async for part in opened.open_payload(job)]) for job in jobs}
        return payloads, await opened.result("with a result")

    asyncio.run(fill())
    shell(backup)
    asyncio.run(use())
    assert all(any(Path(f"queue.json.{name}").iterdir()) for name in ("segments", "payloads", "results", "history"))
    assert (payloads, "r" * 1200) == asyncio.run(contents("backup/queue.json"))
    shell(restore)
    assert (payloads, "r" * 1200) == asyncio.run(contents())
    for command in rest.splitlines():
        assert 0 == run(*shlex.split(command)[1:]).exit_code
    assert ({**payloads, "newer": b"newer"}, "r" * 1200) == asyncio.run(contents())


# Stores


STORES = (DOCS / "guide/stores.md").read_text(encoding="utf-8")
URLS = {url for url in re.findall(r"[`'\" ]((?:s3|gs|az|memory|file)://[^`'\"\s)]+)", STORES) if "…" not in url}


def test_each_url_of_the_page_on_stores_names_a_storage_and_passes_a_shell_unchanged(monkeypatch):
    """Without quotes, bash would end the command at an &, and would look for matching files at a ?."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    for url in URLS:
        assert open_storage(url, create=True) is not None  # the folders of an example do not exist here
    for command in [line for block in blocks(STORES, "bash") for line in block.splitlines() if "://" in line]:
        script = f'shopt -s failglob; jqueue() {{ echo "${{@: -1}}"; }}; {command}'
        shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, env={})
        assert (0, "") == (shell.returncode, shell.stderr)
        assert shell.stdout.strip() in URLS or command.startswith("export ")


@pytest.mark.wide
def test_the_table_of_requests_matches_the_count():
    from benchmarks.requests_per_job import table

    assert table() in (DOCS / "reference/stores.md").read_text(encoding="utf-8")
