"""The grammar of all commands: `JQUEUE_URL` stands for the URL, and the same options choose jobs everywhere."""

import asyncio
import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.cli.default_url import with_default_url
from jqueue.cli.filters import OPTIONS, selection_of
from jqueue.domain.selection import Phase, Selection

COMMANDS: Any = typer.main.get_command(app)


def parameters(command):
    return COMMANDS.commands[command].params


def run(*arguments, **environment):
    runner = CliRunner(env={"COLUMNS": "80", **environment})
    return runner.invoke(app, [*map(str, arguments)], catch_exceptions=False)


def enqueue(path, *entrypoints):
    async def add():
        queue = DirectQueue(LocalFileSystemStorage(path))
        for entrypoint in entrypoints:
            await queue.enqueue(entrypoint, job_id=f"{entrypoint}-1")

    asyncio.run(add())


@pytest.mark.parametrize(
    ("command", "typed", "completed"),
    [
        ("stats", [], ["s3://b/q"]),
        ("stats", ["--json"], ["--json", "s3://b/q"]),
        ("stats", ["other.json"], ["other.json"]),
        ("stats", ["./other"], ["./other"]),
        ("stats", ["gs://b/o"], ["gs://b/o"]),
        ("stats", [""], [""]),
        ("pause", ["mail"], ["s3://b/q", "mail"]),
        ("pause", ["--json", "mail"], ["--json", "s3://b/q", "mail"]),
        ("pause", ["./other", "mail"], ["./other", "mail"]),
        ("cancel", ["--", "-id"], ["--", "s3://b/q", "-id"]),
        ("dead", ["--entrypoint", "mail"], ["--entrypoint", "mail", "s3://b/q"]),
        ("dead", ["--entrypoint=mail"], ["--entrypoint=mail", "s3://b/q"]),
        ("worker", ["app:worker"], ["app:worker", "s3://b/q"]),
        ("worker", ["--grace", "3", "app:worker", "./q"], ["--grace", "3", "app:worker", "./q"]),
        ("migrate", ["./one"], ["./one"]),
        ("import", ["./jobs.jsonl"], ["s3://b/q", "./jobs.jsonl"]),
        ("import", ["./q", "./jobs.jsonl"], ["./q", "./jobs.jsonl"]),
        ("import", ["-"], ["s3://b/q", "-"]),
        ("history", ["some-id", "--limit", "3"], ["s3://b/q", "some-id", "--limit", "3"]),
        ("history", [], ["s3://b/q"]),
        ("at", ["2h ago"], ["s3://b/q", "2h ago"]),
        ("export", ["-o", "./jobs.jsonl"], ["-o", "./jobs.jsonl", "s3://b/q"]),
    ],
)
def test_the_environment_names_the_queue_unless_an_argument_does(monkeypatch, command, typed, completed):
    monkeypatch.setenv("JQUEUE_URL", "s3://b/q")
    assert completed == with_default_url(parameters(command), typed)


def test_an_existing_file_or_folder_of_any_name_is_a_queue(monkeypatch, tmp_path):
    monkeypatch.setenv("JQUEUE_URL", "s3://b/q")
    monkeypatch.chdir(tmp_path)
    assert ["s3://b/q", "jobs"] == with_default_url(parameters("pause"), ["jobs"])
    (tmp_path / "jobs").mkdir()
    assert ["jobs"] == with_default_url(parameters("pause"), ["jobs"])


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_arguments_stay_as_they_are(monkeypatch, value):
    monkeypatch.delenv("JQUEUE_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("JQUEUE_URL", value)
    assert ["mail"] == with_default_url(parameters("pause"), ["mail"])


def test_commands_work_on_the_queue_of_the_environment(tmp_path):
    path = tmp_path / "queue.json"
    enqueue(path, "mail")
    assert 0 == run("pause", "mail", JQUEUE_URL=str(path)).exit_code
    assert "mail (paused)" in run("stats", JQUEUE_URL=str(path)).stdout
    assert 2 == run("stats", tmp_path / "other.json", JQUEUE_URL=str(path)).exit_code


def test_the_options_make_a_selection():
    assert Selection() == selection_of(**dict.fromkeys(OPTIONS))
    assert Selection(
        phases=frozenset({Phase.READY, Phase.SCHEDULED, Phase.EXPIRED, Phase.IN_PROGRESS, Phase.DEAD}),
        entrypoints=frozenset({"a", "b"}),
        older_than=60.0,
        newer_than=7200.0,
        holder="h",
        key="k",
        error="e",
        id_prefix="i",
    ) == selection_of(
        status=["queued,Running", "dead"],
        entrypoint=["a", "b"],
        older_than="1m",
        newer_than="2h",
        holder="h",
        key="k",
        error="e",
        id="i",
    )


@pytest.mark.parametrize("status", ["in-progress", "in progress", "running", "IN_PROGRESS"])
def test_a_job_in_progress_has_several_names(status):
    assert {Phase.IN_PROGRESS} == selection_of(status=[status]).phases


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--status=hunter2", "--status takes ready, scheduled, queued (both), running, dead, completed or expired"),
        ("--status=", "--status takes ready, scheduled, queued (both), running, dead, completed or expired"),
        ("--older-than=hunter2", "--older-than takes a number with a unit: 90s, 15m, 12h, 30d or 2w"),
        ("--newer-than=3", "--newer-than takes a number with a unit: 90s, 15m, 12h, 30d or 2w"),
    ],
)
def test_a_wrong_filter_is_a_one_line_error(tmp_path, option, message):
    enqueue(tmp_path / "queue.json", "mail")
    refused = run("ls", tmp_path / "queue.json", option)
    assert (2, "", f"jqueue: {message}\n") == (refused.exit_code, refused.stdout, refused.stderr)
    as_json = run("ls", tmp_path / "queue.json", option, "--json")
    assert (2, {"error": message}) == (as_json.exit_code, json.loads(as_json.stdout))


def test_a_command_with_filters_acts_on_the_chosen_jobs(tmp_path):
    path = tmp_path / "queue.json"
    enqueue(path, "mail", "report", "scan")
    listed = run("ls", path, "--entrypoint", "mail", "--entrypoint", "scan", "--json")
    assert ["mail-1", "scan-1"] == [json.loads(line)["id"] for line in listed.stdout.splitlines()]
