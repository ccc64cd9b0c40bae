"""Notes: fields of a job that its format cannot hold (id, entrypoint, headers, attempts), kept with its file.

A note is an extended attribute of the file. So it follows the file through every rename, and programs of the original
do not see it. Some notes are files of their own instead, in a folder that the other programs do not look into. This is
so on other systems, on file systems without attributes, for a file of another user, and for notes that are too large.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

ATTRIBUTE = "user.jqueue"

LARGEST = 1024
"""Largest size of an attribute, in bytes. File systems allow about 4,000 for all attributes of a file together."""

MORE = "more"
"""Field of a short attribute: path of the file that holds the whole note, relative to the folder of the job's file."""

LETTERS = {
    "attempt": "a",
    "created": "c",
    "dead_at": "d",
    "entrypoint": "e",
    "failures": "f",
    "headers": "h",
    "id": "i",
    "max_attempts": "m",
    "next": "n",
    "error": "r",
    "token": "t",
    "timeout": "o",
    "from": "<",
    "to": ">",
}
"""Letter that stands for each field name in a stored note."""

_NAMES = {letter: name for name, letter in LETTERS.items()}
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Made once: making an encoder takes as long as encoding a note."""

HAS_ATTRIBUTES = hasattr(os, "setxattr")

_ABSENT = (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES) if HAS_ATTRIBUTES else ()
_REFUSED = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE)


def read_note(path: str, beside: str | None = None, *, attributes: bool = HAS_ATTRIBUTES) -> dict[str, Any]:
    """Return the note of a file; empty if it has none, or if its note cannot be read.

    Args:
        path: path of the file.
        beside: path of the file that holds the note if no attribute does; None if that path is not known.
        attributes: True to read extended attributes.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if beside is not None and (note := _read_beside(beside)) is not None:
        return note
    if not attributes:
        os.stat(path)
        return {}
    try:
        content = os.getxattr(path, ATTRIBUTE)
    except OSError as error:
        if error.errno in _ABSENT:
            return {}
        raise
    note = _decoded(content)
    if note is not None and MORE in note:
        more = _read_beside(os.path.join(os.path.dirname(path), str(note[MORE])))
        return note if more is None else more
    return note or {}


def write_note(path: str, note: dict[str, Any], beside: str, *, attributes: bool = HAS_ATTRIBUTES) -> None:
    """Replace the note of a file. If this process dies, the file has either the old note or the new one.

    Args:
        path: path of the file.
        note: the new note. Fields that are None or 0 are left out.
        beside: path of the file for a note that cannot be an attribute. Its folder is made if missing. A file that is
            there already is replaced, or removed if an attribute can hold the note.
        attributes: True to use extended attributes.

    Raises:
        FileNotFoundError: there is no such file.
    """
    content = encoded(note)
    if len(content) <= LARGEST and attributes and set_attribute(path, content):
        with suppress(FileNotFoundError):
            os.unlink(beside)
        return
    _write_beside(path, beside, content)
    if attributes:
        where = os.path.relpath(beside, os.path.dirname(path))
        few = {name: note.get(name) for name in ("id", "entrypoint")}
        set_attribute(path, encoded({**few, MORE: where}))


def encoded(note: Mapping[str, Any]) -> bytes:
    """Return a note as it is stored."""
    said = {
        LETTERS.get(name, name): int(value) if value.__class__ is float and value.is_integer() else value
        for name, value in note.items()
        if value is not None and value != 0
    }
    return _ENCODE(said).encode("utf-8", "surrogatepass")


def set_attribute(path: str, content: bytes) -> bool:
    """Store an encoded note as an attribute of a file. Returns False if the note needs a file of its own.

    Raises:
        FileNotFoundError: there is no such file.
    """
    try:
        os.setxattr(path, ATTRIBUTE, content)
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        raise
    return True


def _write_beside(path: str, beside: str, content: bytes) -> None:
    with suppress(FileExistsError):
        os.mkdir(os.path.dirname(beside))
    part = f"{beside}.{os.getpid()}-{threading.get_ident()}.part"  # no other writer uses this name
    try:
        with open(part, "wb") as file:
            file.write(content)
        os.stat(path)  # raises if the file was renamed meanwhile: the program that renamed it has written another note
        os.replace(part, beside)
    except OSError:
        with suppress(OSError):
            os.unlink(part)
        raise


def _read_beside(beside: str) -> dict[str, Any] | None:
    try:
        with open(beside, "rb") as file:
            return _decoded(file.read())
    except OSError:
        return None


def _decoded(content: bytes) -> dict[str, Any] | None:
    try:
        note = json.loads(content)
    except ValueError:
        return None
    if not isinstance(note, dict):
        return None
    return {_NAMES.get(str(name), str(name)): value for name, value in note.items()}
