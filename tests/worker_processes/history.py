"""Every version that a queue ever had, assembled from the logs of all its writers.

Each commit increments the version by one, so a missing version is noticed. If several writes were sent as the same
version, the next version tells which one landed, because it names the writer of its predecessor. The content is read
as plain JSON, without the codec of the queue.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from tests.worker_processes.recording import SUFFIX, Entry, Kind, entries

Fields = dict[str, Any]


class BrokenHistory(AssertionError):
    """The logs do not form one chain of versions."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the queue.

    Attributes:
        number: the version number in the header.
        by: the process that wrote it; empty for the empty queue before the first version.
        at: time of the commit in seconds since 1970, by the writer's queue, which may use the clock of the store.
        sent_at: time at which it was sent, by the clock that all processes of this machine share.
        jobs: the fields of each job, by id. An unchanged line is the same object in the next version.
        header: all other fields.
    """

    number: int = 0
    by: str = ""
    at: float = 0.0
    sent_at: float = 0.0
    jobs: dict[str, Fields] = field(default_factory=dict)
    header: Fields = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Write:
    """A version that was sent and may have landed."""

    number: int
    by: str
    sent_at: float
    header: Fields
    body: bytes
    confirmed: bool

    @property
    def signature(self) -> tuple[str, int]:
        """The writer and its sequence number."""
        return next((name, row[0]) for name, row in self.header["commits"].items() if row[1] == self.number)


def read_history(folder: Path, final: bytes) -> Iterator[Version]:
    """Return all versions, from the first to the last.

    Args:
        folder: the folder of the logs.
        final: the content of the store at the end.

    Raises:
        BrokenHistory: a version is missing, or a confirmed write is not in the chain.
    """
    logs = [_writes(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    last = _write("", 0.0, final, confirmed=False)
    lines: dict[bytes, tuple[str, Fields]] = {}
    number = 0
    for lot, following in itertools.pairwise(itertools.chain(_lots(logs, last.number), [[last]])):
        number += 1
        if lot[0].number != number:
            raise BrokenHistory(f"version {number} is in no log: the next one is {lot[0].number}")
        yield _version(_landed(lot, following[0], is_last=following[0] is last), lines)
    if number != last.number:
        raise BrokenHistory(f"the store holds version {last.number}, and the last in the logs is {number}")


def _lots(logs: Iterable[Iterator[Write]], last: int) -> Iterator[list[Write]]:
    """The writes of each version. Writes of a version after the last one have not landed."""
    by_number = attrgetter("number")
    for number, lot in itertools.groupby(merge(*logs, key=by_number), key=by_number):
        if number <= last:
            yield list(lot)
        elif any(write.confirmed for write in lot):
            raise BrokenHistory(f"version {number} was confirmed, and the store holds version {last}")


def _landed(lot: list[Write], following: Write, *, is_last: bool) -> Write:
    """The write that landed, among all that were sent as the same version."""
    if is_last:  # `following` is the same version, as the store has it
        found = [write for write in lot if write.signature == following.signature]
    else:
        rows = following.header["commits"].items()
        signature = next(((name, row[0]) for name, row in rows if row[1] == lot[0].number), None)
        if signature is None:  # the writer of the next version wrote this one, too
            writer, sequence = following.signature
            mine = [write for write in lot if write.signature[0] == writer and write.signature[1] < sequence]
            found = mine[-1:]
        else:
            found = [write for write in lot if write.signature == signature]
    if not found:
        raise BrokenHistory(f"version {lot[0].number} is in no log")
    for write in lot:
        if write.confirmed and write.signature != found[-1].signature:
            raise BrokenHistory(
                f"{write.by} was told that it wrote version {write.number}, and {found[-1].by} wrote it"
            )
    return found[-1]


def _writes(path: Path) -> Iterator[Write]:
    """The writes of a process. A write is confirmed if the next entry of the log is LANDED."""
    name = path.name.removesuffix(SUFFIX)
    sent: Entry | None = None
    for entry in entries(path):
        if sent is not None:
            yield _write(name, sent.at, sent.content, confirmed=entry.kind is Kind.LANDED)
        sent = entry if entry.kind is Kind.SENT else None
    if sent is not None:
        yield _write(name, sent.at, sent.content, confirmed=False)


def _write(by: str, sent_at: float, content: bytes, *, confirmed: bool) -> Write:
    header, _, body = content.partition(b"\n")
    if not header.endswith(b'"jobs": {') or not body.endswith(b"}}\n"):
        raise BrokenHistory(f"a version of {by} is not laid out as it should be: {header[-40:]!r} … {body[-20:]!r}")
    fields = from_json(header + b"}}")
    return Write(fields["version"], by, sent_at, fields, body[:-3], confirmed)


def _version(write: Write, lines: dict[bytes, tuple[str, Fields]]) -> Version:
    """Parse the new lines of a version. `lines` maps the lines of the previous version, and afterwards of this one."""
    read = {}
    for line in write.body.split(b"\n"):
        if line:
            known = lines.get(line)
            if known is None:
                [known] = from_json(b"{" + line.removesuffix(b",") + b"}").items()
            read[line] = known
    lines.clear()
    lines.update(read)
    at = next(row[2] for row in write.header["commits"].values() if row[1] == write.number)
    return Version(write.number, write.by, at, write.sent_at, dict(read.values()), write.header)
