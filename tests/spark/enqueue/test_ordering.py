"""The option `orderBy`: jobs are served in the order of columns, over rows and partitions in any order."""

import asyncio
import random

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, DoubleType, IntegerType, StringType, TimestampType

from jqueue import DirectQueue, connect
from jqueue.domain.errors import InvalidJobError
from jqueue.spark.enqueue.ordering import Descending, OrderColumn, TaskOrder, in_key_order
from tests.spark.enqueue.bulk import batch, jobs_of, schema, staged_at, task, writer

TIMED = schema(payload=BinaryType(), created=IntegerType())
SEVERAL = schema(entrypoint=StringType(), payload=BinaryType(), created=IntegerType())


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "queue.json")


def served(url, entrypoint="resize"):
    """The payloads of all jobs in the order in which workers get them."""

    async def take():
        async with connect(url, DirectQueue) as queue:
            found = []
            while jobs := await queue.dequeue(entrypoint, batch_size=1000):
                found += [job.payload for job in jobs]
            return found

    return asyncio.run(take())


def written(url, columns, *partitions, **options):
    """Write partitions, each a list of rows."""
    bulk = writer(url, columns, **options) if "entrypoint" not in columns.names else several(url, columns, **options)
    reports = [bulk.stage([batch(columns, *rows)], task(number, number)) for number, rows in enumerate(partitions)]
    bulk.commit(reports)


def several(url, columns, **options):
    from jqueue.spark.enqueue.writing import BulkWriter

    return BulkWriter({"path": url, **options}, columns, False)


@pytest.mark.wide
@pytest.mark.parametrize("copying", [False, True])
@pytest.mark.parametrize("rows", [40, 4000])
def test_rows_and_partitions_in_any_order_are_served_in_the_order_of_a_column(tmp_path, file, rows, copying):
    dice, size = random.Random(rows), rows // 4
    partitions = [[(b"%d" % key, key) for key in range(first, first + size)] for first in range(0, rows, size)]
    for partition in partitions:
        dice.shuffle(partition)
    dice.shuffle(partitions)
    options = {"stagingPath": str(tmp_path / "staged")} if copying else {}
    written(file, TIMED, *partitions, orderBy="created", **options)
    assert [b"%d" % key for key in range(rows)] == served(file)


def test_a_descending_order_has_nulls_last_and_an_ascending_one_first(file):
    first, second = [(b"none", None), (b"9", 9)], [(b"12", 12), (b"10", 10)]
    written(file, TIMED, first, second, orderBy="Created DESC", priority="1")
    written(file, TIMED, second, first, orderBy="created asc", priority="2")
    assert [b"12", b"10", b"9", b"none", b"none", b"9", b"10", b"12"] == served(file)


def test_rows_with_equal_keys_keep_their_order(file):
    rows = [(b"%d" % number, number // 3) for number in range(9)]
    written(file, TIMED, rows[:4], rows[4:], orderBy="created")
    assert [payload for payload, _ in rows] == served(file)


def test_a_second_column_decides_between_equal_values(file):
    columns = schema(payload=BinaryType(), day=StringType(), size=DoubleType())
    rows = [(b"c", "b", 1.0), (b"b", "a", 1.0), (b"a", "a", 2.5)]
    written(file, columns, rows, orderBy="day, size desc")
    assert [b"a", b"b", b"c"] == served(file)


def test_overlapping_partitions_are_refused_before_the_commit(file):
    bulk = writer(file, TIMED, orderBy="created")
    reports = [
        bulk.stage([batch(TIMED, (b"a", 1), (b"b", 5))], task(0)),
        bulk.stage([batch(TIMED, (b"c", 4))], task(1)),
    ]
    with pytest.raises(InvalidJobError) as caught:
        bulk.commit(reports)
    expected = (
        "rows overlap in partitions 0 and 1 in orderBy: give each partition a range of its own, as "
        "df.repartitionByRange('created') does"
    )
    assert (expected, [], []) == (str(caught.value), jobs_of(file), staged_at(file))


def test_each_entrypoint_has_an_order_of_its_own(file):
    first, second = [("a", b"3", 3), ("b", b"1", 1)], [("a", b"2", 2), ("a", b"1", 1)]
    written(file, SEVERAL, first, second, orderBy="created")
    assert ([b"1", b"2", b"3"], [b"1"]) == (served(file, "a"), served(file, "b"))


def test_entrypoints_that_need_different_orders_of_the_partitions_are_refused(file):
    with pytest.raises(InvalidJobError, match="entrypoints have different orders of the same partitions in orderBy"):
        written(file, SEVERAL, [("a", b"", 1), ("b", b"", 2)], [("a", b"", 2), ("b", b"", 1)], orderBy="created")


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("when", "the option orderBy names 'when', and there is no such column"),
        ("created, when desc", "the option orderBy names 'when', and there is no such column"),
        ("parts", "the option orderBy names 'parts', which is array<int>"),
    ],
)
def test_a_column_without_an_order_is_refused_before_a_task_starts(file, order, words):
    with pytest.raises(InvalidJobError) as caught:
        writer(file, schema(created=IntegerType(), parts=ArrayType(IntegerType())), orderBy=order)
    assert words == str(caught.value)


