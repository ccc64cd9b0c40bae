"""The marker of a lake: the files that belong to it, and how far it has the history of each queue.

A run first writes its files, and then names them in the marker, by compare-and-set. A file that the marker does not
name is no part of the lake. The marker also names the run that is going on: only that one can commit, and the next run
takes its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jqueue.domain.errors import InvalidBlobError

FORMAT = 1

DATA_FILE = re.compile(r"day=[^/]+/entrypoint=[^/]+/jqueue-[0-9a-f-]+\.parquet")
"""Names of data files. No other file is ever removed."""


class DataFile(NamedTuple):
    """A file of a lake.

    Attributes:
        name: its path below the lake.
        rows: number of its events.
        size: in bytes.
        tail: id of the queue whose latest events it has, which are not final yet; "" if its events are final.
    """

    name: str
    rows: int
    size: int
    tail: str = ""

    @property
    def folder(self) -> str:
        """The folder of the file, which stands for a day and an entrypoint."""
        return self.name.rpartition("/")[0]


class Tail(NamedTuple):
    """The latest events of a queue, which its own object had when it was archived.

    Attributes:
        first: number of the first event.
        last: number of the last event.
        crc: checksum of their texts.
    """

    first: int
    last: int
    crc: int


@dataclass(frozen=True)
class QueueMark:
    """Number of events that a lake has of one queue.

    Attributes:
        name: name of the queue.
        series: series of the history in which the last final event is.
        through: number of the last final event.
        missing: number of events up to it that no longer existed when they were archived.
        tail: the events after it; None if there are none.
    """

    name: str
    series: str
    through: int
    missing: int = 0
    tail: Tail | None = None


@dataclass(frozen=True)
class Marker:
    """The content of a marker.

    Attributes:
        commit: id of the commit that wrote it.
        run: id of the run that is going on, or was killed; None if the last run has ended.
        queues: by their ids.
        files: all files, by name.
        names: true entrypoints of folders whose names are cut.
    """

    commit: str = ""
    run: str | None = None
    queues: Mapping[str, QueueMark] = field(default_factory=dict)
    files: Mapping[str, DataFile] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """Number of events in the lake."""
        return sum(each.rows for each in self.files.values())

    def with_files(self, added: Iterable[DataFile], dropped: Iterable[str] = ()) -> Marker:
        """Return the marker with other files."""
        files = dict(self.files)
        for name in dropped:
            files.pop(name, None)
        files.update((each.name, each) for each in added)
        folders = {each.folder for each in files.values()} if self.names else set()
        return replace(self, files=files, names={name: true for name, true in self.names.items() if name in folders})


def encode(marker: Marker) -> bytes:
    """Return the bytes of a marker."""
    said: dict[str, Any] = {"lake": FORMAT, "commit": marker.commit}
    if marker.run is not None:
        said["run"] = marker.run
    said["queues"] = {
        queue: {name: value for name, value in vars(mark).items() if value not in (None, 0) or name == "through"}
        for queue, mark in marker.queues.items()
    }
    if marker.names:
        said["names"] = dict(marker.names)
    head = json.dumps(said)
    lines = ",\n".join(json.dumps(each if each.tail else each[:-1]) for each in marker.files.values())
    return f'{head[:-1]}, "files": [\n{lines}\n]}}\n'.encode()


def decode(data: bytes, lake: str) -> Marker:
    """Return the marker of a lake with this name.

    Raises:
        InvalidBlobError: it is damaged, or of a later version of jqueue.
    """
    try:
        said = json.loads(data)
        if said["lake"] != FORMAT:
            raise InvalidBlobError(f"the lake {lake} was written by a later version of jqueue: upgrade jqueue")
        queues = {
            queue: QueueMark(**{**mark, "tail": Tail(*mark["tail"]) if "tail" in mark else None})
            for queue, mark in said["queues"].items()
        }
        files = {each[0]: DataFile(*each) for each in said["files"]}
        return Marker(said["commit"], said.get("run"), queues, files, said.get("names", {}))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise InvalidBlobError(
            f"{lake}/_jqueue.json is damaged, or not the marker of a lake: restore it from a copy, or archive into a "
            "new lake"
        ) from None
