"""A file that is no queue is refused with a reason, and no verb overwrites it."""

import pytest

from jqueue import BrokerQueue, DirectQueue, LocalFileSystemStorage
from jqueue.domain.errors import InvalidBlobError
from jqueue.operations import Enqueue

CUT = "a queue, cut off"


@pytest.fixture(params=[b"", b" \n", b"notes of mine\n", b'{"a": 1}', b"[]", b"\0" * 300, CUT], ids=str)
async def path(request, tmp_path):
    path, content = tmp_path / "queue.json", request.param
    if content == CUT:
        await DirectQueue(LocalFileSystemStorage(path)).enqueue_many([Enqueue("t", b"x")] * 3)
        content = path.read_bytes()[:-100]
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
@pytest.mark.parametrize("verb", ["enqueue", "dequeue", "purge", "read_state", "stats"])
async def test_a_file_that_is_no_queue_is_refused_and_left_unchanged(path, kind, verb):
    before, inode = path.read_bytes(), path.stat().st_ino
    async with kind(LocalFileSystemStorage(path)) as queue:
        with pytest.raises(InvalidBlobError):
            await getattr(queue, verb)(*(("t", b"") if verb == "enqueue" else ()))
    assert (before, inode) == (path.read_bytes(), path.stat().st_ino)
