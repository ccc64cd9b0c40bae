"""The examples and the tables of docs/wire-format.md, held against the codec."""

import re
from pathlib import Path

from jqueue.core import codec
from jqueue.domain.models import Job, QueueState

TEXT = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text(encoding="utf-8")
OURS, LEGACY = (example.encode() for example in re.findall(r"^```json\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))


def _names(heading: str) -> list[str]:
    """The fields that the table of a section lists."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]


def test_the_example_is_a_queue_written_by_us():
    state = codec.decode(OURS)
    assert ((), 4) == (state.set_aside, len(state.jobs))
    assert OURS == codec.encode(state)


def test_the_example_of_1_0_0_is_read_and_written_in_our_format():
    state = codec.decode(LEGACY)
    converted = codec.encode(state)
    assert (3, 2) == (state.version, len(state.jobs))
    assert converted.startswith(b'{"format": 2, "version": 3, ')
    assert state == codec.decode(converted)


def test_every_field_of_the_header_is_told():
    header = codec.encode_header(QueueState()).decode()
    assert sorted(re.findall(r'"(\w+)": ', header)) == sorted(_names("The header"))


def test_every_field_of_a_job_is_told():
    fields = set(Job.model_fields) - {"id"}
    assert sorted(fields) == sorted(_names("A job"))
    assert all(f'"{name}":' in OURS.decode() for name in fields), "the example shows every field"
