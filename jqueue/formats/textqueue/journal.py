"""The journal beside a TextQueue: attempts, claims, errors and places, which no reader of the original looks at.

A line of JSON for each change, saying all that holds for one message from then on; the last line about it counts. Lines
are appended under the lock, those of one moment by one write. A line that a crash has cut is passed over, as is any
other that says nothing: what is left is what held before it. Now and then the journal is written anew, with what
still counts, and takes the place of the old one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from jqueue.domain.durations import LONGEST
from jqueue.domain.fields import LARGEST
from jqueue.formats.textqueue.open_file import OpenFile
from jqueue.runtime.posix_files import create_file, flush, give_to_owner_of, write_all

KEPT_FINISHED = 1_000
"""So many finished messages are remembered with the attempt that finished them."""

_COMPACT_BYTES = 1 << 16
_quoted = json.encoder.encode_basestring_ascii
_HEAD = b'{"jq":1}\n'


class Told(NamedTuple):
    """What the journal says of one message.

    Attributes:
        attempt: how often it was claimed.
        failures: claims that were not handed back unharmed.
        heartbeat: when its claim was last confirmed, in microseconds since 1970; None if it is not claimed.
        timeout: that of the claim, in seconds.
        order: its place, if it is not that in the file.
        error: the last one.
        dead_at: when it died, in microseconds since 1970.
        finished: whether the last attempt has finished it.
        hidden: whether it is marked as processed without being so.
    """

    attempt: int = 0
    failures: int = 0
    heartbeat: int | None = None
    timeout: float | None = None
    order: int | None = None
    error: str | None = None
    dead_at: int | None = None
    finished: bool = False
    hidden: bool = False


NOTHING = Told()


class Unwritten(OSError):
    """The system refused a write, and the journal is as it was before."""


class Journal:
    """The journal of one file, as far as it has been read.

    Args:
        path: of the journal.

    Attributes:
        told: what it says, by id.
        claimed: ids of the messages that it says are claimed.
        last_order: the largest place that it gives.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._part = f"{path}.part"
        self.forget()

    def forget(self) -> None:
        """Have it read from its beginning."""
        self.told: dict[str, Told] = {}
        self.claimed: set[str] = set()
        self.last_order = 0
        self._read = 0
        self._size = 0
        self._lines = 0
        self._descriptor: OpenFile | None = None

    def has_moved(self) -> bool:
        """Whether there is something that was not read."""
        status = self._status()
        if status is None or self._descriptor is None:
            return (status is None) != (self._descriptor is None)
        return not self._descriptor.is_at(status) or status.st_size != self._size

    def refresh(self, *, locked: bool = False) -> bool:
        """Read what is new.

        Args:
            locked: whether we hold the lock, so that a line without an end is one that was cut.

        Returns:
            Whether there was anything.

        Raises:
            OSError: the system refused.
        """
        status = self._status()
        if status is None:
            return False  # what is known still holds; whoever writes next writes all of it
        if self._descriptor is None or not self._descriptor.is_at(status) or status.st_size < self._read:
            self.forget()
            self._descriptor = OpenFile(self.path, os.O_RDWR | os.O_APPEND)
        elif status.st_size == self._size == self._read:
            return False
        content = self._descriptor.read_from(self._read)
        self._size = self._read + len(content)
        if locked and content and not content.endswith(b"\n"):
            write_all(self._descriptor.number, b"\n")
            content += b"\n"
            self._size += 1
        whole = content.rfind(b"\n") + 1
        for line in content[:whole].splitlines():
            self._take(line)
        self._read += whole
        return True

    def write(self, changes: Mapping[str, Told], *, durable: bool, owner: os.stat_result | None = None) -> None:
        """Append what has changed, in one piece. Only under the lock, and after `refresh`.

        Args:
            changes: what holds from now on, by id.
            durable: whether it is on the disk when this returns.
            owner: whose a journal is that this makes: root that helps a user leaves it to the user.

        Raises:
            Unwritten: nothing was written.
            OSError: the system refused; what is known has to be forgotten.
        """
        lines = b"".join(_line(job_id, told) for job_id, told in changes.items())
        if self._descriptor is None or self._status() is None:
            self.rewrite({**self.told, **changes}, owner)
            return
        try:
            write_all(self._descriptor.number, lines)
        except OSError as error:
            os.ftruncate(self._descriptor.number, self._read)
            raise Unwritten(error.errno, error.strerror, self.path) from error
        if durable:
            flush(self._descriptor.number)
        self._size = self._read = self._read + len(lines)
        for job_id, told in changes.items():
            self._set(job_id, told)
        self._lines += len(changes)

    def is_long(self, live: int) -> bool:
        """Whether most of it says nothing any more.

        Args:
            live: how many messages it may say something about.
        """
        return self._size > _COMPACT_BYTES and self._lines > 4 * (live + KEPT_FINISHED)

    def rewrite(self, told: Mapping[str, Told], owner: os.stat_result | None = None) -> None:
        """Have it say this, and nothing else. Only under the lock.

        Raises:
            Unwritten: nothing was written.
            OSError: the system refused; what is known has to be forgotten.
        """
        try:
            self._write_part(told, owner)
        except OSError as error:
            raise Unwritten(error.errno, error.strerror, self.path) from error
        os.rename(self._part, self.path)
        self.forget()
        self.refresh(locked=True)

    def _write_part(self, told: Mapping[str, Told], owner: os.stat_result | None) -> None:
        """Write what takes the place of the journal."""
        with suppress(FileNotFoundError):
            os.unlink(self._part)
        old = self._status() or owner
        descriptor = create_file(self._part)
        try:
            if old is not None:
                give_to_owner_of(old, descriptor)
            write_all(descriptor, _HEAD + b"".join(_line(job_id, said) for job_id, said in told.items()))
            flush(descriptor)
        finally:
            os.close(descriptor)

    def _status(self) -> os.stat_result | None:
        try:
            return os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _take(self, line: bytes | bytearray) -> None:
        self._lines += 1
        try:
            said = json.loads(line)
            self._set(said["i"], _told(said))
        except (ValueError, TypeError, KeyError, RecursionError):
            return

    def _set(self, job_id: str, told: Told) -> None:
        self.told.pop(job_id, None)  # the last one said is the last one in the table
        self.told[job_id] = told
        if told.heartbeat is None:
            self.claimed.discard(job_id)
        else:
            self.claimed.add(job_id)
        if told.order is not None and told.order > self.last_order:
            self.last_order = told.order


