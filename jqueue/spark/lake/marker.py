"""The marker of a lake: the files that belong to it, and how far it has the history of each queue.

A run first writes its files, and then names them in the marker, by compare-and-set. A file that the marker does not
name is no part of the lake. The names of files contain the number of their run. The marker has the number of the latest
run. This run alone can commit, until the next run writes the next number.
"""

from __future__ import annotations

import re

import msgspec

from jqueue.domain.errors import InvalidBlobError

FORMAT = 1

DATA_FILE = re.compile(r"day=[^/]+/entrypoint=[^/]+/jqueue-([0-9]+)-[0-9a-f-]+\.parquet")
"""Names of data files, with the number of the run. No other file is ever removed."""


def run_of(name: str) -> int:
    """Return the number of the run that wrote a data file."""
    matched = DATA_FILE.fullmatch(name)
    assert matched is not None, "it is the name of a data file"
    return int(matched[1])


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of a lake.

    Attributes:
        name: its path below the lake.
        rows: number of its events.
        size: in bytes.
        entrypoint: of its events. The name of the folder may be too short for it.
        tail: id of the queue whose latest events it has, which are not final yet; "" if its events are final.
    """

    name: str
    rows: int
    size: int
    entrypoint: str | None = None
    tail: str = ""

    @property
    def folder(self) -> str:
        """The folder of the file, which stands for a day and an entrypoint."""
        return self.name.rpartition("/")[0]

    @property
    def day(self) -> str:
        """The day of the events, as in 2026-11-28."""
        return self.name.partition("/")[0].removeprefix("day=")


class QueueMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Number of events that a lake has of one queue.

    Attributes:
        name: name of the queue.
        series: series of the history in which the last final event is.
        through: number of the last final event.
        tail: checksum of the events after it, which the queue's own object had; None if there were none.
    """

    name: str
    series: str
    through: int
    tail: int | None = None


class Marker(msgspec.Struct, frozen=True):
    """The content of a marker.

    Attributes:
        lake: number of the format.
        run: number of the latest run.
        writer: id of that run, so that no two runs write the same marker.
        is_running: True if that run has not ended. It may have been killed.
        queues: by their ids.
        files: all files.
    """

    lake: int = FORMAT
    run: int = 0
    writer: str = ""
    is_running: bool = False
    queues: dict[str, QueueMark] = {}
    files: tuple[DataFile, ...] = ()

    @property
    def events(self) -> int:
        """Number of events in the lake."""
        return sum(each.rows for each in self.files)


class _Format(msgspec.Struct):
    lake: int


def decode(data: bytes, lake: str) -> Marker:
    """Return the marker of a lake with this name.

    Raises:
        InvalidBlobError: it is damaged, or of a later version of jqueue.
    """
    try:
        if msgspec.json.decode(data, type=_Format).lake == FORMAT:
            return msgspec.json.decode(data, type=Marker)
    except ValueError:
        raise InvalidBlobError(
            f"{lake}/_jqueue.json is damaged, or not the marker of a lake: restore it from a copy, or archive into a "
            "new lake"
        ) from None
    raise InvalidBlobError(f"the lake {lake} was written by a later version of jqueue: upgrade jqueue")
