"""`Schema`: the pieces of data in the elements of dirq's kind `queue`, and the text of its tables."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import JobRecord

_FIELD = re.compile(r"([0-9a-zA-Z]+):(binary|string|table)([?*]{0,2})")
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n"}
_PLAIN = {escape: sign for sign, escape in _ESCAPES.items()}


def encode_table(table: Mapping[str, str]) -> bytes:
    """Encode a table as the content of a file: a line for each key, in sorted order.

    Raises:
        InvalidJobError: a text contains a surrogate, which UTF-8 cannot encode.
    """
    return _in_utf8("".join(f"{_escaped(key)}\t{_escaped(table[key])}\n" for key in sorted(table)))


def decode_table(content: bytes) -> dict[str, str]:
    """Decode the table in the content of a file. As in dirq, line breaks at the start and at the end are ignored.

    Raises:
        ValueError: the content is not a table.
    """
    text = content.decode("utf-8").strip("\n")
    pairs = [line.split("\t") for line in text.split("\n")] if text else []
    return {_unescaped(key): _unescaped(value) for key, value in pairs}


def _in_utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidJobError("a header holds a lone surrogate, which dirq cannot store as UTF-8") from None


def _escaped(text: str) -> str:
    return re.sub(r"[\\\t\n]", lambda match: _ESCAPES[match[0]], text)


def _unescaped(text: str) -> str:
    return re.sub(r"\\[\\tn]", lambda match: _PLAIN[match[0]], text)


@dataclass(frozen=True)
class Schema:
    """The pieces of data in the elements of a queue, and their meaning for a job.

    Attributes:
        payload: name of the piece that holds the payload.
        text: True if the payload is text, which must be UTF-8.
        headers: name of the table that holds the headers; None if there is none.
        optional: True if that table may be missing.
        strings: names of optional texts. Each is a header with the same name.
        may_be_missing: True if elements without a payload are jobs whose payload is empty.
    """

    payload: str = "body"
    text: bool = False
    headers: str | None = "header"
    optional: bool = True
    strings: tuple[str, ...] = ()
    may_be_missing: bool = False

    @classmethod
    def parse(
        cls, schema: str = "body:binary,header:table?", payload: str = "body", headers: str | None = None
    ) -> Schema:
        """Parse a schema.

        Args:
            schema: name and kind of each piece of data. A question mark means that the piece may be missing. As in
                dirq, a star has no meaning here, and at least one piece must be mandatory.
            payload: name of the piece that holds the payload.
            headers: name of the table that holds the headers; None means `header`, if there is such a table.

        Raises:
            ValueError: the text is not a schema, or a job cannot hold all of its mandatory pieces.
        """
        pieces = [_FIELD.fullmatch(text) for text in schema.split(",")]
        fields = {piece[1]: (piece[2], "?" in piece[3]) for piece in pieces if piece is not None}
        legal = len(fields) == len(pieces) and "locked" not in fields
        legal &= not all(optional for _, optional in fields.values())
        kind, may_be_missing = fields.pop(payload, ("none", False))
        name = headers or ("header" if "header" in fields else None)
        table, optional = ("table", True) if name is None else fields.pop(name, ("none", True))
        legal &= kind in ("binary", "string") and table == "table" and all(optional for _, optional in fields.values())
        if not legal:
            raise ValueError(
                "write name:kind,name:kind with a binary or string for the payload, a table for headers, and a ? after "
                "each other kind"
            )
        strings = () if name is None else tuple(text for text, (kind, _) in fields.items() if kind == "string")
        return cls(payload, kind == "string", name, optional, strings, may_be_missing)

    def read(self, path: str) -> dict[str, Any]:
        """Return the payload and the headers in the folder of an element, as fields of a job.

        Raises:
            FileNotFoundError: there is no payload.
            ValueError: the headers cannot be read.
        """
        payload, headers = _content(f"{path}/{self.payload}"), {}
        if payload is None and not (self.may_be_missing and self.headers and os.path.exists(f"{path}/{self.headers}")):
            raise FileNotFoundError(errno.ENOENT, "the element has no payload", path)
        if self.headers is not None:
            texts = {text: _content(f"{path}/{text}") for text in self.strings}
            headers = {text: content.decode("utf-8") for text, content in texts.items() if content is not None}
            headers |= decode_table(_content(f"{path}/{self.headers}") or b"")
        return {"payload": payload or b"", "headers": headers or None}

    def files(self, job: JobRecord) -> dict[str, bytes]:
        """Return the files of a job's element: names and contents.

        Raises:
            InvalidJobError: the payload must be text and is not UTF-8, or a header has a surrogate.
        """
        if self.text:
            try:
                job.payload.decode("utf-8")
            except UnicodeDecodeError:
                raise InvalidJobError("this dirq queue takes only payloads in UTF-8, and this payload is not") from None
        headers = dict(job.headers or {})
        files = {text: _in_utf8(headers.pop(text)) for text in self.strings if text in headers}
        if self.headers is not None and (headers or not self.optional):
            files[self.headers] = encode_table(headers)
        return files | {self.payload: job.payload}


def _content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None
