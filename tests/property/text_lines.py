"""TextQueues as a person writes them, and a plain reader of them that shares nothing with ours."""

import re
from typing import NamedTuple

from hypothesis import strategies as st

ENDS = (b"\n", b"\r\n", b"\r")


class Message(NamedTuple):
    """A message, or a comment, as textqueue 1.1 finds it."""

    offset: int
    control: bytes
    text: bytes


def read(content: bytes) -> list[Message]:
    """Every record of a file, line by line."""
    found: list[Message] = []
    offset, going_on, variables = 0, False, False
    for line in re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", content):
        text, first = line.rstrip(b"\r\n"), line[:1]
        if first == b" " and going_on and not variables:
            if found and found[-1].control != b"?":
                found[-1] = found[-1]._replace(text=found[-1].text + b"\n" + text[1:])
        elif first == b"\\" and going_on:
            variables = True
        elif not text:
            going_on = False
        else:
            control = first if first in (b"-", b"=", b"!", b"#") else b"?"
            found.append(Message(offset, control, text[1:]))
            going_on, variables = True, False
        offset += len(line)
    return [message for message in found if message.control != b"?"]


words = st.sampled_from([b"", b"a", b"b", b" a", b"-a", b"jq {}", b'jq {"id":"x"}', "grüß".encode(), b"\xff", b"\x00"])
any_text = words | st.binary(max_size=6).map(lambda text: text.replace(b"\n", b"").replace(b"\r", b""))
controls = st.sampled_from([b"-"] * 6 + [b"=", b"!", b"#", b" ", b" ", b"\\", b"?", b"x", b"\xef\xbb\xbf"])
lines = st.builds(lambda control, text: control + text, controls, any_text) | st.just(b"")


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A file that any program or person may have written."""
    written = [line + draw(st.sampled_from(ENDS[:1] * 4 + ENDS)) for line in draw(st.lists(lines, max_size=12))]
    content = b"".join(written)
    return content.rstrip(b"\r\n") if draw(st.integers(0, 4)) == 0 else content


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, int, int, bytes]:
    """One edit of a file by a person: its kind, lines and text."""
    kind = draw(st.sampled_from(["insert", "delete", "move", "change", "mark", "ends", "cut"]))
    return kind, draw(st.integers(0, 40)), draw(st.integers(0, 40)), draw(lines)


def edited(content: bytes, edit: tuple[str, int, int, bytes]) -> bytes:
    """Return the file after the edit."""
    kind, first, second, text = edit
    parts = re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", content)
    here, there = first % (len(parts) + 1), second % (len(parts) + 1)
    if kind == "insert":
        parts.insert(here, text + ENDS[second % 3])
    elif kind == "ends":
        return re.sub(rb"\r\n|\n|\r", ENDS[second % 3], content)
    elif kind == "cut":
        return content.rstrip(b"\r\n")
    elif here < len(parts):
        line = parts.pop(here)
        if kind == "move":
            parts.insert(there, line if line.endswith((b"\n", b"\r")) else line + b"\n")
        elif kind == "change":
            parts.insert(here, text + b"\n")
        elif kind == "mark" and line.strip(b"\r\n"):
            parts.insert(here, b"-=!#"[second % 4 : second % 4 + 1] + line[1:])
    return b"".join(parts)
