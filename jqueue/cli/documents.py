"""Parts of a queue as JSON that a person can edit: the options of a job, a cron entry, limits, settings.

A document keeps what the queue had when it was read. Its operations are guarded by that, so an edit never undoes a
change that its author has not seen.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jqueue.cli import values as written
from jqueue.domain.job_options import STORED
from jqueue.domain.printable import printable

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Document:
    """A part of a queue.

    Attributes:
        title: its description, one line.
        facts: lines about it that cannot be edited.
        values: the fields that can be edited, as JSON values.
        save: saves other values, by a single commit. Raises ChangedMeanwhileError if the part is no longer like this.
    """

    title: str
    facts: Sequence[str]
    values: Values
    save: Callable[[Any, Values], Any]

    def text(self, values: Values | None = None) -> str:
        """Return the text to edit.

        Args:
            values: other values for the fields.
        """
        shown = json.dumps(self.values if values is None else values, indent=2, ensure_ascii=False)
        safe = "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in shown)
        head = [self.title, *self.facts, "Lines with a # are ignored. null unsets a field."]
        return "".join(f"# {printable(line)}\n" for line in head) + safe + "\n"

    def changes_since(self, older: Document) -> str:
        """Return the difference between an older reading and this one, as lines with - and +."""
        before, after = (each.text().splitlines() for each in (older, self))
        lines = difflib.unified_diff(before, after, lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))

    def merged(self, older: Document, edited: Values) -> Values:
        """Return these values, with the fields in which an edit of an older reading differs from it."""
        return {**self.values, **{name: value for name, value in edited.items() if value != older.values[name]}}

    def parse(self, text: str) -> Values:
        """Return the values of an edited text.

        Raises:
            ValueError: it is not JSON, or has other fields. The message says where, and quotes no value.
        """
        lines = ["" if line.startswith("#") else line for line in text.splitlines()]
        try:
            found = json.loads("\n".join(lines), object_pairs_hook=_once)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {error.lineno} is not JSON: {error.msg}") from None
        except RecursionError:
            raise ValueError("the text is nested too deeply") from None
        if not isinstance(found, dict):
            raise ValueError("the text must be one JSON object, in braces")
        for name in found:
            if name not in self.values:
                raise ValueError(f"there is no field {printable(name)!r} here: the fields are {', '.join(self.values)}")
        for name in self.values:
            if name not in found:
                raise ValueError(f"the field {name!r} is missing: write null to unset it")
        return found


def _escaped(char: str) -> str:
    """Return a character of a JSON text as an escape, so that it cannot command a terminal or an editor."""
    return json.dumps(char)[1:-1]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field is there twice")
    return found


def plain(value: Any) -> Any:
    """Return the value of a field as a JSON value."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return dict(value) if isinstance(value, Mapping) else value


def option_of(name: str, value: Any) -> Any:
    """Return the option of a job that a JSON value means: durations and times may be texts.

    Raises:
        ValueError: the text is not a duration or a time.
    """
    kind = STORED[name].kind
    if isinstance(value, str) and kind is timedelta:
        return written.duration(name, value)
    if isinstance(value, str) and kind is datetime:
        return written.time(name, value)
    return value


def duration_of(name: str, value: Any) -> Any:
    """Return a duration: a text with a unit becomes seconds, and anything else stays as it is.

    Raises:
        ValueError: the text is not a duration.
    """
    return written.duration(name, value) if isinstance(value, str) else value


def payload_shown(payload: bytes) -> dict[str, Any]:
    """Return a payload as a JSON value in which people can edit it: as JSON, as text, or as base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(payload).decode()}
    try:
        found = json.loads(text)
        if payload_given({"json": found}) == payload:
            return {"json": found}
    except (ValueError, RecursionError):
        pass
    return {"text": text}


def payload_given(value: Any) -> bytes:
    """Return the payload that such a value means.

    Raises:
        ValueError: it is not like that.
    """
    if isinstance(value, dict) and len(value) == 1:
        [(form, content)] = value.items()
        try:
            if form == "json":
                return json.dumps(content, ensure_ascii=False).encode()
            if form == "text" and isinstance(content, str):
                return content.encode()
            if form == "base64" and isinstance(content, str):
                return base64.b64decode(content, validate=True)
        except (binascii.Error, UnicodeEncodeError):
            pass
    raise ValueError('the payload must be {"json": …}, {"text": "…"} or {"base64": "…"}')
