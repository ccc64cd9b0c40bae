"""jqueue and the real dirq work on one folder at the same time, and their processes are killed at random moments."""

import re
import signal
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from jqueue.formats.dirq.elements import DirqElements
from tests.interop.formats.dirq_killed import COMMON, KINDS, OURS, Killed, Worker

pytestmark = pytest.mark.wide

STUMBLES = r"^cannot rmdir\(.*\): .*Directory not empty: '.*/((temporary|obsolete)/[0-9a-f]{14}|[0-9a-f]{8})'$"
"""Error of dirq's `purge` for an element that another program is adding or removing or left half done, and for a folder
that is no longer empty when it is removed."""

THEIRS = (
    COMMON
    + f"STUMBLES = {STUMBLES!r}"
    + r"""
import re
from dirq.QueueSimple import QueueSimple
from dirq.queue import Queue
queue = QueueSimple(folder, granularity=1) if kind == "simple" else Queue(folder, schema={"body": "binary"}, maxelts=5)
while True:
    for payload in payloads():
        note("try", payload)
        queue.add(payload if kind == "simple" else {"body": payload})
        note("added", payload)
    name, taken = queue.first(), 0
    while name and taken < 3:
        if queue.lock(name):
            taken += 1
            content = queue.get(name)
            payload = content if kind == "simple" else content["body"]
            note("finish", payload)
            queue.remove(name)
            note("done", payload)
        name = queue.next()
    queue.count()
    try:
        queue.purge()
    except OSError as error:  # raised for leftovers of an add or a remove that was killed
        if not re.search(STUMBLES, str(error)):
            raise
"""
)

KILLED = r"""
import os, signal, sys
from dirq.queue import Queue
folder, verb, event = sys.argv[1:]
queue = Queue(folder, schema={"body": "binary"})
name = queue.add({"body": b"left"})
assert queue.lock(name)

def hear(heard, arguments):
    if heard == event and folder in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hear)
queue.remove(name) if verb == "remove" else queue.add({"body": b"left"})
"""

PURGE = r"""
import sys
from dirq.queue import Queue
queue = Queue(sys.argv[1], schema={"body": "binary"})
try:
    queue.purge()
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize(("verb", "event"), [("add", "os.rename"), ("remove", "os.remove")])
def test_purge_of_dirq_fails_over_a_killed_process_until_jqueue_removes_its_leftovers(verb, event, original, tmp_path):
    dirq, folder = original("dirq"), tmp_path / "queue"
    command = dirq.command(KILLED, str(folder), verb, event)
    assert -signal.SIGKILL == subprocess.run(command, env=dirq.environment, check=False).returncode
    assert re.search(STUMBLES, dirq.run(PURGE, str(folder), folder=tmp_path).strip())
    DirqElements(folder).purge(datetime.now(UTC) + timedelta(hours=1))
    assert "" == dirq.run(PURGE, str(folder), folder=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.full)])
def test_no_element_is_lost_or_finished_twice_when_programs_are_killed(kind, seconds, original, ours, tmp_path):
    theirs = Worker(original("dirq").command(THEIRS), original("dirq").environment)
    killed = Killed(kind, tmp_path, [theirs, *[Worker(ours.command(OURS), ours.environment)] * 3])
    killed.work(seconds)
    killed.audit()
