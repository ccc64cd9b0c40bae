"""A queue with a relative path stays at that folder or file when the process changes its folder."""

import os
from pathlib import Path

import pytest

from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from jqueue.formats.vsqs.store import VsqsFolder


@pytest.mark.parametrize("kind", [VsqsFolder, DirqSimple, DirqElements, TextQueueFile])
async def test_a_queue_stays_at_its_path_when_the_process_changes_its_folder(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    queue = StoreQueue(kind("queue", fsync=False))
    first = await queue.enqueue("work", b"1")
    monkeypatch.chdir(tmp_path / "elsewhere")
    second = await queue.enqueue("work", b"2")
    assert [first.id, second.id] == [job.id for job in (await queue.read_state()).jobs]
    assert [] == os.listdir(tmp_path / "elsewhere")
