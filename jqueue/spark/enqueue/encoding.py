"""Rows become lines of segments. Arrow computes whole columns, and no Python object is made for a row.

A line has the payload and the options that are columns. All else stands once in the index of the segment.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from jqueue.core.blob.lines import encode_json, encode_record
from jqueue.core.blob.segment_object import EncodedSegment, sealed
from jqueue.core.blob.segment_staging import STAGED_BYTES, STAGED_ROWS, Group, JobGroups
from jqueue.domain.durations import EPOCH, LONGEST
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.fields import COUNT_MAX, PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.groups import GROUPS
from jqueue.domain.job import QUEUED, JobRecord
from jqueue.domain.job_options import IN_BULK
from jqueue.domain.limits import HOLD_BYTES, Limits
from jqueue.domain.operations.base import Preparation, claim_of
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.rules import LIMITS
from jqueue.domain.segments import (
    CHUNK_ROWS,
    SINGLE,
    Chunk,
    HashTable,
    KeyTable,
    RowKey,
    SegmentIndex,
    Span,
    bulk_rest,
    hashes_of,
)
from jqueue.spark.enqueue.columns import Columns
from jqueue.spark.enqueue.json_columns import (
    base64,
    binary,
    bytes_of,
    children,
    escaped,
    joined,
    json_of,
    objects_of,
    quoted,
    seconds,
    spread,
    times,
)

SLICE_BYTES = 16 << 20
"""Number of bytes of rows that are encoded at once."""

Answer = TypeVar("Answer")
Numbers = np.ndarray[Any, Any]


class RowEncoder:
    """Encodes the rows of one task as segments.

    Args:
        columns: the use of each column.
        limits: largest sizes that the queue accepts.
        created_at: the time of the enqueue, from which delays count.
        partition: names the task in errors.
        new_id: makes an id that no job and no other segment has.

    Attributes:
        jobs: number of jobs so far.
        features: critical features that the jobs need.
    """

    def __init__(
        self, columns: Columns, limits: Limits, created_at: datetime, partition: int, new_id: Callable[[], str]
    ) -> None:
        self.jobs: int = 0
        self.features: set[str] = set()
        self._columns, self._limits, self._partition, self._new_id = columns, limits, partition, new_id
        self._constants = {name: value for name, value in columns.constants.items() if name != "entrypoint"}
        stored = {name: IN_BULK[name].check(name, value, limits) for name, value in self._constants.items()}
        if (delay := stored.pop("delay", None)) is not None:
            stored["run_at"] = created_at + timedelta(seconds=delay)
        entrypoint = columns.constants.get("entrypoint", "")
        self._common = JobRecord("", entrypoint, b"", QUEUED, 0, created_at, **stored)
        options = {"run_at" if name == "delay" else name for name in columns.places.keys() - {"entrypoint", "group"}}
        self._fields = tuple(sorted({"payload", *options}))
        self._groups: JobGroups[EncodedRows] = JobGroups(EncodedRows, STAGED_ROWS, STAGED_BYTES, STAGED_BYTES)

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode a batch of rows.

        Raises:
            InvalidJobError: a row cannot be a job. The message names the row, and shows nothing of its payload.
        """
        rows = max(1, batch.num_rows * SLICE_BYTES // max(SLICE_BYTES, batch.nbytes))
        for first in range(0, batch.num_rows, rows):
            self._add(batch.slice(first, rows))

    def full(self) -> Iterator[EncodedSegment]:
        """Yield segments that are complete, and forget their rows."""
        return map(self._encoded, self._groups.full())

    def rest(self) -> Iterator[EncodedSegment]:
        """Yield segments with all other jobs."""
        return map(self._encoded, self._groups.rest())

    def _encoded(self, full: tuple[Group, EncodedRows]) -> EncodedSegment:
        group, rows = full
        common = self._common.evolve(entrypoint=group.entrypoint, group=group.members_of)
        return rows.encoded(common, self._fields, bulk_rest(self._new_id()), scheduled=group.scheduled)

    def _add(self, batch: pa.RecordBatch) -> None:
        columns = self._checked(batch)
        for group, rows in self._grouped(pa.RecordBatch.from_pydict(self._rows(columns))):
            self._groups.extend(group, [rows])
        self.jobs += len(batch)

    # Rows that cannot be jobs

    def _checked(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns by the parts of a job that they set. Rows that cannot be jobs are refused."""
        for name, place in self._columns.unset:
            why = f"{name} is not null, and the queue or an option sets it: leave it out of the INSERT"
            self._refuse_all(batch.column(place).is_valid(), why)
        columns = {"payload": self._payloads(batch)}
        for name, place in self._columns.places.items():
            column = batch.column(place)
            if name == "entrypoint":
                self._refuse_all(column.is_null(), f"{name} is null")
            if name != "payload":
                columns[name] = column
        for wrong in [wrong for name in [*columns, *self._constants] for wrong in self._faults(name, columns)]:
            self._refuse_all(wrong, partial(self._fault, columns))
        return columns

    def _payloads(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        place = self._columns.places.get("payload")
        if place is None:
            names = [name for name, _ in self._columns.fields]
            texts = [self._read(name, batch.column(number), json_of) for name, number in self._columns.fields]
            return objects_of(names, texts, len(batch))
        column = batch.column(place)
        self._refuse_all(column.is_null(), "payload is null")
        return self._read("payload", column, json_of) if types.is_nested(column.type) else binary(column)

    def _faults(self, name: str, columns: Mapping[str, pa.Array]) -> Iterator[pa.BooleanArray]:
        """Yield columns that are true where a part of a job is wrong. A null is false.

        Args:
            name: of the part.
            columns: the columns, by the name of the part that they set.
        """
        option, column = IN_BULK.get(name), columns.get(name)
        if column is None:  # it is a constant
            column = pa.array([True] * len(columns["payload"]))
        elif name == "payload":
            yield pc.greater(pc.binary_length(column), self._limits.most_payload(objects=False))
        else:
            kind = str if option is None else option.kind
            yield self._read(name, column, partial(_are_wrong, name, kind, self._limits))
        needed, excluded = (None, None) if option is None else (option.needs, option.excludes)
        if needed is not None and needed not in self._constants:
            yield pc.and_(column.is_valid(), columns[needed].is_null()) if needed in columns else column.is_valid()
        if excluded is not None and excluded in columns:
            yield pc.and_(column.is_valid(), columns[excluded].is_valid())

    def _read(self, name: str, column: pa.Array, read: Callable[[pa.Array], Answer]) -> Answer:
        """Return what a function makes of a column. Rows whose values it cannot read are refused, and read as nulls."""
        try:
            return read(column)
        except (ValueError, ArithmeticError):
            readable = np.ones(len(column), bool)
            for number, error in _unreadable(column, read):
                why = _FAULTS.get(type(error), "a time that is out of range: years are from 1 to 9999")
                self._refuse(number, f"{name} has {why}")
                readable[number] = False
            return read(pc.if_else(pa.array(readable), column, pa.scalar(None, column.type)))

    def _fault(self, columns: Mapping[str, pa.Array], number: int) -> str:
        """Return why a row is wrong, as an enqueue of this job alone finds it."""
        options = {name: _value(column[number]) for name, column in columns.items() if column[number].is_valid}
        try:
            Enqueue(**{"entrypoint": self._common.entrypoint, **self._constants, **options}).prepared(
                Preparation(self._limits, 1.0, self._new_id, claim_of)
            )
        except InvalidJobError as error:
            return str(error).replace("Limits(payload_bytes=...)", "the option max_payload_bytes")
        raise AssertionError("the row is right")

    def _refuse_all(self, wrong: pa.BooleanArray, why: str | Callable[[int], str]) -> None:
        """Refuse the rows for which `wrong` is true."""
        if wrong.true_count:
            for number in np.flatnonzero(wrong.fill_null(False).to_numpy(zero_copy_only=False)).tolist():
                self._refuse(number, why)

    def _refuse(self, number: int, why: str | Callable[[int], str]) -> None:
        text = why if isinstance(why, str) else why(number)
        raise InvalidJobError(f"row {self.jobs + number} of partition {self._partition}: {text}") from None

    # Lines

    def _rows(self, columns: Mapping[str, pa.Array]) -> dict[str, Any]:
        """Return the line of each row, and the facts about it that its segment must know."""
        number, created_at = len(columns["payload"]), _micros_of(self._common.created_at)
        facts: dict[str, Any] = {"number": np.arange(self.jobs + 1, self.jobs + number + 1)}
        fields = {name: column for name, column in columns.items() if name not in ("payload", "entrypoint", "group")}
        if (delay := fields.pop("delay", None)) is not None:
            values, places = spread(delay)
            micros = pc.round(pc.multiply(seconds(values), 1e6), round_mode="half_to_even").cast(pa.int64())
            run_at = _taken(pc.add(micros, created_at), places)
            fields["run_at"] = pc.coalesce(run_at, _micros(fields["run_at"])) if "run_at" in fields else run_at
        for name in ("entrypoint", "group", "unique_key", "max_attempts"):
            if name in columns:
                facts[name] = columns[name]
        if "priority" in fields:
            facts["priority"] = fields["priority"].fill_null(0).cast(pa.int64())
        if "run_at" in fields:
            facts["since"] = _micros(fields["run_at"]).fill_null(created_at)
        if several := [columns[name].is_valid() for name in SINGLE if name in columns]:
            facts["single"] = several[0] if len(several) == 1 else pa.array(np.logical_or.reduce(several))
        if "unique_key" in columns and ("unique_for" in columns or self._common.unique_for):
            hold_mask = pc.greater(seconds(columns["unique_for"]), 0.0) if "unique_for" in columns else True
            size = pc.add(pc.binary_length(escaped(columns["unique_key"])), HOLD_BYTES + 2 + 2 + 36)
            facts["hold"] = pc.if_else(hold_mask, size, 0).fill_null(0)
        for feature, name in ((LIMITS, "concurrency_key"), (GROUPS, "group")):
            if name in columns and columns[name].null_count < number:
                self.features.add(feature)
        facts["line"] = joined(b'{"payload":"', base64(columns["payload"]), b'"', *_options(fields), b"}\n")
        return facts

    def _grouped(self, rows: pa.RecordBatch) -> Iterator[tuple[Group, pa.RecordBatch]]:
        """Yield the rows of each new segment together."""
        created_at, run_at = self._common.created_at, self._common.run_at
        is_scheduled = run_at is not None and run_at > created_at
        names = rows.schema.names
        codes, parts = np.zeros(len(rows), np.int64), []
        if "since" in names:
            parts.append(pc.greater(rows["since"], _micros_of(created_at)))
        parts += [rows[name].dictionary_encode("encode").indices for name in ("entrypoint", "group") if name in names]
        for part in parts:
            numbers = part.to_numpy(zero_copy_only=False).astype(np.int64)
            codes = codes * (int(numbers.max()) + 1) + numbers
        if codes.any():
            order = np.argsort(codes, kind="stable")
            rows, codes = rows.take(pa.array(order)), codes[order]
        edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(rows)]
        for first, last in pairwise(edges):
            some = rows.slice(first, last - first)
            entrypoint = some["entrypoint"][0].as_py() if "entrypoint" in names else self._common.entrypoint
            member = some["group"][0].as_py() if "group" in names else None
            if "since" in names:
                is_scheduled = some["since"][0].as_py() > _micros_of(created_at)
            yield Group(entrypoint, is_scheduled, False, member, created_at), some


class RowJudge(RowEncoder):
    """Finds the rows that cannot be jobs. Arguments are as for `RowEncoder`."""

    def reasons(self, batch: pa.RecordBatch) -> list[str | None]:
        """Return why each row cannot be a job; None if it can."""
        self._reasons: dict[int, str] = {}
        self._checked(batch)
        return [self._reasons.get(number) for number in range(len(batch))]

    def _refuse(self, number: int, why: str | Callable[[int], str]) -> None:
        if number not in self._reasons:
            self._reasons[number] = why if isinstance(why, str) else why(number)


class EncodedRows:
    """Lines of one group of jobs that wait to become a segment.

    Attributes:
        bytes: number of bytes of the lines.
        features: critical features that the jobs need; the encoder knows them.
    """

    def __init__(self) -> None:
        self.bytes: int = 0
        self.features: set[str] = set()
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Add rows."""
        for batch in batches:
            offsets, _ = bytes_of(batch["line"])
            self.bytes += int(offsets[-1] - offsets[0])
            self._rows += len(batch)
        self._batches += batches

    def encoded(
        self, common: JobRecord, fields: tuple[str, ...], id_rest: str, *, scheduled: bool, chunk_rows: int = CHUNK_ROWS
    ) -> EncodedSegment:
        """Return the segment.

        Args:
            common: a job with the fields that all jobs share.
            fields: names of the fields that lines have.
            id_rest: the end of the ids of the jobs.
            scheduled: True to sort them by `run_at`.
            chunk_rows: number of rows in each chunk but the last.
        """
        rows = pa.Table.from_batches(self._batches).combine_chunks()
        numbers, priorities, since = (
            _numbers(rows, name, other)
            for name, other in (("number", 0), ("priority", common.priority), ("since", _since(common)))
        )
        order = np.lexsort((numbers, priorities, since) if scheduled else (numbers, priorities))
        if (np.diff(order) != 1).any():
            rows, numbers, priorities, since = (each.take(order) for each in (rows, numbers, priorities, since))
        is_mixed = bool((np.diff(numbers) != 1).any())
        places, data = bytes_of(rows["line"].combine_chunks())
        starts = np.arange(0, len(rows), chunk_rows)
        edges = [*(places[starts] - places[0]).tolist(), int(places[-1] - places[0])]
        lines, seconds_of = data[places[0] : places[-1]], since / 1e6
        ranks = (priorities << 32) + numbers
        columns = (
            edges[:-1],
            [zlib.crc32(lines[start:end]) for start, end in pairwise(edges)],
            map(RowKey, priorities[starts].tolist(), numbers[starts].tolist(), seconds_of[starts].tolist()),
            np.minimum.reduceat(seconds_of, starts).tolist(),
            map(_priority_and_number, (np.minimum.reduceat(ranks, starts) if scheduled else ranks[starts]).tolist()),
        )
        names, shared = set(rows.column_names), msgspec.json.decode(encode_record(common))
        index = SegmentIndex(
            len(rows),
            tuple(map(Chunk, *columns)),
            edges[-1],
            HashTable(),
            _key_table(rows["unique_key"]) if "unique_key" in names else KeyTable(),
            single=_spans(_are_single(rows, common)),
            fields=fields,
            common=msgspec.Raw(encode_json({name: shared[name] for name in shared.keys() - LINE_HAS})),
            id_rest=id_rest,
            first=None if is_mixed else int(numbers[0]),
            numbers=numbers.astype("<u4").tobytes() if is_mixed else b"",
        )
        return sealed(
            [lines],
            index,
            entrypoint=common.entrypoint,
            chunk_rows=chunk_rows,
            least=int(numbers.min()),
            largest=int(numbers.max()),
            scheduled=scheduled,
            spare=pc.min(rows["max_attempts"]).as_py() if "max_attempts" in names else common.max_attempts,
            holds=pc.sum(rows["hold"]).as_py() if "hold" in names else 0,
            own_ids=True,
            group=common.group,
        )


LINE_HAS = {"id", "payload", "sequence"}
"""Fields that a line, or the number of its row, tells."""


def _unreadable(
    column: pa.Array, read: Callable[[pa.Array], Any], first: int = 0
) -> Iterator[tuple[int, ValueError | ArithmeticError]]:
    """Yield the rows, numbered from `first`, whose values a function cannot read, and its errors."""
    try:
        read(column)
    except (ValueError, ArithmeticError) as error:
        if len(column) == 1:
            yield first, error
            return
        half = len(column) // 2
        yield from _unreadable(column.slice(0, half), read, first)
        yield from _unreadable(column.slice(half), read, first + half)


def _since(job: JobRecord) -> int:
    return _micros_of(job.run_at or job.created_at)


def _numbers(rows: pa.Table, name: str, other: int) -> Numbers:
    """Return a column of numbers; if there is none, one with the same number in each row."""
    numbers: Numbers = rows[name].to_numpy() if name in rows.column_names else np.full(len(rows), other, np.int64)
    return numbers


def _priority_and_number(rank: int) -> tuple[int, int]:
    return rank >> 32, rank & 0xFFFF_FFFF


def _key_table(keys: pa.ChunkedArray) -> KeyTable:
    """Return the rows by unique key."""
    rows = np.flatnonzero(keys.is_valid().to_numpy()).astype("<u4")
    digests = hashes_of(keys.drop_null().cast(pa.binary()).to_pylist(), 8 * KeyTable.WORDS)
    hashes = np.frombuffer(digests, ">u8").reshape(-1, KeyTable.WORDS).astype("<u8")
    order = np.argsort(hashes[:, 0], kind="stable")
    return KeyTable(hashes[order].T.tobytes() + rows[order].tobytes())


def _are_single(rows: pa.Table, common: JobRecord) -> Numbers:
    """Return for each row if it is never leased."""
    shared = any(getattr(common, name) is not None for name in SINGLE)
    return _numbers(rows, "single", 0).astype(bool) | shared


def _spans(wanted: Numbers) -> tuple[Span, ...]:
    """Return the runs of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False])).astype(np.int8))).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def _micros_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def _micros(column: pa.Array) -> pa.Int64Array:
    """Return times in microseconds since 1970."""
    return column if types.is_int64(column.type) else column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())


def _options(fields: Mapping[str, pa.Array]) -> Iterator[Any]:
    """Yield columns of text that, joined, are the options of each row in its line.

    Columns with few values become one column: of each combination of their values, the text is made once.
    """
    codes, few = None, list[tuple[pa.BinaryArray, Numbers]]()
    for name, column in fields.items():
        values, places = spread(column)
        start, text, *end = _texts(IN_BULK[name].kind, values)
        parts = [b',"%b":%b' % (name.encode(), start), text, *end]
        if places is None:
            yield from [pc.coalesce(joined(*parts), b"")] if text.null_count else parts
        else:
            texts = pa.concat_arrays([joined(*parts), pa.array([b""], pa.binary())])  # the last is that of null
            own = places.fill_null(len(values)).to_numpy().astype(np.int64)
            codes = own if codes is None else codes * len(texts) + own
            few.append((texts, own))
    if codes is not None:
        combined = pa.array(codes).dictionary_encode()
        _, rows = np.unique(combined.indices.to_numpy(), return_index=True)
        yield joined(*(texts.take(pa.array(own[rows])) for texts, own in few)).take(combined.indices)


def _taken(values: pa.Array, places: pa.Array | None) -> pa.Array:
    """Return the value of each row: see `spread`."""
    return values if places is None else values.take(places)


def _texts(kind: type, column: pa.Array) -> list[Any]:
    """Return the values of an option in JSON, by their kind: bytes, a column, and perhaps bytes."""
    if kind is str:
        return [b'"', escaped(column), b'"']
    if kind is int:
        return [b"", binary(column.cast(pa.string()))]
    if kind is timedelta:
        return [b"", binary(seconds(column).cast(pa.string()))]
    if kind is datetime:
        return [b'"', times(_micros(column)), b'Z"']
    headers = json_of(column)
    return [b"", pc.if_else(pc.or_(column.is_null(), pc.equal(headers, b"{}")), None, headers)]


def _value(cell: pa.Scalar) -> Any:
    """Return the value of a cell as an enqueue takes it."""
    value = dict(cell.as_py()) if types.is_map(cell.type) else cell.as_py()
    return float(value) if isinstance(value, Decimal) else value


def _are_wrong(name: str, kind: type, limits: Limits, column: pa.Array) -> pa.BooleanArray:
    """Return for each row if its value of an option of a kind is wrong.

    Raises:
        ArithmeticError: a time is out of range.
        UnicodeDecodeError: a text is not UTF-8.
    """
    values, places = spread(column)
    return _taken(_wrong_values(name, kind, limits, values), places)


def _wrong_values(name: str, kind: type, limits: Limits, column: pa.Array) -> pa.BooleanArray:
    if kind is str:
        return _are_no_names(column, limits.name_bytes)
    if kind is int:
        low, high = (PRIORITY_MIN, PRIORITY_MAX) if name == "priority" else (1, COUNT_MAX)
        return pc.invert(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high)))
    if kind is timedelta:
        least = pc.greater if name == "timeout" else pc.greater_equal
        return pc.invert(pc.and_(least(seconds(column), 0.0), pc.less_equal(seconds(column), LONGEST)))
    if kind is datetime:
        times(_micros(column))
        return pa.array([False] * len(column), pa.bool_())
    return _are_no_headers(column, limits)


def _are_no_names(column: pa.Array, most: int) -> pa.BooleanArray:
    """Return for each text if it is no name of at most a number of bytes.

    Raises:
        UnicodeDecodeError: one is not UTF-8.
    """
    sizes, (places, data) = pc.binary_length(binary(column)), bytes_of(column)
    wrong = pc.or_(pc.equal(sizes, 0), pc.greater(sizes, most))
    if str(data[places[0] : places[-1]], "utf-8").isprintable():
        return wrong
    return pc.or_(wrong, pa.array([each is not None and not each.isprintable() for each in column.to_pylist()]))


def _are_no_headers(column: pa.MapArray, limits: Limits) -> pa.BooleanArray:
    """Return for each map if it is wrong as headers."""
    names, texts = (children(column, each) for each in (column.keys, column.items))
    quoted(texts)
    wrong = pc.or_(_are_no_names(names, limits.name_bytes), texts.is_null())
    sizes = pc.add(pc.binary_length(binary(names)), pc.binary_length(binary(texts)))
    places = column.offsets.to_numpy() - column.offsets[0].as_py()
    many, size = (
        np.diff(np.concatenate(([0], np.cumsum(each.cast(pa.int64()).fill_null(0).to_numpy())))[places])
        for each in (wrong, sizes)
    )
    return pa.array((many > 0) | (size > limits.header_bytes))


_FAULTS = {
    FloatingPointError: "a number that JSON cannot hold: NaN or infinity",
    UnicodeDecodeError: "a string that is not UTF-8: cast it to binary",
}
"""The meaning of an error about a value of a column."""
