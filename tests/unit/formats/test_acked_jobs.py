"""The list of acked jobs takes any ids, and several processes may shorten it at once."""

import os
from pathlib import Path

import pytest

from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.files import folders
from jqueue.formats.files.folders import AckedJobs
from jqueue.formats.files.notes import write_note
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder


@pytest.mark.parametrize("kind", [VsqsFolder, DirqSimple])
async def test_a_job_whose_note_has_an_invalid_id_can_be_acked(
    kind: type[VsqsFolder | DirqSimple], tmp_path: Path
) -> None:
    queue = StoreQueue(kind(tmp_path / "queue", fsync=False))
    job = await queue.enqueue("work", b"1")
    path = next(path for path in (tmp_path / "queue").rglob("*") if path.is_file() and path.read_bytes() == b"1")
    write_note(str(path), {"id": "\ud800", "entrypoint": "work"}, f"{path}.note")
    [job] = await StoreQueue(kind(tmp_path / "queue", fsync=False)).dequeue()
    later = StoreQueue(kind(tmp_path / "queue", fsync=False))
    await later.ack(job)
    assert [] == list((await later.read_state()).jobs)


def test_shortening_the_list_does_not_touch_the_temporary_file_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "ACKED_BYTES", 10)
    (tmp_path / "acked.part").write_text("another process is at it")
    acked = AckedJobs(tmp_path / "acked")
    acked.remember([("one-and-only", 1)])
    assert {"one-and-only": 1} == acked.read()
    assert ["acked", "acked.part"] == sorted(os.listdir(tmp_path))
