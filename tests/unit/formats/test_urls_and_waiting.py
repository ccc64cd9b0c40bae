"""The URLs of the older formats, and what wakes a call that waits on one."""

import asyncio
import shutil
import threading
from datetime import timedelta
from typing import Any

import pytest

from jqueue import StorageError, connect
from jqueue.domain.errors import InvalidURLError
from jqueue.runtime.system import SystemClock
from jqueue.testing.virtual_time import VirtualClock
from tests.unit.formats.places import FORMATS, filled, in_each_format, open_queue
from tests.virtual_world import in_virtual_time

EXAMPLES = {
    "vsqs": "vsqs:///var/spool/app/queue",
    "dirq": "dirq:///var/spool/app/messages",
    "textq": r"textq:///var/lib/app/queue\.tq",
}


@pytest.mark.parametrize(
    "url",
    [
        *("vsqs://", "vsqs:///", "vsqs://host/queue", "vsqs:///a%00b", "vsqs:///q?unit=us"),
        *("dirq:///q?kind=other", "dirq:///q?umask=8", "dirq:///q?maxelts=x", "dirq:///q?maxlock=-1"),
        *("dirq:///q?schema=body", "dirq:///q?schema=body:binary,more:string", "dirq:///q?kind=simple&maxelts=3"),
        *("textq://file.tq", "textq:///folder/", "textq:///q?settle=1", "textq:///q?colour=red"),
    ],
)
def test_a_wrong_url_is_refused_with_a_right_one(url):
    with pytest.raises(InvalidURLError, match=EXAMPLES[url.partition(":")[0]]):
        connect(url)


async def test_the_content_of_a_folder_or_an_option_tells_the_kind_of_dirq(tmp_path):
    made: dict[str, Any] = {}
    for name in ("", "?kind=queue", "?schema=body:binary,header:table?"):
        folder = tmp_path / str(len(made))
        for number in range(2):
            url = f"dirq://{folder}{name if number == 0 else ''}"
            async with connect(url) as queue:
                await queue.enqueue("work", b"")
        made[name] = (folder / "temporary").exists()
        assert 2 == sum(path.is_file() for path in folder.rglob("[0-9]*/*/body" if made[name] else "[0-9]*/[0-9]*"))
    assert {"": False, "?kind=queue": True, "?schema=body:binary,header:table?": True} == made


@in_each_format
@in_virtual_time
async def test_a_queue_that_vanished_is_an_error_until_it_is_back(form, tmp_path):
    async with open_queue(form, tmp_path, VirtualClock()) as queue:
        assert [] == await queue.dequeue(), "it was never there"
        assert [] == list(tmp_path.iterdir()), "reading makes nothing"
        await queue.enqueue("work", b"")
        root = tmp_path / "queue"
        (root.unlink if form == "text" else lambda: shutil.rmtree(root))()
        for call in (queue.dequeue, queue.read_state, lambda: queue.enqueue("work", b"")):
            with pytest.raises(StorageError, match="disappeared"):
                await call()
        assert not root.exists(), "an enqueue must not begin a new one in its place"


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("form", FORMATS)
async def test_a_waiting_dequeue_is_woken_by_a_file_of_another_program(form, tmp_path):
    """It would poll after an hour only, and its thread ends with the call."""

    def watching():
        return [thread for thread in threading.enumerate() if thread.name == "jqueue-file-events"]

    files = {"vsqs": "queue/5", "simple": "queue/6955b900/6955b900000006", "text": "queue"}
    files["elements"] = "queue/00000000/6955b900000006/body"
    made = filled(tmp_path / "new", {files[form]: b"-payload\n\n" if form == "text" else b"payload"})
    if form == "elements":
        (made / "queue" / "temporary").mkdir()
        (made / "queue" / "obsolete").mkdir()
    async with open_queue(form, tmp_path, SystemClock(), poll_interval=timedelta(hours=1)) as queue:
        waiting = asyncio.create_task(queue.dequeue(wait=3600))
        await until(watching)
        (made / "queue").rename(tmp_path / "queue")
        async with asyncio.timeout(60):
            [job] = await waiting
        assert b"payload" == job.payload
        await until(lambda: not watching())
