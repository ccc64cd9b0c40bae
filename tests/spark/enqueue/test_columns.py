"""The driver assigns columns of a DataFrame to fields of jobs, or raises a one-line error."""

import re
from datetime import timedelta

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job_options import IN_BULK
from jqueue.spark.enqueue.columns import Columns, columns_of
from jqueue.spark.enqueue.writing import CONSTANTS, OPTIONS
from tests.spark.enqueue.bulk import schema

TEXT, HEADERS = StringType(), MapType(StringType(), StringType())


def test_every_known_column_is_found_in_any_case():
    columns = schema(
        Entrypoint=TEXT,
        PAYLOAD=BinaryType(),
        priority=ByteType(),
        delay=DoubleType(),
        run_at=TimestampType(),
        unique_key=VarcharType(20),
        headers=HEADERS,
        max_attempts=LongType(),
        keep_result=DoubleType(),
    )
    names = (
        "entrypoint",
        "payload",
        "priority",
        "delay",
        "run_at",
        "unique_key",
        "headers",
        "max_attempts",
        "keep_result",
    )
    assert Columns({name: number for number, name in enumerate(names)}, {}) == columns_of(columns, {})


@pytest.mark.parametrize("kind", [BinaryType(), TEXT, schema(a=TEXT), HEADERS, ArrayType(DoubleType())])
def test_a_payload_column_may_be_binary_text_or_convertible_to_json(kind):
    assert {"payload": 0} == columns_of(schema(payload=kind), {"entrypoint": "a"}).places


@pytest.mark.parametrize("kind", [IntegerType(), ShortType(), DoubleType(), DecimalType(9, 3), DayTimeIntervalType()])
def test_a_delay_column_may_be_a_number_or_an_interval(kind):
    assert 1 == columns_of(schema(payload=TEXT, delay=kind), {"entrypoint": "a"}).places["delay"]


def test_unknown_columns_form_the_payload_if_there_is_no_payload_column():
    columns = columns_of(schema(entrypoint=TEXT, id=LongType(), priority=LongType(), Name=TEXT), {})
    assert Columns({"entrypoint": 0, "priority": 2}, {}, (("id", 1), ("Name", 3))) == columns


def test_options_set_constants_for_all_jobs():
    constants = {"entrypoint": "a", "priority": 3}
    assert Columns({"payload": 0}, constants) == columns_of(schema(payload=TEXT), constants)


def test_a_column_of_type_null_is_ignored():
    assert {"payload": 0} == columns_of(schema(payload=TEXT, delay=NullType()), {"entrypoint": "a"}).places


def problem(constants=None, **columns):
    with pytest.raises(InvalidJobError) as caught:
        columns_of(schema(**columns), {"entrypoint": "a"} if constants is None else constants)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("payload", LongType(), "bigint: it must be binary, string, or a struct, map or array, which becomes JSON"),
        ("payload", NullType(), "void: it must be binary, string, or a struct, map or array, which becomes JSON"),
        ("priority", TEXT, "string: it must be a whole number"),
        ("priority", DoubleType(), "double: it must be a whole number"),
        ("delay", TEXT, "string: it must be a number of seconds, or an interval day to second"),
        ("run_at", TEXT, "string: it must be timestamp with its time zone"),
        ("run_at", TimestampNTZType(), "timestamp_ntz: it must be timestamp with its time zone"),
        ("unique_key", LongType(), "bigint: it must be string"),
        ("headers", MapType(TEXT, LongType()), "map<string,bigint>: it must be map<string,string>"),
        ("max_attempts", TEXT, "string: it must be a whole number"),
    ],
)
def test_a_column_of_a_wrong_type_is_named_with_its_type_and_the_right_one(name, kind, words):
    columns = {"payload": BinaryType()} | {name: kind}
    assert f"column {name!r} is {words}" == problem(**columns)


def test_an_entrypoint_column_must_be_a_string():
    assert "column 'entrypoint' is int: it must be string" == problem({}, entrypoint=IntegerType(), payload=TEXT)


def test_a_missing_entrypoint_is_an_error():
    wanted = "the entrypoint is missing: add a column entrypoint, or the option entrypoint"
    assert wanted == problem({}, payload=TEXT)


def test_a_frame_without_columns_for_a_payload_is_an_error():
    wanted = "there is no column for the payload: add a column payload, or columns of other names"
    assert wanted == problem(entrypoint=TEXT, constants={})


def test_an_unknown_column_beside_a_payload_is_refused():
    assert (
        "unknown columns beside the payload: 'unique_kye', 'id'. The known ones are entrypoint, priority, delay, "
        "run_at, expires_at, unique_for, unique_key, headers, max_attempts, concurrency_key, concurrency_limit, "
        "keep_result: drop the others, or put them into a struct"
        == problem(payload=TEXT, unique_kye=TEXT, id=LongType())
    )


def test_two_columns_with_the_same_name_are_refused():
    wanted = "two columns are called 'payload': rename or drop one of them"
    assert wanted == problem(payload=TEXT, Payload=TEXT)


@pytest.mark.parametrize(("name", "kind"), [("entrypoint", TEXT), ("priority", LongType()), ("delay", LongType())])
def test_a_column_and_an_option_for_the_same_field_are_refused(name, kind):
    wanted = f"{name} is given twice, as a column and as an option: drop one of them"
    assert wanted == problem({"entrypoint": "a", name: "b"}, payload=TEXT, **{name: kind})


def test_a_delay_option_with_a_run_at_column_is_refused():
    wanted = "the option delay and the column run_at both say when a job may start: drop one of them"
    assert wanted == problem({"entrypoint": "a", "delay": 3.0}, payload=TEXT, run_at=TimestampType())


def test_a_type_without_a_json_form_is_refused_with_its_location():
    nested = ArrayType(schema(when=YearMonthIntervalType()))
    assert (
        "column 'a', field 'b', field 'when' is interval year to month, which JSON cannot hold: cast it or drop it"
        == problem(a=schema(b=nested))
    )
    assert "column 'v' is variant, which JSON cannot hold: cast it or drop it" == problem(v=VariantType())
    wanted = "column 'm' is map<bigint,string>: the keys of a map must be strings for JSON"
    assert wanted == problem(m=MapType(LongType(), TEXT))
    twice = StructType([StructField("x", TEXT), StructField("x", TEXT)])
    assert "column 'payload' has two fields 'x': rename or drop one of them" == problem(payload=twice)


def test_the_name_of_a_long_type_is_cut():
    assert len(problem(unique_key=schema(**{f"a_rather_long_name_{number}": TEXT for number in range(99)}))) < 160


def test_each_number_and_duration_of_a_job_has_an_option_for_all_jobs():
    names = [name for name, option in IN_BULK.items() if option.kind in (int, timedelta)]
    written = {re.sub("_(.)", lambda found: found[1].upper(), name): name for name in names}
    assert {"entrypoint": "entrypoint", **written} == CONSTANTS
    assert CONSTANTS.keys() <= OPTIONS.keys()
