"""Names, tables and schemas of dirq: the rules that all its programs share.

5fb8a3c0/5fb8a3c91e2403        a folder and an element: seconds, microseconds and a digit, in hexadecimal
00000000/5fb8a3c91e2403        the same in the other kind, whose folders are numbered
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import JobRecord

FOLDER = re.compile(r"[0-9a-f]{8}")
ELEMENT = re.compile(r"[0-9a-f]{14}")

HIDDEN = ".jqueue"
"""Name of jqueue's own folder in the queue, which programs of dirq do not look into."""

DEAD, MOVING = "dead-", "moving-"

LAST_SECOND = 0xFFFFFFFF
"""Largest number of seconds since 1970 that fits into a name."""

_FIELD = re.compile(r"([0-9a-zA-Z]+):(binary|string|table)([?*]{0,2})")
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n"}
_PLAIN = {escape: sign for sign, escape in _ESCAPES.items()}
_SIGN, _ESCAPE = re.compile(r"[\\\t\n]"), re.compile(r"\\[\\tn]")


def element_name(number: int, digit: int) -> str:
    """Return the name of an element.

    Args:
        number: microseconds since 1970.
        digit: 0 to 15; it tells apart programs that add an element in the same microsecond.
    """
    seconds, rest = divmod(number, 1_000_000)
    return f"{min(seconds, LAST_SECOND):08x}{rest:05x}{digit:x}"


def number_of(element: str) -> int:
    """Return the microseconds since 1970 in the name of an element."""
    return int(element[:8], 16) * 1_000_000 + int(element[8:13], 16)


class Place(NamedTuple):
    """Place of a job. As a text, in `StoredJob.place`, it is `name`, `name*token*beat` or `name!token!beat`.

    Attributes:
        name: path of the element, relative to the queue's folder.
        token: time in nanoseconds that tells this lock from other locks of the element; 0 if it is not locked.
        beat: time in nanoseconds at which the lock was last confirmed.
        is_claim: True if the lock is a claim of jqueue; False if another program holds it.
    """

    name: str
    token: int = 0
    beat: int = 0
    is_claim: bool = True

    @classmethod
    def parse(cls, text: str) -> Place:
        """Parse the text that `str` makes of a place."""
        sign = "!" if "!" in text else "*"
        name, _, lock = text.partition(sign)
        token, _, beat = lock.partition(sign)
        return cls(name, int(token or 0), int(beat or 0), sign == "*")

    def __str__(self) -> str:
        sign = "*" if self.is_claim else "!"
        return f"{self.name}{sign}{self.token}{sign}{self.beat}" if self.token else self.name

    @property
    def is_hidden(self) -> bool:
        """True if the element is in jqueue's own folder, where programs of dirq do not look."""
        return self.name.startswith(HIDDEN)

    @property
    def element(self) -> str:
        """The element's `folder/name`; for a hidden element, its name before it was hidden."""
        if not self.is_hidden:
            return self.name
        return self.name.partition("-")[2].replace("-", "/", 1)


def hidden(prefix: str, element: str) -> str:
    """Return the name that hides an element from the programs of dirq."""
    return f"{HIDDEN}/{prefix}{element.replace('/', '-')}"


def encode_table(table: Mapping[str, str]) -> bytes:
    """Encode a table as the content of a file: a line for each key, in sorted order.

    Raises:
        InvalidJobError: a text contains a surrogate, which UTF-8 cannot encode.
    """
    return _in_utf8("".join(f"{_escaped(key)}\t{_escaped(table[key])}\n" for key in sorted(table)))


def decode_table(content: bytes) -> dict[str, str]:
    """Decode the table in the content of a file. As in dirq, line breaks at the start and at the end are ignored.

    Raises:
        ValueError: the content is not a table; the message does not show it.
    """
    try:
        text = content.decode("utf-8").strip("\n")
    except UnicodeDecodeError:
        raise ValueError("the table of an element is not UTF-8") from None
    table = {}
    for line in text.split("\n") if text else ():
        key, tab, value = line.partition("\t")
        if not tab or "\t" in value:
            raise ValueError("the table of an element has a line that is not a key, a tab and a value")
        table[_unescaped(key)] = _unescaped(value)
    return table


def _in_utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidJobError("a header holds a lone surrogate, which dirq cannot store as UTF-8") from None


def _escaped(text: str) -> str:
    return _SIGN.sub(lambda found: _ESCAPES[found[0]], text)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _PLAIN[found[0]], text)


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
    def parse(cls, schema: str, payload: str, headers: str | None) -> Schema:
        """Parse a schema such as `body:binary,header:table?`.

        Args:
            schema: name and kind of each piece of data. A question mark means that the piece may be missing. As in
                dirq, a star has no meaning here, and at least one piece must be mandatory.
            payload: name of the piece that holds the payload.
            headers: name of the table that holds the headers; None means `header`, if there is such a table.

        Raises:
            ValueError: the text is not a schema, or a job cannot hold all of its mandatory pieces.
        """
        fields: dict[str, tuple[str, bool]] = {}
        for text in schema.split(","):
            found = _FIELD.fullmatch(text)
            if found is None or found[1] in fields or found[1] == "locked":
                raise ValueError(
                    "a schema is a list of name:kind; the kinds are binary, string and table, with a ? if optional"
                )
            fields[found[1]] = found[2], "?" in found[3]
        if all(optional for _, optional in fields.values()):
            raise ValueError("the schema has no mandatory piece of data: leave the ? out of at least one")
        kind, may_be_missing = fields.pop(payload, ("none", False))
        if kind not in ("binary", "string"):
            raise ValueError(f"the schema has no binary or string named {payload!r} for the payload")
        table = fields.pop(headers or "header", None)
        if (table is None and headers is not None) or (table is not None and table[0] != "table"):
            raise ValueError(f"the schema has no table named {headers or 'header'!r} for the headers")
        if not all(optional for _, optional in fields.values()):
            raise ValueError("a job has only a payload and headers: put a ? after every other kind in the schema")
        strings = tuple(name for name, (kind, _) in fields.items() if kind == "string")
        name = None if table is None else headers or "header"
        optional = table is None or table[1]
        return cls(payload, kind == "string", name, optional, () if name is None else strings, may_be_missing)

    @property
    def mandatory(self) -> str:
        """Name of a piece of data that each element has."""
        return self.headers if self.may_be_missing and self.headers is not None else self.payload

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
        files = {self.payload: job.payload}
        headers = dict(job.headers or {})
        files |= {text: _in_utf8(headers.pop(text)) for text in self.strings if text in headers}
        if self.headers is not None and (headers or not self.optional):
            files[self.headers] = encode_table(headers)
        return files
