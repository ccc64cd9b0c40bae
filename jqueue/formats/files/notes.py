"""What a format has no place for is kept with a file: id, entrypoint, headers, attempts.

A note is an extended attribute: it stays with its file through every rename, and programs that do not know it do not
see it. Where there are no attributes (other systems, file systems without them, a file of somebody else), and where a
note is too large for one, it is a file beside, in a folder that the other programs do not look into.
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
"""So many bytes go into an attribute; file systems have room for about four thousand, all attributes together."""

MORE = "more"
"""In an attribute: where the whole note is, from the folder of the file."""

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
"""The names in a note, as they are written."""

_NAMES = {letter: name for name, letter in LETTERS.items()}
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Kept: an encoder is as long in the making as a note."""

HAS_ATTRIBUTES = hasattr(os, "setxattr")

_ABSENT = (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES) if HAS_ATTRIBUTES else ()
_REFUSED = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE)


def read_note(path: str, beside: str | None = None, *, attributes: bool = HAS_ATTRIBUTES) -> dict[str, Any]:
    """The note of a file; empty if it has none, or one that cannot be read.

    Args:
        path: of the file.
        beside: the path of the file that is its note where there are no attributes; None if that is not known.
        attributes: whether extended attributes are looked at.

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
    """Give a file a note, whole: it is the old one or the new one, whenever this process dies.

    Args:
        path: of the file.
        note: what is kept; None is nothing.
        beside: the path of a file for what cannot be an attribute; its folder is made if need be. What is there from
            before is replaced, or removed if an attribute has the note.
        attributes: whether extended attributes are used.

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
    """A note as it is written."""
    said = {
        LETTERS.get(name, name): int(value) if value.__class__ is float and value.is_integer() else value
        for name, value in note.items()
        if value is not None and value != 0
    }
    return _ENCODE(said).encode("utf-8", "surrogatepass")


def set_attribute(path: str, content: bytes) -> bool:
    """Write an encoded note to a file. Returns whether that could be done; if not, it has to be beside.

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
    part = f"{beside}.{os.getpid()}-{threading.get_ident()}.part"  # nobody else writes there at the same time
    try:
        with open(part, "wb") as file:
            file.write(content)
        os.stat(path)  # or it has another name by now, and whoever gave it that has noted something else
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
