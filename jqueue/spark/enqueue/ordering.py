"""The option `orderBy`: jobs of an entrypoint are served in the order of columns, whatever the order of the rows.

Spark does not let a data source written in Python ask for an order of its rows. So each task sorts its own rows, and
the commit puts the tasks in the order of their keys. That is exact if no two tasks have rows of one entrypoint whose
keys overlap. If they do, the commit is refused. Rows that come in order are not held; others are, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as sql

from jqueue.domain.errors import InvalidJobError, shown

HELD_BYTES = 256 << 20
"""Bytes of rows that a task holds to sort them."""

SORTED_AT_ONCE = 10_000
"""Number of rows of a sorted batch."""

IN_ORDER = (
    sql.StringType,
    sql.CharType,
    sql.VarcharType,
    sql.BinaryType,
    sql.FractionalType,
    sql.IntegralType,
    sql.BooleanType,
    sql.DateType,
    sql.TimestampType,
    sql.TimestampNTZType,
)
"""Types by which rows can be ordered."""


@dataclass(frozen=True)
class OrderColumn:
    """A column by which rows are ordered.

    Attributes:
        name: as the option has it.
        place: its number.
        descending: True if the largest value comes first.
    """

    name: str
    place: int
    descending: bool = False


@dataclass(frozen=True)
class Descending:
    """A value whose order is turned round."""

    value: Any

    def __lt__(self, other: Descending) -> bool:
        return bool(other.value < self.value)


Key = tuple[Any, ...]
"""The values of a row by which it is ordered. A null comes before all other values, as in Spark."""

KeyRange = tuple[Key, Key]
"""The keys of the first and the last row of a task."""


def order_of(names: Sequence[str], schema: sql.StructType) -> tuple[OrderColumn, ...]:
    """Return the columns of the option `orderBy`.

    Args:
        names: its parts, each the name of a column, perhaps with `asc` or `desc` behind it.
        schema: of the DataFrame.

    Raises:
        InvalidJobError: there is no such column, or it has no order.
    """
    places = {field.name.lower(): place for place, field in enumerate(schema.fields)}
    found: list[OrderColumn] = []
    for text in names:
        name, _, direction = text.rpartition(" ")
        if direction.lower() not in ("asc", "desc"):
            name, direction = text, "asc"
        place = places.get(name.strip().lower())
        if place is None:
            raise InvalidJobError(f"the option orderBy names {shown(name.strip())}, and there is no such column")
        kind = schema.fields[place].dataType
        if not isinstance(kind, IN_ORDER):
            raise InvalidJobError(f"the option orderBy names {shown(name.strip())}, which is {kind.simpleString()}")
        found.append(OrderColumn(name.strip(), place, direction.lower() == "desc"))
    return tuple(found)


@dataclass
class TaskOrder:
    """The rows of one task on their way into order.

    Args:
        order: the columns.
        entrypoint: number of the column of the entrypoint; None: all rows have the same.
        partition: names the task in errors.
        held_bytes: bytes of rows to hold at most.

    Attributes:
        ranges: the range of keys of each entrypoint; that of all rows is called `""`.
    """

    order: Sequence[OrderColumn]
    entrypoint: int | None
    partition: int
    held_bytes: int = HELD_BYTES
    ranges: dict[str, KeyRange] = field(default_factory=dict)

    def sorted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Sequence[int]]]:
        """Yield the rows in order, in batches, with the number that each row has in the task.

        Raises:
            InvalidJobError: the rows are too many to sort, and not in order.
        """
        held: list[pa.RecordBatch] = []
        size, first, streaming = 0, 0, False
        for batch in batches:
            if not batch.num_rows:
                continue
            if streaming:
                yield self._next(batch), range(first, first + batch.num_rows)
                first += batch.num_rows
                continue
            held.append(batch)
            size += batch.nbytes
            if size > self.held_bytes:
                streaming = True
                for each in held:
                    yield self._next(each), range(first, first + each.num_rows)
                    first += each.num_rows
                held = []
        if held:
            yield from self._all(pa.Table.from_batches(held).combine_chunks())

    def _all(self, rows: pa.Table) -> Iterator[tuple[pa.RecordBatch, Sequence[int]]]:
        places = self._places(rows)
        for start in range(0, len(places), SORTED_AT_ONCE):
            some = places[start : start + SORTED_AT_ONCE]
            [batch] = rows.take(some).combine_chunks().to_batches()
            yield self._next(batch), some.to_pylist()

    def _next(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Note the keys of a batch. It must continue the order."""
        if self.entrypoint is None:
            self._note("", batch)
            return batch
        column = batch.column(self.entrypoint)
        for name in column.unique():
            if name.is_valid:
                self._note(
                    name.cast(pa.binary()).as_py().decode(errors="replace"), batch.filter(pc.equal(column, name))
                )
        return batch

    def _note(self, entrypoint: str, batch: pa.RecordBatch) -> None:
        places = self._places(batch)
        low, high = self._key(batch, 0), self._key(batch, batch.num_rows - 1)
        known = self.ranges.get(entrypoint)
        if not places.equals(pa.array(range(len(places)), places.type)) or (known is not None and low < known[1]):
            names = ", ".join(each.name for each in self.order)
            raise InvalidJobError(
                f"partition {self.partition} has more than {self.held_bytes >> 20} MiB of rows that are not in the "
                f"order of {names}: sort them with sortWithinPartitions, or write smaller partitions"
            )
        self.ranges[entrypoint] = (low if known is None else known[0], high)

    def _places(self, rows: pa.Table | pa.RecordBatch) -> pa.Array:
        """Return the numbers of the rows in their order. Rows with equal keys keep theirs."""
        columns: dict[str, Any] = {}
        keys: list[tuple[str, str]] = []
        for number, each in enumerate(self.order):
            values = _comparable(rows.column(each.place))
            if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
                raise InvalidJobError(f"partition {self.partition} has NaN in {shown(each.name)}, which has no order")
            direction = "descending" if each.descending else "ascending"
            columns |= {f"there {number}": pc.is_valid(values), f"value {number}": values}
            keys += [(f"there {number}", direction), (f"value {number}", direction)]
        return pc.sort_indices(pa.table(columns), sort_keys=keys)

    def _key(self, batch: pa.RecordBatch, row: int) -> Key:
        key: list[Any] = []
        for each in self.order:
            value = _comparable(batch.column(each.place).slice(row, 1))[0].as_py()
            entry = (value is not None, value)
            key.append(Descending(entry) if each.descending else entry)
        return tuple(key)


