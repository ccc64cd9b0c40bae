"""Texts that most rows of a segment share, such as the names of fields. In each row, one byte stands for a text.

A row is stored in less than half of the bytes of its line, and costs that much less to write, flush and read. The bytes
do not occur in JSON, so rows become the same lines again, whatever the jobs are: see `SegmentIndex.whole`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile

from jqueue.domain.enqueued_jobs import UUID_HEAD
from jqueue.domain.segment_index import MARKS, is_shared_text

_STRING = rb'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    rb'"(?P<id>(?:[^"\\]|\\.)*)(?P<head>":\{"entrypoint":%b,"payload":")[A-Za-z0-9+/=]*'
    rb'(?P<middle>","status":"queued","sequence":)[0-9]+(?P<rest>,.*)' % _STRING
)
"""The line of a queued job. The groups `head`, `middle` and `rest` are usually the same in all lines of a segment."""


def texts_of(first: bytes, last: bytes) -> Sequence[bytes]:
    """Return the texts that the rows of a segment are likely to share, by its first and its last line."""
    found, other = _LINE.fullmatch(first), _LINE.fullmatch(last)
    if found is None or other is None:
        return ()
    end_of_id = found["id"][UUID_HEAD:]  # the same for all jobs of a bulk enqueue: see `bulk_id`
    if other["id"][UUID_HEAD:] != end_of_id:
        end_of_id = b""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(found["rest"], other["rest"], strict=False))
    rest = bytes(byte for byte, _ in same)
    return usable([bytes(end_of_id + found["head"]), bytes(found["middle"]), rest])


def usable(texts: Iterable[bytes]) -> Sequence[bytes]:
    """Return those of some texts that an index can hold, and that are longer than the byte that stands for them."""
    return [text for text in texts if len(text) > 1 and is_shared_text(text)]


def shortened(lines: bytes, texts: Sequence[bytes]) -> bytes:
    """Return the rows that stand for lines."""
    for mark, text in zip(MARKS, texts, strict=False):
        lines = lines.replace(text, mark)
    return lines
