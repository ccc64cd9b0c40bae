"""The columns of a DataFrame, and the part of a job that each becomes. The driver checks them before any task starts.

The known columns are `entrypoint`, `payload`, and each option of a job that a bulk enqueue takes: the table is in
`docs/reference/pipeline.md`. Without a payload, all other columns become one JSON object.

Beside a `payload`, an unknown column is refused: a name with a typo must not lose data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import types as sql

from jqueue.domain.errors import InvalidJobError, shown
from jqueue.domain.job_options import IN_BULK
from jqueue.spark.rows import SNAPSHOT_SCHEMA
from jqueue.spark.tables import url_in

MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999 in UTC, since 1970. Timestamps of Spark go beyond."""

TEXTS = (sql.StringType, sql.CharType, sql.VarcharType)
NESTED = (sql.StructType, sql.MapType, sql.ArrayType)
TIMES = (sql.DatetimeType, sql.DayTimeIntervalType)
PLAIN_IN_JSON = (*TEXTS, *TIMES, sql.NumericType, sql.BooleanType, sql.BinaryType, sql.NullType)
"""Types with one obvious form in JSON: see `jqueue.spark.enqueue.encoding`."""


@dataclass(frozen=True)
class Columns:
    """The columns of a row, and the part of a job that each becomes.

    Attributes:
        places: the number of the column for each part of a job that has one.
        constants: the parts that are the same in all jobs.
        fields: names and numbers of the columns that become one JSON object; empty if there is a payload.
        unset: names and numbers of the columns that must be null, as the queue or an option sets them.
    """

    places: Mapping[str, int]
    constants: Mapping[str, Any]
    fields: tuple[tuple[str, int], ...] = ()
    unset: tuple[tuple[str, int], ...] = ()


def columns_of(schema: sql.StructType, constants: Mapping[str, Any]) -> Columns:
    """Return the use of each column.

    Args:
        schema: of the DataFrame; or of an SQL table, whose rows have all columns of a snapshot.
        constants: values that options set for all jobs, by the name of the column that would set them.

    Raises:
        InvalidJobError: a column is missing, unknown, or of a wrong type. The message names it.
    """
    places: dict[str, int] = {}
    is_table = url_in(schema) is not None  # then the columns that an INSERT leaves out are there, too, and null
    others: list[tuple[str, int]] = []
    names = set[str]()
    for number, field in enumerate(schema.fields):
        name, kind, where = field.name.lower(), field.dataType, f"column {shown(field.name)}"
        if name in names:
            raise InvalidJobError(f"two columns are called {shown(field.name)}: rename or drop one of them")
        names.add(name)
        is_option = name in constants or (name == "run_at" and "delay" in constants)
        if name not in EXPECTED or (is_table and is_option):
            others.append((field.name, number))
            continue
        words, fits = EXPECTED[name]
        if isinstance(kind, sql.NullType) and name in IN_BULK:
            continue  # all rows have the default
        if not fits(kind):
            raise InvalidJobError(f"{where} is {_type_name(kind)}: it must be {words}")
        if name == "payload":
            _check_json(where, kind)
        if name in constants:
            raise InvalidJobError(f"{name} is given twice, as a column and as an option: drop one of them")
        places[name] = number
    if "entrypoint" not in places and "entrypoint" not in constants:
        raise InvalidJobError("the entrypoint is missing: add a column entrypoint, or the option entrypoint")
    if "run_at" in places and "delay" in constants:
        raise InvalidJobError("the option delay and the column run_at both say when a job may start: drop one of them")
    if "payload" not in places:
        if not others:
            raise InvalidJobError("there is no column for the payload: add a column payload, or columns of other names")
        for name, number in others:
            _check_json(f"column {shown(name)}", schema.fields[number].dataType)
        return Columns(places, constants, tuple(others))
    unset = tuple(other for other in others if is_table and other[0] in SNAPSHOT_SCHEMA.names)
    if unknown := [shown(other[0]) for other in others if other not in unset]:
        raise InvalidJobError(
            f"unknown columns beside the payload: {', '.join(unknown)}. The known ones are "
            f"{', '.join(name for name in EXPECTED if name != 'payload')}: drop the others, or put them into a struct"
        )
    return Columns(places, constants, unset=unset)


def _check_json(where: str, kind: sql.DataType) -> None:
    """Refuse types that have no form in JSON.

    Args:
        where: the column, and the field in it, in words.
        kind: its type.
    """
    if isinstance(kind, sql.StructType):
        for field in kind.fields:
            if kind.names.count(field.name) > 1:
                raise InvalidJobError(f"{where} has two fields {shown(field.name)}: rename or drop one of them")
            _check_json(f"{where}, field {shown(field.name)}", field.dataType)
    elif isinstance(kind, sql.ArrayType):
        _check_json(where, kind.elementType)
    elif isinstance(kind, sql.MapType):
        if not isinstance(kind.keyType, TEXTS):
            raise InvalidJobError(f"{where} is {_type_name(kind)}: the keys of a map must be strings for JSON")
        _check_json(where, kind.valueType)
    elif not isinstance(kind, PLAIN_IN_JSON):
        raise InvalidJobError(f"{where} is {_type_name(kind)}, which JSON cannot hold: cast it or drop it")


def _type_name(kind: sql.DataType) -> str:
    return shown(kind.simpleString()).strip("'\"")


def _is(*kinds: type[sql.DataType]) -> Callable[[sql.DataType], bool]:
    return lambda kind: isinstance(kind, kinds)


def _is_text_map(kind: sql.DataType) -> bool:
    return isinstance(kind, sql.MapType) and isinstance(kind.keyType, TEXTS) and isinstance(kind.valueType, TEXTS)


_OF_A_KIND: dict[type, tuple[str, Callable[[sql.DataType], bool]]] = {
    str: ("string", _is(*TEXTS)),
    int: ("a whole number", _is(sql.IntegralType)),
    timedelta: ("a number of seconds, or an interval day to second", _is(sql.DayTimeIntervalType, sql.NumericType)),
    datetime: ("timestamp with its time zone", _is(sql.TimestampType)),
    Mapping: ("map<string,string>", _is_text_map),
}
"""The type required of an option's column, in words and as a test, by the kind of the option's values."""

EXPECTED: dict[str, tuple[str, Callable[[sql.DataType], bool]]] = {
    "entrypoint": _OF_A_KIND[str],
    "payload": ("binary, string, or a struct, map or array, which becomes JSON", _is(sql.BinaryType, *TEXTS, *NESTED)),
    **{name: _OF_A_KIND[option.kind] for name, option in IN_BULK.items()},
}
"""The known columns, with the type required of each, in words and as a test."""
