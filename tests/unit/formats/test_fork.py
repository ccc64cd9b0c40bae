"""A folder of vsqs in a child process that was forked during a scan."""

import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jqueue.formats.vsqs.folder_reader import FolderReader
from jqueue.formats.vsqs.store import VsqsFolder

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_during_a_scan_sees_every_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".jqueue-dead").mkdir()
    (tmp_path / ".jqueue-dead" / "5").write_bytes(b"")
    store = VsqsFolder(tmp_path, fsync=False)
    assert 1 == len(store.scan(NOW))
    inside, go_on = threading.Event(), threading.Event()

    class Held(dict[str, Any]):
        def pop(self, *arguments: Any) -> Any:
            found = super().pop(*arguments)
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                assert go_on.wait(20)
            return found

    monkeypatch.setattr(store._reader, "_seen", Held(store._reader._seen))
    assert isinstance(store._reader, FolderReader)
    thread = threading.Thread(target=store.scan, args=(NOW,))
    thread.start()
    assert inside.wait(20)
    child = os.fork()
    if child == 0:
        os._exit(0 if len(store.scan(NOW)) == 1 else 1)
    go_on.set()
    thread.join()
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
