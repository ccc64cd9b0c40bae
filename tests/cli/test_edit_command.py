"""`jqueue edit`: a part of the queue in the user's editor, saved only if nobody else has changed it."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jqueue.cli import editor as module
from jqueue.cli.documents import payload_given, payload_shown
from tests.cli.commands import SECRET, Blocking, refused, run, text, values

EDITOR = """
import json, os, pathlib, sys
file = pathlib.Path(sys.argv[1])
seen = file.read_text()
with open(os.environ["SEEN"], "a") as log:
    log.write(seen + chr(0))
body = "".join(line for line in seen.splitlines() if not line.startswith("#"))
file.write_text(json.dumps({**json.loads(body), **json.loads(os.environ["CHANGES"])}))
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def queue(path):
    """A waiting job, a dead one and a running one."""
    queue = Blocking(path)
    queue.enqueue("mail", b"", job_id="running")
    queue.dequeue()
    queue.kill("dead", error="no such address")
    queue.enqueue("mail", SECRET.encode(), job_id="waiting", max_attempts=3)
    return queue


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """`editor(changes)`: an editor that sets these fields. `editor.texts()`: the texts that it was given."""

    class Editor:
        seen = tmp_path / "seen"

        def __call__(self, changes):
            (tmp_path / "editor.py").write_text(EDITOR)
            monkeypatch.setenv("SEEN", str(self.seen))
            monkeypatch.setenv("CHANGES", json.dumps(changes))
            self.run(f"{sys.executable} -IS {tmp_path}/editor.py")

        def run(self, command):
            monkeypatch.setenv("EDITOR", command)
            monkeypatch.delenv("VISUAL", raising=False)

        def texts(self):
            return self.seen.read_text().split("\0")[:-1]

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return Editor()


def kept(result):
    """The text in the file whose name is printed."""
    [line] = [line for line in result.stderr.splitlines() if "is kept in" in line]
    file = Path(line.partition("is kept in ")[2])
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    return file.read_text()


def files(tmp_path):
    return list(tmp_path.glob("jqueue-edit-*"))


def test_the_options_of_a_job_are_edited(path, queue, editor, tmp_path):
    editor({"priority": -5, "run_at": "2030-01-02T03:04Z", "keep_result": "2h", "headers": {"a": "b"}})
    assert ["priority", "run_at", "headers", "keep_result"] == values("edit", path, "wait")["changed"]
    job = queue.jobs()["waiting"]
    assert (-5, 7200, {"a": "b"}, 3) == (job.priority, job.keep_result, dict(job.headers), job.max_attempts)
    assert "2030-01-02T03:04:00+00:00" == job.run_at.isoformat()
    assert SECRET.encode() == job.payload
    [seen] = editor.texts()
    assert SECRET not in seen
    assert [] == files(tmp_path)


def test_a_dead_job_is_shown_with_its_error_and_stays_dead(path, queue, editor):
    editor({"max_attempts": 9})
    assert "1 field was changed" == text("edit", path, "dead")
    assert "# last error: no such address" in editor.texts()[0]
    assert (9, "dead") == (queue.jobs()["dead"].max_attempts, queue.jobs()["dead"].status)


def test_a_payload_is_edited_only_on_request(path, queue, editor):
    editor({"payload": {"json": {"to": "ada"}}})
    assert "there is no field 'payload' here" in run("edit", path, "waiting").stderr
    values("edit", path, "waiting", "--payload")
    assert b'{"to": "ada"}' == queue.jobs()["waiting"].payload
    assert SECRET in editor.texts()[1]


@pytest.mark.parametrize(
    "payload", [b"", b"text", b'{"a": 1}', b'{"a":1}', b"\xff\x00", "ü\u202e".encode(), b'"\\ud800"']
)
def test_a_payload_that_is_shown_can_be_given_back(payload):
    assert payload == payload_given(payload_shown(payload))


def test_limits_settings_and_cron_entries_are_edited(path, queue, editor):
    editor({"paused": True, "running": 2, "rate": 5, "per": "1m"})
    values("edit", path, "--limits", "mail")
    rules = queue.read_state().entrypoints["mail"]
    assert (True, 2, 5, 60) == (rules.paused, rules.max_running, rules.rate, rules.per)
    editor({"aging": 30, "dead_retention": "30d"})
    assert ["aging", "dead_retention"] == values("edit", path, "--settings")["changed"]
    assert 30 * 86400 == queue.read_state().settings.dead_retention
    queue.schedule("nightly", "0 2 * * *", "clean", b"all")
    editor({"cron": "0 3 * * *", "max_attempts": 2})
    values("edit", path, "--schedule", "nightly")
    [entry] = queue.schedules()
    assert ("0 3 * * *", 2, b"all") == (entry.cron, entry.max_attempts, entry.payload)


@pytest.mark.parametrize("choice", ["", "waiting --settings", "--limits mail --settings"])
def test_one_thing_is_edited_at_a_time(path, queue, choice):
    said = refused("edit", path, *choice.split())
    assert "choose what to edit: a job's ID, --schedule, --limits or --settings" == said


