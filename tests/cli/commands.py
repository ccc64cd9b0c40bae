"""Calls of commands in tests, and a queue in a file whose verbs block."""

import asyncio
import json

from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.app import app

SECRET = "hunter2"


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


def run(*arguments, stdin=None, **environment):
    """The result of a command at 80 columns."""
    runner = CliRunner(env={"COLUMNS": "80", **environment})
    result = runner.invoke(app, [*map(str, arguments)], catch_exceptions=False, input=stdin)
    assert SECRET not in result.output
    return result


def values(*arguments, status=0, stdin=None):
    """The JSON of a command."""
    result = run(*arguments, "--json", stdin=stdin)
    assert (status, "") == (result.exit_code, result.stderr)
    return json.loads(result.stdout)


def text(*arguments, status=0, stdin=None):
    """The output of a command as one line."""
    result = run(*arguments, stdin=stdin)
    assert (status, "") == (result.exit_code, result.stderr)
    assert max(map(len, result.stdout.splitlines()), default=0) <= 80
    return " ".join(result.stdout.split())


def refused(*arguments, stdin=None):
    """The one line by which a command refuses its work."""
    result = run(*arguments, stdin=stdin)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    return result.stderr.removeprefix("jqueue: ").rstrip("\n")