def _line(job_id: str, told: Told) -> bytes:
    """One line, as `json` would write it, in a fraction of the time."""
    attempt, failures, heartbeat, timeout, order, error, dead_at, finished, hidden = told
    said = f'{{"i":{_quoted(job_id)},"a":{attempt}'
    if failures:
        said += f',"f":{failures}'
    if heartbeat is not None:
        said += f',"c":[{heartbeat},{float(timeout or 0)!r}]'
    if order is not None:
        said += f',"o":{order}'
    if error is not None:
        said += f',"e":{_quoted(error)}'
    if dead_at is not None:
        said += f',"d":{dead_at}'
    if finished:
        said += ',"x":1'
    if hidden:
        said += ',"h":1'
    return f"{said}}}\n".encode("ascii")


def _told(said: dict[str, Any]) -> Told:
    """What a line says.

    Raises:
        ValueError, TypeError, KeyError: it was not written by us.
    """
    heartbeat, timeout = said.get("c", (None, None))
    counts = (said["a"], said.get("f", 0), said.get("o", 0), said.get("d", 0), heartbeat or 0)
    if not all(type(count) is int and 0 <= count < LARGEST << 8 for count in counts) or not isinstance(said["i"], str):
        raise ValueError("not a line of a journal")
    if heartbeat is not None and not 0 <= timeout <= LONGEST:
        raise ValueError("not a claim")
    error = said.get("e")
    return Told(
        attempt=said["a"],
        failures=said.get("f", 0),
        heartbeat=heartbeat,
        timeout=None if heartbeat is None else float(timeout),
        order=said.get("o"),
        error=error if isinstance(error, str) else None,
        dead_at=said.get("d"),
        finished="x" in said,
        hidden="h" in said,
    )
