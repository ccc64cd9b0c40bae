"""Claims of workers whose processes have ended, and the processes themselves: nothing is revoked where it is unsure."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jqueue.core.staleness import orphans
from jqueue.domain.draft import Draft
from jqueue.domain.header import WORKERS_KEPT, WorkerRecord
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job, record_of
from jqueue.runtime.system import SystemEntropy, process_mark

is_gone = SystemEntropy().is_gone

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GONE, ALIVE, ELSEWHERE = "here/gone", "here/alive", "there/1"
WORKERS = {
    "one that has ended": ([GONE], None, True),
    "one that lives": ([ALIVE], None, False),
    "one of another machine": ([ELSEWHERE], None, False),
    "one that does not say": ([""], None, False),
    "none": ([], None, False),
    "another container's of the same name and process id lives": ([GONE, ELSEWHERE], None, False),
    "both have ended": ([GONE, GONE], None, True),
    "a client that has ended": ([(GONE, "client")], "client/1", True),
    "another client": ([(GONE, "another")], "client/1", False),
    "a claim of its own before it was a client": ([(GONE, "client")], None, True),
    "a client that is not known yet": ([GONE], "client/1", False),
}


def claimed(holder, call=None, *, heartbeat_at=NOW):
    job = Job(id="a", entrypoint="t", payload=b"", created_at=NOW, status=JobStatus.IN_PROGRESS, sequence=1, attempt=3)
    return record_of(job.evolve(holder=holder, heartbeat_at=heartbeat_at, claim_call=call))


def found(records, job):
    draft = Draft()
    draft.load([job])
    draft.header.workers = {f"run {number}": record for number, record in enumerate(records)}
    return [tuple(claim) for claim, _ in orphans(draft, lambda pid, mark: mark == GONE and pid == 7, NOW)]


def record(mark, client="", name="w"):
    return WorkerRecord(name=name, host="h", pid=7, mark=mark, client=client)


@pytest.mark.parametrize(("workers", "call", "expected"), WORKERS.values(), ids=WORKERS)
def test_a_claim_is_revoked_only_if_every_worker_that_may_hold_it_has_ended(workers, call, expected):
    records = [record(*each) if isinstance(each, tuple) else record(each) for each in workers]
    assert ([("a", 3)] if expected else []) == found(records, claimed("w@h:7", call))
    assert [] == found(records, claimed("other@h:7", call))


def test_it_waits_where_a_record_may_have_been_dropped():
    others = [record(ALIVE, name=f"w{number}") for number in range(WORKERS_KEPT - 1)]
    assert [] == found([record(GONE), *others], claimed("w@h:7"))
    assert [] == found([record(GONE)], claimed("w@h:7", heartbeat_at=NOW - timedelta(hours=2)))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it is not known of processes without /proc")
def test_a_process_is_gone_once_it_was_killed_or_its_id_is_anothers():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = process_mark(child.pid)
    here, _, started = mark.rpartition("/")
    assert here == process_mark(os.getpid()).rpartition("/")[0] != ""
    assert not is_gone(child.pid, mark)
    assert is_gone(child.pid, f"{here}/{int(started) - 1}"), "another process had this id"
    assert not is_gone(child.pid, f"there/{int(started) - 1}")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie until it is waited for
    assert is_gone(child.pid, mark)
    child.communicate()
    assert is_gone(child.pid, mark)
    assert not is_gone(child.pid, mark.replace(here, "f" * 16))
    assert not is_gone(child.pid, "")
