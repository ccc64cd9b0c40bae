"""The helper for rows that cannot become jobs, which otherwise fail the write that has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.types import StringType, StructType

from jqueue.domain.durations import EPOCH
from jqueue.domain.limits import Limits
from jqueue.spark.enqueue.columns import EXPECTED, Columns, columns_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def split_bad_rows(jobs: DataFrame, *, payload_bytes: int | None = None) -> tuple[DataFrame, DataFrame]:
    """Return the rows that can be jobs, and the others, which get a column `reason`.

    Args:
        jobs: the rows, with the columns of a bulk enqueue. Beside a payload, others are passed on unchecked.
        payload_bytes: the option `max_payload_bytes` of the write, if it has one.

    Raises:
        InvalidJobError: a column is missing, or of a wrong type.
    """
    fields = {field.name.lower(): field for field in jobs.schema.fields}
    names = [field.name for name, field in fields.items() if name in EXPECTED or "payload" not in fields]
    constants = {} if "entrypoint" in fields else {"entrypoint": "entrypoint"}
    columns = columns_of(StructType([jobs.schema[name] for name in names]), constants)
    limits = Limits() if payload_bytes is None else Limits(payload_bytes=payload_bytes)
    checked = jobs.mapInArrow(
        partial(_checked, columns, limits, names), StructType([*jobs.schema.fields]).add("reason", StringType())
    )
    return checked.where("reason IS NULL").drop("reason"), checked.where("reason IS NOT NULL")


def _checked(
    columns: Columns, limits: Limits, names: list[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield rows with the reason why each cannot be a job."""
    import pyarrow as pa

    from jqueue.spark.enqueue.encoding import RowJudge

    judge = RowJudge(columns, limits, EPOCH, 0, str)
    for batch in batches:
        reasons = pa.array(judge.reasons(batch.select(names)), pa.string())
        yield pa.RecordBatch.from_arrays([*batch.columns, reasons], [*batch.schema.names, "reason"])
