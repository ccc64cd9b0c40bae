"""Calls of commands in tests, as a user types them, and a queue in a file whose verbs block."""

import asyncio
import json
import logging
import os
import subprocess
import sys

from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.operations import Enqueue
from tests.tiny_segments import spilled, tiny_queue

SECRET = "hunter2"
PATIENCE = 120
"""Seconds to wait for a process that hangs. A busy machine takes 20 s to start one."""


class Blocking:
    """A queue in a file: `queue.verb(...)` blocks, with a new queue object each time."""

    def __init__(self, path):
        self.path = path

    def __getattr__(self, verb):
        fresh = DirectQueue(LocalFileSystemStorage(self.path))
        return lambda *arguments, **options: asyncio.run(getattr(fresh, verb)(*arguments, **options))

    def jobs(self):
        """The jobs by id."""
        return {job.id: job for job in self.read_state().jobs}

    def kill(self, *ids, entrypoint="mail", error="boom"):
        """Add dead jobs."""
        for job_id in ids:
            self.enqueue(entrypoint, SECRET.encode(), job_id=job_id)
            [job] = self.dequeue(entrypoint)
            self.nack(job, error=error, dead=True)


def deep(path, **numbers):
    """Make a queue of waiting jobs: a segment for each entrypoint. Returns the files of the segments by entrypoint."""

    async def fill():
        async with tiny_queue(LocalFileSystemStorage(path)) as queue:
            for entrypoint, number in numbers.items():
                await queue.enqueue_many([Enqueue(entrypoint, b"") for _ in range(number)])
                await spilled(queue)
            return (await queue.read_state(hot=True)).segments

    segments = asyncio.run(fill())
    return {segment.entrypoint: path.with_name(f"{path.name}.segments") / name for name, segment in segments.items()}


def run(*arguments, stdin=None, **environment):
    """The result of a command at 80 columns."""
    runner = CliRunner(env={"COLUMNS": "80", **environment})
    logger = logging.getLogger("jqueue")
    level = logger.level
    result = runner.invoke(app, [*map(str, arguments)], catch_exceptions=False, input=stdin)
    logger.setLevel(level)  # a command sets that of its process
    assert SECRET not in result.output
    return result


def values(*arguments, status=0, stdin=None):
    """The JSON of a command."""
    result = run(*arguments, "--json", stdin=stdin)
    assert (status, "") == (result.exit_code, result.stderr)
    return json.loads(result.stdout)


def rows(*arguments):
    """The JSON of a command that prints one object a line."""
    result = run(*arguments, "--json")
    assert (0, "") == (result.exit_code, result.stderr)
    return [json.loads(line) for line in result.stdout.splitlines()]


def text(*arguments, status=0, stdin=None):
    """The output of a command as one line. No line of it is wider than the terminal, unless it is one word."""
    result = run(*arguments, stdin=stdin)
    assert (status, "") == (result.exit_code, result.stderr)
    assert all(len(line) <= 80 or len(line.split()) == 1 for line in result.stdout.splitlines())
    return " ".join(result.stdout.split())


def refused(*arguments, stdin=None):
    """The one line by which a command refuses its work. With --json, the same line is in the object."""
    result = run(*arguments, stdin=stdin)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n")), result.output
    return result.stderr.removeprefix("jqueue: ").rstrip("\n")


def process(*arguments, code=None, stdin=None, **environment):
    """The result of a command in a process of its own."""
    command = [sys.executable, "-W", "error", *(["-c", code] if code else ["-m", "jqueue"]), *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR", "TERM")}
    return subprocess.run(
        command,
        env={**clean, "COLUMNS": "80", **environment},
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def at_a_terminal(*arguments, answer):
    """The result of a command that asks a question at a terminal."""
    keyboard, terminal = os.openpty()
    try:
        os.write(keyboard, f"{answer}\n".encode())
        return process(*arguments, stdin=terminal)
    finally:
        os.close(keyboard)
        os.close(terminal)
