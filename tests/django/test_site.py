"""The example site, run in processes as its users run it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jqueue import SyncQueue

ROOT = Path(__file__).parents[2]
SITE = ROOT / "examples" / "django_site"


@pytest.fixture
def manage(tmp_path):
    """Run `manage.py`, and return its exit status, its output and its log."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SITE_DATA": str(tmp_path)}

    def run(*arguments):
        command = [sys.executable, "manage.py", *arguments]
        ended = subprocess.run(command, cwd=SITE, env=environment, capture_output=True, text=True, timeout=120)
        return ended.returncode, ended.stdout, ended.stderr

    return run


@pytest.mark.wide
def test_tasks_are_enqueued_on_commit_and_survive_their_worker_and_their_results_are_read_elsewhere(manage, tmp_path):
    assert 0 == manage("migrate", "--verbosity", "0")[0]

    status, _, refusal = manage("order", "ada@example.org", "nobody")
    assert (1, "CommandError: that is no address: no order was taken\n") == (status, refusal)
    assert not (tmp_path / "queue.json").exists()

    assert 0 == manage("order", "lost@example.org", "ada@example.org", "refused@example.org")[0]
    queue = SyncQueue(tmp_path / "queue.json")
    assert 4 == queue.stats().ready

    assert -signal.SIGKILL == manage("jqueue_worker", "--queue", "mail", "--concurrency", "1", "--name", "first")[0]
    assert 1 == queue.requeue_stale(0)

    status, _, log = manage("jqueue_worker", "--drain", "--name", "second")
    assert 0 == status
    assert "failed: shop.tasks.Refused at shop/tasks.py:" in log
    assert "refused the address" not in log

    lost, ada, refused = manage("order", "--list")[1].splitlines()
    assert "lost@example.org SUCCESSFUL first second jqueue.domain.errors.JobFailedError" == lost
    assert "ada@example.org SUCCESSFUL second" == ada
    assert "refused@example.org READY second shop.tasks.Refused" == refused
    queue.close()


@pytest.mark.wide
def test_several_processes_run_the_tasks_and_log_json(manage):
    assert 0 == manage("migrate", "--verbosity", "0")[0]
    assert 0 == manage("order", "ada@example.org")[0]
    status, _, log = manage("jqueue_worker", "--processes", "2", "--batch", "--log-format", "json")
    assert 0 == status
    workers = {json.loads(line)["worker"].partition("@")[0] for line in log.splitlines()}
    assert {"worker-1", "worker-2"} == workers
    assert manage("order", "--list")[1].startswith("ada@example.org SUCCESSFUL worker-")
