"""Names of files in a folder of vsqs, and the numbers in them."""

from datetime import UTC, datetime, timedelta

import pytest

from jqueue.formats.times import microseconds
from jqueue.formats.vsqs.names import Name, Unit, moment, parse, parse_written

NOON = datetime(2026, 11, 22, 12, 0, 0, 123457, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "number", "until"),
    [
        ("1795313466137003", 1795313466137003, None),
        ("1795313466137003.1795313467140262", 1795313466137003, 1795313467140262),
        ("1795313466138657.1795313466641854.0", 1795313466138657, 1795313466641854),
        ("1795313466138657.1795313466641854.75", 1795313466138657, 1795313466641854),
        ("1415776871123", 1415776871123, None),
        ("1415776871123.1415776879654", 1415776871123, 1415776879654),
        ("99", 99, None),
        ("0", 0, None),
        ("5.0", 5, 0),
        ("5.007", 5, 7),
    ],
)
def test_the_names_of_messages_are_read_in_both_units(name, number, until):
    assert Name(number, until) == parse(name)


@pytest.mark.parametrize(
    "name",
    [
        "1795313466137003.new",
        *("+7", "-7", "1_5", " 8", "8 ", "0100", "00", "7\n", "٣", "²", "0x10", "1e3", "1.5e3"),
        *("5.-1", "5.+1", "5.123.456.7", "5.123.jq", "5.jq", "5.", ".5", "5..6", "5.123.", "5.1_0", "5. 6"),
        *(
            "",
            ".",
            "..",
            ".jqueue",
            ".jqueue-dead",
            ".jqueue-notes",
            ".jqueue-acked",
            "README",
            "abc",
            "abc.5",
            "5.abc",
        ),
    ],
)
def test_other_names_are_left_alone(name):
    assert parse(name) is None


def test_only_a_number_with_the_suffix_new_is_an_unfinished_file():
    assert 17 == parse_written("17.new")
    assert [None] * 5 == [parse_written(name) for name in ("17", "17.new.new", "017.new", "17.18.new", ".new")]


def test_a_name_is_written_as_vsqs_writes_it():
    assert "1795313466137003" == str(Name(1795313466137003))
    assert "1795313466137003.1795313467140262" == str(Name(1795313466137003, 1795313467140262))


def test_the_size_of_a_number_tells_its_unit():
    assert NOON == moment(Unit.MICROSECONDS.number(NOON))
    assert NOON.replace(microsecond=124000) == moment(Unit.MILLISECONDS.number(NOON))
    assert 16 == len(str(Unit.MICROSECONDS.number(NOON)))
    assert 13 == len(str(Unit.MILLISECONDS.number(NOON)))
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=99) == moment(99)


def test_a_claim_in_milliseconds_does_not_end_before_its_time():
    assert moment(Unit.MILLISECONDS.number(NOON)) >= NOON
    whole = NOON.replace(microsecond=5000)
    assert whole == moment(Unit.MILLISECONDS.number(whole))


def test_a_number_beyond_the_calendar_becomes_the_last_moment():
    assert datetime.max.replace(tzinfo=UTC) == moment(10**30)
    assert microseconds(datetime.max.replace(tzinfo=UTC)) < 10**18
