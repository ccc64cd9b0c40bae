"""The segments of a simulation, as the store has them: their rows, their indexes, and the rows that wait by a manifest.

They are decoded here without the queue's own code, so that a bug in its encoder or its decoder shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID
from zlib import crc32

from pydantic_core import from_json

Fields = dict[str, Any]
ReadLine = Callable[[bytes], tuple[str, Fields]]
"""Returns the id and the fields of the job of a line."""

FOLDER = ".segments/"
"""The beginning of the suffixes of segments."""

NAMED = re.compile(rb'"(?:payload|result)_object": ?\["([^"]+)", ?(\d+), ?"([0-9a-f]+)"\]')
"""The name, the size and the digest of an object in the line of a job."""


SHORT = re.compile(rb"[\x01-\x08]")
"""A byte that stands for one of the texts of the index."""


@dataclass(slots=True)
class StoredRow:
    """One row of a segment.

    Attributes:
        job_id: id of the job.
        job: fields of the job, with the segment's own sequence number.
        line: its line.
        since: its `run_at`, or else its `created_at`, in seconds since 1970.
    """

    job_id: str
    job: Fields
    line: bytes
    since: float

    @property
    def named(self) -> list[tuple[bytes, bytes, bytes]]:
        """The name, the size and the digest of each object that its job names."""
        return NAMED.findall(self.line)

    def key(self, offset: int) -> tuple[int, int, float]:
        """Return its priority, its sequence number in the queue, and `since`."""
        return self.job["priority"], self.job["sequence"] + offset, self.since


class StoredSegment:
    """A segment in the store.

    Args:
        content: the bytes of the object.
        read_line: returns the id and the fields of the job of a line.

    Attributes:
        entrypoint, queue: as its first line says.
        rows: its rows.
        index: offset of its index.
        said: the readable part of the index.
        tables: the rest of the index.
        content: its bytes.
    """

    def __init__(self, content: bytes, read_line: ReadLine) -> None:
        self.content = content
        head, _, rest = content.partition(b"\n")
        first = from_json(head)
        self.entrypoint, self.queue = first["entrypoint"], first["queue"]
        self._stored: list[bytes] = []
        while rest.startswith(b'"'):
            row, _, rest = rest.partition(b"\n")
            self._stored.append(row + b"\n")
        self.index = len(head) + 1 + sum(map(len, self._stored))
        said, _, self.tables = rest.partition(b"\n")
        self.said: Fields = from_json(said)
        texts = [text.encode() for text in self.said["texts"]]
        self.rows: list[StoredRow] = []
        for row in self._stored:
            line = SHORT.sub(lambda found: texts[found[0][0] - 1], row[:-1])
            job_id, job = read_line(line)
            since = datetime.fromisoformat(job.get("run_at") or job["created_at"]).timestamp()
            self.rows.append(StoredRow(job_id, job, line, since))

    def waiting(self, entry: Fields) -> dict[int, StoredRow]:
        """Return the rows that are not taken, by number.

        Args:
            entry: the segment's entry in the manifest.
        """
        taken = {row for first, last in entry.get("taken", ()) for row in range(first, last)}
        first = entry.get("next", 0)
        return {number: row for number, row in enumerate(self.rows) if number >= first and number not in taken}

    def fault(self, chunk_rows: int, *, own_ids: bool) -> str | None:
        """Return the part of its index that is wrong; None if there is none.

        Args:
            chunk_rows: number of rows in each chunk but the last.
            own_ids: True if jqueue made all ids.
        """
        said, rows = self.said, self.rows
        if said["rows"] != len(rows) or said["end"] != self.index:
            return "the number of its rows or their end"
        offset = len(self.content.partition(b"\n")[0]) + 1
        chunks = []
        for first in range(0, len(rows), chunk_rows):
            some = rows[first : first + chunk_rows]
            text = b"".join(self._stored[first : first + chunk_rows])
            chunks.append([offset, crc32(text), *some[0].key(0), min(row.since for row in some)])
            offset += len(text)
        if said["chunks"] != chunks:
            return "the entries of its chunks"
        if said["objects"] != [name.decode() for row in rows for name, *_ in row.named]:
            return "the list of objects"
        keyed = [(_digest(row.job["unique_key"]), place) for place, row in enumerate(rows) if row.job.get("unique_key")]
        if said["keys"] != len(keyed):
            return "the number of unique keys"
        hashed = [((_own_hash if own_ids else _digest)(row.job_id), number) for number, row in enumerate(rows)]
        if self.tables != _tables(hashed) + _tables(keyed):
            return "the hashes of ids and unique keys"
        return None


def _digest(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:8])


def _own_hash(job_id: str) -> int:
    """Return the hash of an id that jqueue has made."""
    try:
        made = UUID(job_id)
    except ValueError:
        return _digest(job_id)
    first, last = divmod(made.int, 1 << 64)
    return first ^ last if str(made) == job_id else _digest(job_id)


def _tables(pairs: list[tuple[int, int]]) -> bytes:
    """Return some hashes in order, and the row of each."""
    pairs = sorted(pairs)
    hashes = b"".join([each.to_bytes(8, "little") for each, _ in pairs])
    return hashes + b"".join([number.to_bytes(4, "little") for _, number in pairs])
