"""Damage that people and broken tools do to a blob: one edit of its text at a time, in any layout."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.fuzz.choices import Choices

VALUE = re.compile(rb'(?:(?<=:)|(?<=: ))("(?:[^"\\]|\\.)*"|-?[\d.e+]+|null|true|false|\[[^\[\]]*\]|\{[^{}]*\})')
NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"(?=: ?)')
TIME = re.compile(rb'"\d{4}-\d\d-\d\dT[^"]*"')
TEXT = re.compile(rb'"((?:[^"\\]|\\.)*)"')

NUMBERS = (b"0", b"-1", b"1", b"7", b"1e999", b"-1e999", b"NaN", b"Infinity", b"-0.0", b"1.5", b"0.1e-400", b"1e308")
COUNTS = tuple(b"%d" % number for number in (2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63)))
HUGE = (b"9" * 300, b"9" * 4300, b"9" * 5000, b"1" + b"0" * 400 + b".0")
TEXTS = (
    *(b'""', b'"queued"', b'"in_progress"', b'"dead"', b'"completed"', b'"mail"', b'"mail:eve"', b'"job-1"', b'"inf"'),
    *(b'"nan"', b'"1"', b'"eA=="', b'"eA="', b'"!"', b'"\\ud800"', b'"\xed\xa0\x80"', b'"\\u0000"', b'"\xe2\x80\xa8"'),
    b'"' + b"x" * 2000 + b'"',
)
TIMES = (
    *(b'"0001-01-01T00:00:00+00:00"', b'"0001-01-01T00:00:00+14:00"', b'"9999-12-31T23:59:59.999999+00:00"'),
    *(b'"9999-12-31T23:59:59-12:00"', b'"2026-01-01"', b'"2026-01-01T00:00:00"', b'"2025-12-31T23:59:59Z"'),
    *(b'"1969-07-20T20:17:40.000001+23:59:59.999999"', b'"2026-W01-1"', b"1767225600"),
)
OTHERS = (b"null", b"true", b"false", b"[]", b"{}", b'["job-1", 5.5]', b"[1, 2, 3.5, 0.1]", b'{"a": {"b": []}}')
VALUES = NUMBERS + COUNTS + HUGE + TEXTS + TIMES + OTHERS
NAMES = (
    b"id entrypoint payload status priority sequence attempt failures created_at max_attempts run_at expires_at headers"
    b" unique_key unique_for heartbeat_at claim_timeout dead_at error format version queue critical evicted_through"
    b" attempt_floor commits finished holds jobs extra set_aside model_config colour job-1 job-2 job-3 job-5"
).split()
FINISHED = b'"status": "completed", "result": [7], "keep_result": 1e9, "finished_at": "2026-01-02T03:04:05Z"'
FEATURES = (b"[]", b'["time travel"]', b'[""]', b'["\\ud800"]', b'"time travel"', b"[[]]", b"null", b"{}")
FORMATS = (b"2", b"1", b"3", b"2.0", b"true", b'"2"', b"null", b"[2]", b"9" * 4300)
BYTES = (*(b"%c" % each for each in b'{}[],:"\\\n\r\0 \x0b\xff'), b"}}", b",,", b"//")
COUNT = re.compile(rb"(?<=: )-?\d+(?=[,}])")
CHANGES = ((VALUE, VALUES), (VALUE, VALUES), (COUNT, COUNTS + NUMBERS), (TIME, TIMES), (TEXT, TEXTS))


def change(blob: bytes, choices: Choices) -> bytes:
    """Replace a value by one of any type, a number by one at an edge, a time, or a text."""
    pattern, values = choices.pick(CHANGES)
    return _replace(pattern, blob, choices, lambda _: choices.pick(values))


def rename(blob: bytes, choices: Choices) -> bytes:
    """Rename a field or a job, perhaps to a name that exists already."""
    return _replace(NAME, blob, choices, lambda _: b'"' + choices.pick(NAMES) + b'"')


def add_field(blob: bytes, choices: Choices) -> bytes:
    """Add a field to an object, known or unknown."""

    def field(found: bytes) -> bytes:
        return found + b'"' + choices.pick(NAMES) + b'": ' + choices.pick(VALUES) + b", "

    return _replace(re.compile(rb'\{(?=")'), blob, choices, field)


def nest(blob: bytes, choices: Choices) -> bytes:
    """Replace a value by a deeply nested one, also near the limits of parsers."""
    depth = choices.pick((3, 190, 199, 200, 201, 500, 3000)) if choices.one_in(2) else 850 + choices.below(150)
    opening, closing = choices.pick(((b"[", b"]"), (b'{"a": ', b"}")))
    return _replace(VALUE, blob, choices, lambda found: opening * depth + found + closing * depth)


def set_header(blob: bytes, choices: Choices) -> bytes:
    """Replace the format or the critical features."""
    name, values = choices.pick(((b"format", FORMATS), (b"critical", FEATURES)))
    pattern = re.compile(rb'(?<="' + name + rb'": )[^,]+(?=,)')
    return pattern.sub(lambda _: choices.pick(values), blob, count=1)


def edit_lines(blob: bytes, choices: Choices) -> bytes:
    """Delete, move or repeat a line, with or without its comma, or turn them around."""
    lines = blob.split(b"\n")
    at, to, kind = choices.below(len(lines)), choices.below(len(lines) + 1), choices.below(6)
    if kind == 0:
        lines[1:-2] = reversed(lines[1:-2])
    elif kind < 3:
        line = lines.pop(at)
        lines[to:to] = [line] if kind == 1 else []
    else:
        line = lines[at].rstrip(b",") + b"," if kind == 3 else lines[at]
        lines.insert(to, line.replace(b'"entrypoint":"', b'"entrypoint":"y', 1) if kind == 4 else line)
    return b"\n".join(lines)


def edit_a_job(blob: bytes, choices: Choices) -> bytes:
    """Add a job, as another program does, or change the decisions on one: its key, its place, its result."""
    at = '"created_at": "2026-01-02T03:04:05+00:00"'
    name, place = choices.below(40), choices.below(20)
    added = f'"by hand {name}": {{"entrypoint": "mail", "payload": "", "sequence": {place}, {at}}},\n'.encode()
    pattern, change = choices.pick(
        (
            (rb'(?<=\{\n)(?=")', lambda _: added),
            (rb'"payload":', lambda found: b'"unique_key":"k",' + found),
            (rb'"payload":', lambda found: b'"concurrency_key":"c","concurrency_limit":1,' + found),
            (rb'"sequence":\d+,', lambda _: b""),
            (rb'"status":"queued"', lambda _: FINISHED),
            (rb'\},\n"', lambda _: b'}, "'),
        )
    )
    return _replace(re.compile(pattern), blob, choices, change)


def join_lines(blob: bytes, choices: Choices) -> bytes:
    """Remove a line end, or put one in the place of a space."""
    old, new = choices.pick(((b"\n", b""), (b"\n", b" "), (b",", b",\n"), (b"{", b"{\n"), (b"}", b"\n}")))
    places = [found.start() for found in re.finditer(re.escape(old), blob)]
    if not places:
        return blob
    at = choices.pick(places)
    return blob[:at] + new + blob[at + len(old) :]


def change_bytes(blob: bytes, choices: Choices) -> bytes:
    """Remove some bytes and insert others."""
    at, gone = choices.below(len(blob) + 1), choices.pick((0, 1, 1, 2, 8, 50))
    come = choices.pick(BYTES) if choices.one_in(2) else choices.take(choices.below(4))
    return blob[:at] + come + blob[at + gone :]


def cut(blob: bytes, choices: Choices) -> bytes:
    """Cut off the end or the beginning, or fill the middle with NULs, as after a crash of the machine."""
    at = choices.below(len(blob) + 1)
    kept = choices.below(4)
    if kept == 3:
        return blob[:at] + b"\0" * 64 + blob[at + 64 :]
    return blob[at:] if kept == 2 else blob[:at]


def save_otherwise(blob: bytes, choices: Choices) -> bytes:
    """Save as an editor does: with other line ends, another encoding, or something around the text."""
    text = blob.decode("utf-8", "surrogateescape")
    return choices.pick(
        (
            lambda: blob.replace(b"\n", b"\r\n"),
            lambda: blob.replace(b"\n", b"\r"),
            lambda: b"\xef\xbb\xbf" + blob,
            lambda: text.encode("utf-16", "surrogatepass"),
            lambda: text.encode("utf-32-le", "surrogatepass"),
            lambda: text.encode("latin-1", "replace"),
            lambda: blob + blob,
            lambda: blob.rstrip() + b"\n\n\n",
            lambda: b"\n\n" + blob,
            lambda: b"\n".join(b"  " + line + b" \t" for line in blob.split(b"\n")),
            lambda: blob.replace(b"},\n", b"}\n"),
            lambda: blob.replace(b"}\n}}", b"},\n}}"),
        )
    )()


EDITS: tuple[Callable[[bytes, Choices], bytes], ...] = (
    *(change, change, change, change, rename, add_field, add_field, nest, set_header, edit_lines, edit_lines),
    *(edit_lines, edit_a_job, edit_a_job, edit_a_job, join_lines, change_bytes, cut, save_otherwise),
)


def edit(blob: bytes, choices: Choices) -> bytes:
    """Make one edit."""
    return choices.pick(EDITS)(blob, choices)


def _replace(pattern: re.Pattern[bytes], blob: bytes, choices: Choices, make: Callable[[bytes], bytes]) -> bytes:
    places = [found.span() for found in pattern.finditer(blob)]
    if not places:
        return blob
    start, end = choices.pick(places)
    return blob[:start] + make(blob[start:end]) + blob[end:]