def test_a_column_of_the_order_stays_in_a_payload_of_all_columns(file):
    written(file, schema(id=IntegerType(), at=IntegerType()), [(1, 7), (2, 3)], orderBy="at")
    assert [b'{"id":2,"at":3}', b'{"id":1,"at":7}'] == served(file)


def test_a_number_that_is_nan_has_no_order(file):
    with pytest.raises(InvalidJobError, match="partition 0 has NaN in 'size', which has no order"):
        written(file, schema(payload=BinaryType(), size=DoubleType()), [(b"", float("nan"))], orderBy="size")


def test_an_invalid_row_is_named_by_its_place_before_the_sort(file):
    with pytest.raises(InvalidJobError, match="row 0 of partition 0: payload is null"):
        written(file, TIMED, [(None, 9), (b"", 1)], orderBy="created")


def rows_in(*keys):
    return pa.RecordBatch.from_pylist([{"created": key} for key in keys], pa.schema([("created", pa.int32())]))


class TestARowLimit:
    """A task holds no more rows than its limit."""

    def order(self):
        return TaskOrder([OrderColumn("created", 0)], None, 3, held_bytes=8)

    def test_rows_that_come_in_order_are_not_held(self):
        order, taken = self.order(), []

        def several():
            for first in range(0, 100, 10):
                taken.append(first)
                yield rows_in(*range(first, first + 10))

        found = order.sorted(several())
        _, numbers = next(found)
        assert ([0], range(10)) == (taken, numbers)
        assert 90 == sum(each.num_rows for each, _ in found)
        [(low, high)] = order.ranges.values()
        assert (((True, 0),), ((True, 99),)) == (low, high)

    @pytest.mark.parametrize("second", [(2, 9, 4), (0, 9, 10)], ids=["within a batch", "between batches"])
    def test_rows_beyond_it_that_are_not_in_order_are_refused(self, second):
        with pytest.raises(
            InvalidJobError, match="partition 3 has more than 0 MiB of rows that are not in the order of"
        ):
            list(self.order().sorted([rows_in(1, 1, 1), rows_in(*second)]))


def test_tasks_are_put_in_the_order_of_their_keys():
    def key(*values):
        return tuple((True, value) for value in values)

    ranges = [{"": (key(5), key(9))}, {}, {"": (key(1), key(5))}, {"": (key(9), key(9))}]
    found = in_key_order(ranges, ["at"])
    assert (sorted(found), [2, 0, 3]) == ([0, 1, 2, 3], [each for each in found if each != 1])
    down = [{"": ((Descending(high),), (Descending(low),))} for high, low in ((3, 1), (9, 3))]
    assert [1, 0] == in_key_order(down, ["at"])


@pytest.mark.wide
def test_a_range_for_each_partition_of_spark_is_enough(spark, file):
    frame = spark.range(3000).selectExpr("encode(string(id), 'utf-8') payload", "timestamp_seconds(id * 7 % 3000) at")
    assert isinstance(frame.schema["at"].dataType, TimestampType)
    parts = frame.repartitionByRange(5, "at").write.format("jqueue").mode("append")
    parts.options(entrypoint="resize", orderBy="at").save(file)
    expected = sorted(range(3000), key=lambda number: number * 7 % 3000)
    assert [b"%d" % number for number in expected] == served(file)
