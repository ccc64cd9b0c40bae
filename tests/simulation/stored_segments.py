"""The segments of a simulation, as the store has them: their rows, their indexes, and the rows that wait by a manifest.

They are decoded here without the queue's own code, so that a bug in its encoder or its decoder shows.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any
from zlib import crc32

from pydantic_core import from_json

Fields = dict[str, Any]
FieldsOf = Callable[[Fields], Fields]
"""Returns the fields of a job with their defaults, given those on its line."""

FOLDER = ".segments/"
"""The beginning of the suffixes of segments."""

NAMED = re.compile(rb'\["(\.(?:payloads|results)/[^"]+)", ?(\d+), ?"([0-9a-f]+)"\]')
"""The name, the size and the digest of an object in the line of a job."""


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

    def named_by(self, entry: Fields) -> Fields:
        """Return the fields of its job with what the segment's entry adds to all rows."""
        job = {**self.job, "sequence": self.job["sequence"] + entry.get("offset", 0)}
        if floor := entry.get("floor", 0):
            job |= {name: job.get(name, 0) + floor for name in ("attempt", "attempts_before")}
        return job

    def key(self, offset: int) -> tuple[int, int, float]:
        """Return its priority, its sequence number in the queue, and `since`."""
        return self.job["priority"], self.job["sequence"] + offset, self.since


class StoredSegment:
    """A segment in the store.

    Args:
        content: the bytes of the object.
        fields_of: returns the fields of the job of a line.

    Attributes:
        rows: its rows.
        index: offset of its index.
        said: the index.
        content: its bytes.
    """

    def __init__(self, content: bytes, fields_of: FieldsOf) -> None:
        self.content = content
        *self._stored, last = content.splitlines(keepends=True)
        self.index = len(content) - len(last)
        self.said: Fields = from_json(last)
        self.rows: list[StoredRow] = []
        for line in self._stored:
            fields = from_json(line)
            job_id, job = fields.pop("id"), fields_of(fields)
            since = datetime.fromisoformat(job.get("run_at") or job["created_at"]).timestamp()
            self.rows.append(StoredRow(job_id, job, line, since))

    def waiting(self, entry: Fields) -> dict[int, StoredRow]:
        """Return the rows that are not taken, by number.

        Args:
            entry: the segment's entry in the manifest.
        """
        taken = {row for first, last in entry.get("taken", ()) for row in range(first, last)}
        return {number: row for number, row in enumerate(self.rows) if number not in taken}

    def fault(self, chunk_rows: int) -> str | None:
        """Return the part of its index that is wrong; None if there is none.

        Args:
            chunk_rows: number of rows in each chunk but the last.
        """
        said, rows = self.said, self.rows
        if said["rows"] != len(rows) or said["end"] != self.index:
            return "the number of its rows or their end"
        offset, chunks = 0, []
        for first in range(0, len(rows), chunk_rows):
            some = rows[first : first + chunk_rows]
            text = b"".join(self._stored[first : first + chunk_rows])
            keys = [row.key(0) for row in some]
            best = min([priority, sequence] for priority, sequence, _ in keys)
            chunks.append([offset, crc32(text), [*keys[0]], min(row.since for row in some), best])
            offset += len(text)
        if said["chunks"] != chunks:
            return "the entries of its chunks"
        if said.get("objects", []) != [name.decode() for row in rows for name, *_ in row.named]:
            return "the list of objects"
        keyed = [(row.job["unique_key"], place) for place, row in enumerate(rows) if row.job.get("unique_key")]
        if said["ids"] != _table([(row.job_id, place) for place, row in enumerate(rows)]):
            return "the hashes of ids"
        return None if said["keys"] == _table(keyed, 2) else "the hashes of unique keys"


def _table(texts: list[tuple[str, int]], words: int = 1) -> str:
    """Return the hashes of some texts in order, of some times 8 bytes, and the row of each."""
    pairs = sorted((sha256(text.encode()).digest()[: 8 * words], row) for text, row in texts)
    hashes = b"".join([each[8 * word : 8 * word + 8][::-1] for word in range(words) for each, _ in pairs])
    return b64encode(hashes + b"".join([row.to_bytes(4, "little") for _, row in pairs])).decode()
