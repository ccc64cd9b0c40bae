"""A queue in a folder that does not exist is refused, unless `create` is set. The mode of a new file."""

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage, connect, connect_queue
from jqueue.domain.errors import InvalidURLError, MissingFolderError

PLACES = [
    "{}/misspelled/queue.json",
    "file://{}/misspelled/queue.json",
    "vsqs://{}/misspelled/queue",
    "dirq://{}/misspelled/messages/",
    "textq://{}/misspelled/queue.tq",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_missing_folder_is_reported_with_a_remedy_and_not_created(tmp_path, place):
    for call in (connect, connect_queue):
        with pytest.raises(MissingFolderError, match=r"create=true in a URL, or --create") as raised:
            call(place.format(tmp_path))
        assert f"the folder '{tmp_path}/misspelled' does not exist" in str(raised.value)
        assert f"{tmp_path}/misspelled" == raised.value.folder
    assert isinstance(raised.value, InvalidURLError)
    assert not (tmp_path / "misspelled").exists()


@pytest.mark.parametrize("place", PLACES)
async def test_the_first_job_creates_the_folder_if_create_is_set(tmp_path, place):
    async with connect_queue(place.format(tmp_path), create=True) as queue:
        assert not (tmp_path / "misspelled").exists(), "not before"
        await queue.enqueue("work", b"1")
    async with connect_queue(place.format(tmp_path)) as queue:
        assert 1 == len(await queue.dequeue())


@pytest.mark.parametrize("place", PLACES[1:])
async def test_a_url_can_ask_for_its_folder_to_be_created(tmp_path, place):
    async with connect_queue(f"{place.format(tmp_path)}?create=true") as queue:
        await queue.enqueue("work", b"1")
    with pytest.raises(MissingFolderError):
        connect(f"{place.format(tmp_path / 'no')}?create=false")


async def test_the_file_storage_class_creates_its_folder_as_in_1_0_0(tmp_path):
    await DirectQueue(LocalFileSystemStorage(tmp_path / "new" / "queue.json")).enqueue("work", b"1")
    assert (tmp_path / "new" / "queue.json").exists()


def test_a_mode_in_a_url_is_octal():
    assert 0o664 == connect("file:///queue.json?mode=664")._mode
    for mode in ("066", "777", "4660", "0x1b0", "-660", "rw"):
        with pytest.raises(InvalidURLError, match="wrong value for mode, which takes a mode in octal"):
            connect(f"file:///queue.json?mode={mode}")