def in_key_order(ranges: Sequence[Mapping[str, KeyRange]], names: Iterable[str]) -> list[int]:
    """Return the numbers of tasks in the order of their keys.

    Args:
        ranges: of each task, by entrypoint.
        names: the columns of the order, for errors.

    Raises:
        InvalidJobError: keys of two tasks overlap.
    """
    by_entrypoint: dict[str, list[tuple[Key, Key, int]]] = {}
    for task, several in enumerate(ranges):
        for entrypoint, (low, high) in several.items():
            by_entrypoint.setdefault(entrypoint, []).append((low, high, task))
    columns = ", ".join(repr(name) for name in names)
    advice = f"give each partition a range of its own, as df.repartitionByRange({columns}) does"
    graph: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(ranges)), ()))
    for entrypoint, tasks in by_entrypoint.items():
        for (_, high, before), (low, _, after) in pairwise(sorted(tasks)):
            if low < high:
                of_one = f" of entrypoint {shown(entrypoint)}" if entrypoint else ""
                raise InvalidJobError(f"rows{of_one} overlap in partitions {before} and {after} in orderBy: {advice}")
            graph.add(after, before)
    try:
        return list(graph.static_order())
    except CycleError:
        raise InvalidJobError(
            f"entrypoints have different orders of the same partitions in orderBy: {advice}"
        ) from None


def _comparable(values: pa.Array) -> pa.Array:
    """Return values of the same order that Python can hold, too: bytes for texts, numbers for times."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values.cast(pa.large_binary())
    if pa.types.is_timestamp(kind):
        return values.cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(kind) else values
