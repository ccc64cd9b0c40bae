"""jqueue and an original work on one folder or file at once, and their processes are killed again and again."""

import pytest

from tests.interop.formats.mixed import Worker, audit, killed, left_in, our_worker
from tests.interop.formats.originals import Original, worker

pytestmark = pytest.mark.wide

LIVES = [1, pytest.param(30, marks=pytest.mark.full)]

PLACES = {
    "dirq-simple": ("dirq", [None, {"granularity": 1}], "dirq://{}?kind=simple&granularity=1"),
    "dirq-queue": ("dirq", [{"body": "binary"}, {"maxelts": 5}], "dirq://{}?schema=body:binary"),
    "vsqs": ("vsqs", None, "vsqs://{}"),
}
"""Each format in a folder, its settings for the original, and its URL."""


@pytest.mark.parametrize("lives", LIVES)
@pytest.mark.parametrize("form", PLACES)
async def test_nothing_in_a_folder_is_lost_or_done_twice_when_programs_are_killed(
    form, lives, original, ours, tmp_path
):
    name, settings, url = PLACES[form]
    folder, interpreter = tmp_path / "queue", original(name)
    url = url.format(folder)
    theirs = Worker(worker(name, interpreter, folder, settings), interpreter.environment)
    audit(killed([theirs, our_worker(ours, url), our_worker(ours, url)], lives), await left_in(url))


@pytest.mark.parametrize("lives", LIVES)
async def test_no_message_of_a_file_is_lost_when_programs_are_killed(lives, original, ours, tmp_path):
    path, interpreter = tmp_path / "queue.tq", original("textqueue-1.1")
    path.write_bytes(b"# begun by hand\n")
    url = f"textq://{path}"
    theirs = Worker(worker("textq", interpreter, path), interpreter.environment)
    audit(killed([theirs, our_worker(ours, url), our_worker(ours, url)], lives), await left_in(url), locks=False)
    for version in ("1.0", "1.1"):
        with Original("textq", original(f"textqueue-{version}"), path) as reader:
            assert [[], 0] == reader.read_all(str(path))
