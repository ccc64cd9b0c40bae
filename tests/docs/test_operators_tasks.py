"""The commands of docs/operations are tried: those of the table on a queue, the others for their options."""

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from jqueue import BrokerQueue, LocalFileSystemStorage
from jqueue.cli.app import app

PAGES = Path(__file__).parents[2] / "docs/operations"
TABLE = re.findall(
    r"^\| ([^|]+) \| `(jqueue [^`]+)` \|", (PAGES / "README.md").read_text(encoding="utf-8"), re.MULTILINE
)
ENDLESS = {"watch", "worker", "metrics", "dashboard"}
COMMANDS = sorted(
    {
        command.partition(" &&")[0]
        for page in PAGES.glob("*.md")
        for command in re.findall(r"(?:`|^\$ )(jqueue \w[^`\n]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
)


def test_the_table_has_at_least_twenty_tasks():
    assert len(TABLE) >= 20
    assert len(TABLE) == len({task for task, _ in TABLE})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_these_options(command):
    words = shlex.split(command.replace("`", ""))[1:]
    group: Any = typer.main.get_command(app)
    if words[0].startswith("-"):
        return
    context = group.make_context("jqueue", [], resilient_parsing=True)
    name, found, rest = group.resolve_command(context, words)
    if name != "spark" and rest:
        found.make_context(name, list(rest), parent=context, resilient_parsing=False)


@pytest.fixture
def job_id(tmp_path, monkeypatch):
    """The id of a scheduled job in a queue with a history, a dead job, a cron entry and a finished job."""
    monkeypatch.chdir(tmp_path)

    async def fill():
        async with BrokerQueue(LocalFileSystemStorage(tmp_path / "queue.json")) as queue:
            await queue.configure(history=86400)
            await queue.schedule("nightly", "0 3 * * *", "report")
            for name in ("mail", "resize"):
                await queue.enqueue(name, b"")
                await queue.enqueue(name, b"", max_attempts=1)
            await queue.ack((await queue.dequeue("mail"))[0])
            await queue.nack((await queue.dequeue("mail"))[0], error="TimeoutError: no answer")
            await queue.dequeue("resize")
            return (await queue.enqueue("mail", b"", delay=3600)).id

    return asyncio.run(fill())


@pytest.mark.wide
@pytest.mark.parametrize(("task", "command"), [(t, c) for t, c in TABLE if c.split()[1] not in ENDLESS])
def test_a_task_is_done_by_its_command(task, command, job_id):
    words = [job_id[:8] if word == "ID" else word for word in shlex.split(command)[1:]]
    words = ["0s ago" if word == "2h" and words[0] == "at" else word for word in words]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert 0 == result.exit_code, result.output
