"""What a format has no place for, kept with a file in an extended attribute: id, entrypoint, headers, attempts.

An attribute stays with its file through every rename, and programs that do not know it do not see it.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any

from jqueue.domain.errors import StorageFatalError

ATTRIBUTE = "user.jqueue"

LARGEST = 1024
"""So many bytes go into an attribute; file systems have room for about four thousand, all attributes together."""

MORE = "more"

_ABSENT = (errno.ENODATA, errno.EOPNOTSUPP)


def read_note(path: str) -> dict[str, Any]:
    """The note of a file; empty if it has none, or one that cannot be read.

    Raises:
        FileNotFoundError: there is no such file.
    """
    try:
        content = os.getxattr(path, ATTRIBUTE)
    except OSError as error:
        if error.errno in _ABSENT:
            return {}
        raise
    try:
        note = json.loads(content)
    except ValueError:
        return {}
    if not isinstance(note, dict):
        return {}
    if MORE in note:
        try:
            with open(note[MORE], "rb") as file:
                return dict(json.loads(file.read()))
        except (OSError, ValueError, TypeError):
            return note
    return note


def write_note(path: str, note: dict[str, Any], beside: str) -> None:
    """Give a file a note.

    Args:
        path: of the file.
        note: what is kept; None is nothing.
        beside: the path of a file for what is too much for an attribute.

    Raises:
        FileNotFoundError: there is no such file.
        StorageFatalError: this file system keeps no attributes.
    """
    said = {name: value for name, value in note.items() if value is not None and name != MORE}
    content = _encoded(said)
    if len(content) > LARGEST:
        os.makedirs(os.path.dirname(beside), exist_ok=True)
        part = f"{beside}.part"
        with open(part, "wb") as file:
            file.write(content)
        os.replace(part, beside)
        content = _encoded({**{name: said[name] for name in ("id", "entrypoint") if name in said}, MORE: beside})
    try:
        os.setxattr(path, ATTRIBUTE, content)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise StorageFatalError(
                f"the file system of {os.path.dirname(path)!r} keeps no extended attributes, which attempts need"
            ) from error
        raise


def _encoded(note: dict[str, Any]) -> bytes:
    return json.dumps(note, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
