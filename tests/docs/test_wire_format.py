"""The examples and the tables of docs/reference/wire-format.md agree with the codec."""

import json
import pickle
import re
from pathlib import Path

import pytest

from jqueue.core.blob import codec
from jqueue.core.messages import encode, message_decoder
from jqueue.domain.models import Job, QueueState, header_of
from jqueue.domain.operations.codec import decode_operation, encode_operation
from jqueue.domain.segments import Segment

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "wire-format.md").read_text(encoding="utf-8")
OURS, OPERATIONS, MESSAGES, LEGACY = (
    example.encode() for example in re.findall(r"^```json\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
)


def _section(heading: str) -> str:
    return TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def _names(heading: str, part: str = "") -> list[str]:
    """The fields that the table of a section, or of a part of it, lists."""
    section = _section(heading).partition(part)[2].partition("\n### ")[0] if part else _section(heading)
    return [name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]


def test_the_example_is_byte_for_byte_a_queue_written_by_jqueue():
    state = codec.decode(OURS)
    assert ((), 8) == (state.set_aside, len(state.jobs))
    assert OURS == codec.encode(state)


def test_the_models_of_the_example_can_be_dumped_read_again_pickled_and_described():
    state = codec.decode(OURS)
    for kept in (state, *state.jobs):
        kind = type(kept)
        assert kept == kind.model_validate(kept.model_dump()) == kind.model_validate_json(kept.model_dump_json())
        assert kept == pickle.loads(pickle.dumps(kept))
        assert kind.model_json_schema(mode="serialization")["properties"].keys() == kind.model_fields.keys()
    with pytest.raises(ValueError, match="blob_bytes"):
        QueueState.model_validate({"settings": {"blob_bytes": -1}})


def test_every_field_of_the_header_is_documented():
    """The example has every field, including the fields that are left out when empty."""
    header = json.loads(codec.encode_header(header_of(codec.decode(OURS))) + b"}}")
    ours = set(QueueState.model_fields) - {"set_aside", "extra"} | {"format"}
    assert ours == header.keys()
    rows = re.findall(r"^\| `(\w+)` \|", _section("The header"), re.MULTILINE)
    assert sorted(ours) == sorted(rows)


def test_every_field_of_a_job_and_a_segment_is_documented():
    fields = set(Job.model_fields) - {"id"}
    assert sorted(fields) == sorted(_names("A job"))
    assert all(f'"{name}":' in OURS.decode() for name in fields), "the example shows every field"
    assert set(Segment.__struct_fields__) - {"extra"} == set(_names("Segments", "### The manifest"))


def test_the_example_of_a_segment_is_byte_for_byte_the_one_of_the_vectors():
    [lines] = re.findall(r"^```text\n(.*?)^```", _section("Segments"), re.MULTILINE | re.DOTALL)
    assert lines.encode() == (ROOT / "tests/vectors/deep.json.segments/ready").read_bytes()


def test_the_encoded_operations_on_the_page_are_those_that_we_write():
    for line in OPERATIONS.splitlines():
        assert json.loads(line) == json.loads(encode_operation(decode_operation(line)))


def test_the_messages_on_the_page_are_those_that_we_write():
    for line in MESSAGES.splitlines():
        assert json.loads(line) == json.loads(encode(message_decoder().decode(line)))