def test_a_text_without_a_change_changes_nothing(path, queue, editor, tmp_path):
    before = path.read_bytes()
    editor.run("true")
    assert "nothing was changed" == text("edit", path, "waiting")
    assert (before, []) == (path.read_bytes(), files(tmp_path))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("false", "the editor ended with status 1: nothing was changed"),
        ("/no/such/editor", "the editor cannot be run: No such file or directory"),
        ("'unfinished", "the editor cannot be run: it is not a command"),
    ],
)
def test_an_editor_that_fails_changes_nothing_and_leaves_no_file(path, queue, editor, tmp_path, command, said):
    before = path.read_bytes()
    editor.run(command)
    assert said in refused("edit", path, "waiting")
    assert (before, []) == (path.read_bytes(), files(tmp_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"priority": "high"}, "priority must be an int"),
        ({"keep_result": "long"}, "keep_result takes seconds"),
        ({"run_at": "noon"}, "run_at takes a time"),
        ({"colour": 1}, "there is no field 'colour' here"),
        ({"headers": ["a"]}, "headers must be a mapping"),
        ({"unique_for": 60}, "unique_for needs a unique_key"),
        ({"unique_key": "k"}, "Unique key 'k' is taken"),
    ],
)
def test_a_wrong_text_is_refused_and_kept(path, queue, editor, changes, said):
    queue.enqueue("mail", job_id="other", unique_key="k")
    before = path.read_bytes()
    editor(changes)
    result = run("edit", path, "waiting")
    assert (2, "") == (result.exit_code, result.stdout)
    assert f"jqueue: nothing was changed: {said}" in result.stderr
    assert changes.items() <= json.loads(kept(result)).items()
    assert before == path.read_bytes()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("s/{/{{/", "line 4 is not JSON"),
        ("s/.priority.*//", "the field 'priority' is missing"),
        ("s/{.*/[/;s/}/]/", ""),
    ],
)
def test_a_text_that_is_not_json_is_refused_and_kept(path, queue, editor, script, said):
    editor.run(f"sed -i '{script}'")
    result = run("edit", path, "waiting")
    assert 2 == result.exit_code
    assert said in result.stderr
    kept(result)


@pytest.mark.parametrize(("job_id", "said"), [("running", "this job is in progress"), ("absent", "there is no job")])
def test_a_job_that_cannot_be_edited_is_refused_before_the_editor_opens(path, queue, editor, job_id, said):
    editor({})
    assert said in refused("edit", path, job_id)
    assert not editor.seen.exists()


def test_a_change_by_another_operator_is_not_undone(path, queue, editor, monkeypatch):
    """Two at once: while the editor is open, another operator edits the same job."""
    editor({"max_attempts": 9})
    original = module.EditedFile.edit

    def edit(file):
        queue.reprioritise("waiting", 7)
        return original(file)

    monkeypatch.setattr(module.EditedFile, "edit", edit)
    result = run("edit", path, "waiting")
    assert (2, "") == (result.exit_code, result.stdout)
    assert '-  "priority": 0,\n+  "priority": 7,\n' in result.stderr
    assert "nothing was changed: this has changed meanwhile, as shown above" in result.stderr
    text_kept = kept(result)
    assert '"priority": 7' in text_kept
    assert '"max_attempts": 9' in text_kept
    job = queue.jobs()["waiting"]
    assert (7, 3) == (job.priority, job.max_attempts)


def test_a_job_that_a_worker_claims_during_the_edit_is_left_alone(path, queue, editor, monkeypatch):
    editor({"max_attempts": 9})
    original = module.EditedFile.edit
    monkeypatch.setattr(module.EditedFile, "edit", lambda file: (queue.dequeue(), original(file))[1])
    result = run("edit", path, "waiting")
    assert 2 == result.exit_code
    assert "this job is in progress: only a waiting or a dead job can be edited" in result.stderr
    assert '"max_attempts": 9' in kept(result)
    assert 3 == queue.jobs()["waiting"].max_attempts


@pytest.mark.wide
def test_at_a_terminal_an_edit_is_tried_again_on_top_of_the_other_change(path, queue, editor, tmp_path):
    editor({"max_attempts": 9})
    own = os.environ["EDITOR"]
    other = (
        f"test -e {tmp_path}/done || {sys.executable} -m jqueue reprioritise {path} waiting -p 7; touch {tmp_path}/done"
    )
    (tmp_path / "both.sh").write_text(f"#!/bin/sh\n{other} >&2\nexec {own} $1\n")
    (tmp_path / "both.sh").chmod(0o755)
    editor.run(f"{tmp_path}/both.sh")
    keyboard, terminal = os.openpty()
    try:
        command = [sys.executable, "-m", "jqueue", "edit", str(path), "waiting"]
        process = subprocess.Popen(command, stdin=terminal, stdout=-1, stderr=-1, text=True)
        os.write(keyboard, b"y\n")
        stdout, stderr = process.communicate(timeout=60)
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert "Edit again?" in stderr
    assert "1 field was changed" in stdout
    job = queue.jobs()["waiting"]
    assert (7, 9) == (job.priority, job.max_attempts)
    assert [] == files(tmp_path)


def test_texts_of_a_blob_cannot_command_the_editor_or_the_terminal(path, queue, editor, monkeypatch):
    queue.enqueue("mail", job_id="evil", headers={"a": "b"}, unique_key="k")
    hostile = r"\u001b[2J\u202ex\n# y"
    path.write_text(path.read_text().replace('"no such address"', f'"{hostile}"').replace('"b"', f'"{hostile}"'))
    editor({"priority": 1})
    original = module.EditedFile.edit
    monkeypatch.setattr(module.EditedFile, "edit", lambda file: (queue.reprioritise("evil", 7), original(file))[1])
    shown = run("edit", path, "evil").stderr
    text("edit", path, "dead")
    for each in (*editor.texts(), shown):
        assert not set("\x1b\u202e\r") & set(each)
    assert r"# last error: \x1b[2J\u202ex\n# y" in editor.texts()[1]


def test_without_a_terminal_and_an_editor_an_edit_is_refused(path, queue, monkeypatch):
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    assert "there is no terminal for an editor: set $EDITOR" in refused("edit", path, "waiting")
