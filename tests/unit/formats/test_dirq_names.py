"""The names of dirq, its tables and its schemas."""

import pytest

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Job
from jqueue.formats.dirq.names import (
    Place,
    Schema,
    decode_table,
    element_name,
    encode_table,
    hidden,
    number_of,
)


def test_an_element_is_named_by_seconds_microseconds_and_a_digit():
    assert "5fb8a3c9f423fb" == element_name(0x5FB8A3C9 * 1_000_000 + 999_999, 11)
    assert 0x5FB8A3C9 * 1_000_000 + 999_999 == number_of("5fb8a3c9f423fb")


def test_names_sort_as_their_times():
    numbers = [0, 999_999, 1_000_000, 1_795_313_466_137_003, 1_795_313_466_137_004, 4_000_000_000_000_000]
    names = [element_name(number, 0) for number in numbers]
    assert sorted(names) == names
    assert numbers == [number_of(name) for name in names]


def test_a_time_beyond_the_range_of_names_becomes_the_last_name():
    assert "ffffffff" == element_name(10**16, 0)[:8]
    assert 14 == len(element_name(10**20, 15))


@pytest.mark.parametrize(
    "place",
    [
        Place("5fb8a3c0/5fb8a3c91e2403"),
        Place("5fb8a3c0/5fb8a3c91e2403", 12, 34),
        Place("5fb8a3c0/5fb8a3c91e2403", 12, 34, is_claim=False),
        Place(hidden("dead-", "5fb8a3c0/5fb8a3c91e2403")),
    ],
)
def test_a_place_survives_the_round_trip_through_text(place):
    assert place == Place.parse(str(place))
    assert "5fb8a3c0/5fb8a3c91e2403" == place.element


@pytest.mark.parametrize(
    ("table", "content"),
    [
        ({}, b""),
        ({"a": "1", "b\tc": "x\ny"}, b"a\t1\nb\\tc\tx\\ny\n"),
        ({"d\\e": "\\t literal"}, b"d\\\\e\t\\\\t literal\n"),
        ({"": "empty", "z": ""}, b"\tempty\nz\t\n"),
        ({"ö": "\r\0\u2028"}, "ö\t\r\0\u2028\n".encode()),
    ],
)
def test_a_table_is_written_and_read_as_dirq_does(table, content):
    assert content == encode_table(table)
    assert table == decode_table(content)


def test_a_table_written_by_others_is_read_as_dirq_does():
    assert {"a": "b"} == decode_table(b"\n\na\tb\n\n")  # Perl begins a table with an empty line
    assert {"a": "\\x\\"} == decode_table(b"a\t\\x\\")
    assert {"a": "2"} == decode_table(b"a\t1\na\t2\n")


@pytest.mark.parametrize("content", [b"no tab\n", b"a\tb\tc\n", b"a\tb\n\nc\td\n", b"a\t\xff\n"])
def test_an_invalid_table_is_refused_without_showing_it(content):
    with pytest.raises(ValueError, match="the table of an element") as raised:
        decode_table(content)
    assert not any(part in str(raised.value) for part in ("no tab", "c\td", "\xff"))


def test_a_surrogate_cannot_be_written():
    with pytest.raises(InvalidJobError, match="surrogate"):
        encode_table({"a": "\ud800"})
    schema = Schema.parse("body:binary,text:string?,header:table?", "body", None)
    with pytest.raises(InvalidJobError, match="surrogate"):
        schema.files(Job(id="1", entrypoint="work", payload=b"", headers={"text": "\ud800"}))


def test_a_schema_names_the_payload_and_the_headers():
    assert Schema("body", False, "header", True) == Schema.parse("body:binary,header:table?", "body", None)
    assert Schema("b", True, "h", False) == Schema.parse("b:string,h:table", "b", "h")
    assert Schema("body", False, None, True) == Schema.parse("body:binary", "body", None)
    assert ("text",) == Schema.parse("body:binary*,text:string?,header:table?,more:binary?", "body", None).strings


@pytest.mark.parametrize(
    ("schema", "payload", "headers"),
    [
        ("", "body", None),
        ("body", "body", None),
        ("body:text", "body", None),
        ("body:binary,body:binary", "body", None),
        ("locked:binary", "locked", None),
        ("body:binary", "data", None),
        ("body:table", "body", None),
        ("body:binary", "body", "header"),
        ("body:binary,header:string", "body", "header"),
        ("body:binary,more:binary", "body", None),
    ],
)
def test_a_schema_that_cannot_hold_jobs_is_refused(schema, payload, headers):
    with pytest.raises(ValueError, match="schema"):
        Schema.parse(schema, payload, headers)
