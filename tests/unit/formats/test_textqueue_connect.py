"""URLs `textq:///file.tq` and their options."""

import pytest

from jqueue.connect import connect
from jqueue.domain.errors import InvalidURLError
from jqueue.formats.queue import StoreQueue


async def test_a_url_names_a_file_and_its_options(tmp_path):
    path = tmp_path / "list of mails.tq"
    path.write_bytes(b"-a\n-b\n\n")
    url = f"textq://{tmp_path}/list%20of%20mails.tq?entrypoint=send&fsync=false&hide=true&lines=single&settle=0.5"
    async with connect(url, stale_timeout=9) as queue:
        assert isinstance(queue, StoreQueue)
        [job] = await queue.dequeue("send")
        assert path.read_bytes() == b"=a\n-b\n\n"
        await queue.ack(job)
        await queue.enqueue("send", b"two\nlines")
    assert b'"enc":"b64"' in path.read_bytes()
    async with connect(f"textq://{tmp_path}/list%20of%20mails.tq") as queue:
        assert {"list of mails", "send"} == {job.entrypoint for job in (await queue.read_state()).jobs}


@pytest.mark.parametrize(
    "url",
    [
        "textq://file.tq",
        "textq:///",
        "textq:///folder/",
        "textq:/file.tq",
        "textq://user@/file.tq",
        "textq:///file.tq?lines=some",
        "textq:///file.tq?settle=0",
        "textq:///file.tq?settle=soon",
        "textq:///file.tq?hide=1",
        "textq:///file.tq?colour=red",
    ],
)
def test_the_error_for_a_wrong_url_shows_a_valid_one(url):
    with pytest.raises(InvalidURLError, match=r"textq:///var/lib/app/queue\.tq"):
        connect(url)
