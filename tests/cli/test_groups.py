"""`jqueue group` shows a group, waits for it and gives orders; `ls` and `show` know groups."""

import json

import pytest

from jqueue import SyncQueue
from jqueue.operations import Enqueue
from tests.cli.commands import run


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "queue.json")


def test_a_group_is_shown_waited_for_and_given_orders(url):
    with SyncQueue(url) as queue:
        with queue.group("parts", then=Enqueue("sum")) as group:
            ids = [group.enqueue("work", b"", job_id=f"job-{number}").id for number in range(3)]
        queue.enqueue("work", b"", job_id="other")
        [first] = queue.dequeue("work")
        queue.ack(first)
        shown = " ".join(run("group", url, "parts").stdout.split())
        assert f"closed: 1 of 3 jobs done, 2 waiting or running; its next job {group.status().then_id} is not" in shown
        listed = [json.loads(line)["id"] for line in run("ls", url, "--group", "parts", "--json").stdout.splitlines()]
        assert ids[1:] == listed
        assert "parts" in run("show", url, ids[1]).stdout
        assert run("group", url, "nobody").exit_code == 2
        assert run("group", url, "parts", "--cancel", "--redrive").exit_code == 2
        [second] = queue.dequeue("work")
        queue.nack(second, dead=True)
        assert "1 dead" in run("group", url, "parts", "--redrive").stdout or group.status().dead == 0
        for job in queue.dequeue("work", batch_size=9):
            queue.ack(job)
        values = json.loads(run("group", url, "parts", "--wait", "--json").stdout)
        assert (values["done"], values["ended"], values["then_enqueued"]) == (3, True, True)
        with queue.group("left open") as group:
            group.enqueue("work")
            assert "open: 0 of 1 job done" in run("group", url, "left open").stdout
            assert "cancelled: " in run("group", url, "left open", "--cancel").stdout
