"""`end_batch`: outcomes of single rows, told by the function of `foreachBatch`.

    def work(batch, number):
        bad = batch.where("length(payload) = 0")
        end_batch(batch, url, failed=bad.selectExpr("id", "'it is empty' AS error", "true AS dead"))

All other rows are done. The source tells the outcomes when Spark has noted that the batch is done: see `query_claims`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import ClaimLostError, InvalidJobError, shown
from jqueue.domain.job import Claim
from jqueue.domain.limits import Limits, check_result
from jqueue.domain.operations.lookups import Find, HeldBy, JobsInLeases, LeasesHeldBy
from jqueue.domain.printable import counted
from jqueue.domain.segments import JobFailure
from jqueue.spark.claims import Outcome, Staged
from jqueue.spark.staging import Staging, absolute
from jqueue.spark.stream.query_claims import HOLDERS, OUTCOMES_DEADLINE, claim_of, name_of_outcomes
from jqueue.sync.background import wait_for

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MOST_OUTCOMES = 100_000
"""Largest number of rows of a batch with an outcome of their own. They are collected to the driver."""


MOST_LOOKED_UP = 1000
"""Largest number of ids of rows that a batch does not have which are looked up, to refuse those of no job."""


class FailedRow(msgspec.Struct):
    """The columns of a failed row. A null is the default."""

    id: str
    error: Any = None
    delay: Any = None
    dead: bool = False
    charge: bool = True

    @classmethod
    def of(cls, job_id: str, value: Any) -> FailedRow:
        """Return the row of an entry of a mapping."""
        failure = value if isinstance(value, JobFailure) else JobFailure(value)
        return cls(job_id, failure.error, failure.delay, failure.dead, failure.charge)


class ResultRow(msgspec.Struct):
    """The columns of a row with a result."""

    id: str
    result: Any = None
    keep_result: Any = None

    @classmethod
    def of(cls, job_id: str, value: Any) -> ResultRow:
        """Return the row of an entry of a mapping."""
        return cls(job_id, value)


Row = TypeVar("Row", FailedRow, ResultRow)
Failed = Mapping[str, JobFailure | BaseException | str | None]
Results = Mapping[str, Any]


class EndedBatch(NamedTuple):
    """Numbers of rows with an outcome of their own."""

    failed: int
    results: int


def end_batch(
    batch: DataFrame,
    url: str | os.PathLike[str],
    *,
    failed: DataFrame | Failed | None = None,
    results: DataFrame | Results | None = None,
    delay: Duration | None = None,
    keep_result: Duration | None = None,
) -> EndedBatch:
    """Say which rows of a batch have failed, and which results to keep. All other rows are done.

    Call it once in a function of `foreachBatch`, with its DataFrame. If Spark repeats the batch, the outcomes of the
    last run count. If it is called again in one run, the last call counts.

    Args:
        batch: the DataFrame that the function was given, with its columns `id` and `holder`.
        url: of the queue that the stream reads.
        failed: the failed rows by their `id`, with columns `error`, `delay` (seconds, or an interval), `dead` and
            `charge` as for `nack`, as far as wanted. Or a mapping of ids to errors, each an exception, a text or
            a `JobFailure`.
        results: a column `result` of any type by `id`, kept as JSON, and `keep_result` (seconds, or an
            interval). Or a mapping.
        delay: time before which failed rows without a delay of their own are not tried again.
        keep_result: time for which results are kept, for rows that say nothing else. A job keeps its own time.

    Raises:
        ClaimLostError: the queue has no claim of this batch. Check the URL.
        InvalidJobError: there are too many rows, a column is missing or wrong, a row has two outcomes, or an id is
            of no job.
        StorageError: the store failed, or cannot hold outcomes beside the queue.
    """
    address = absolute(os.fspath(url))
    first = _first_of(batch)
    if first is None:
        return EndedBatch(0, 0)  # the batch has no rows, or has lost all of them
    failures = _rows(failed, "failed", FailedRow, MOST_OUTCOMES)
    done = _rows(results, "results", ResultRow, MOST_OUTCOMES - len(failures))
    if failures.keys() & done.keys():
        raise InvalidJobError("a row of a batch has failed, or it has a result, and not both")
    outcomes = [_failure_of(row, delay) for row in failures.values()]
    outcomes += [_result_of(row, keep_result) for row in done.values()]
    wait_for(lambda: _stage(address, *first, outcomes))
    return EndedBatch(len(failures), len(done))


def _first_of(batch: DataFrame) -> tuple[str, str] | None:
    """Return the id and the holder of the first row. Spark plans the batch for it, before any outcome is staged."""
    if not {"id", "holder"} <= set(batch.columns):
        raise InvalidJobError("end_batch takes the DataFrame of foreachBatch, with its columns id and holder")
    row = batch.select("id", "holder").first()
    if row is None:
        return None
    if not str(row.holder).startswith(HOLDERS):
        raise InvalidJobError("end_batch takes a batch of a stream on a queue: its rows have another holder")
    return row.id, row.holder


def _rows(source: DataFrame | Mapping[str, Any] | None, name: str, kind: type[Row], most: int) -> dict[str, Row]:
    """Return rows by the ids of jobs. Each row of a DataFrame is collected as JSON.

    Raises:
        InvalidJobError: there are too many, or a column is missing or wrong.
    """
    if source is None:
        return {}
    if isinstance(source, Mapping):
        rows = [kind.of(job_id, value) for job_id, value in source.items()]
    else:
        from pyspark.sql import functions
        from pyspark.sql.types import DayTimeIntervalType

        def plain(each: str) -> Column:  # as JSON, an interval would be a text in SQL
            is_interval = each.lower() != "result" and isinstance(source.schema[each].dataType, DayTimeIntervalType)
            return source[each].cast("interval second").cast("decimal(20, 6)") if is_interval else source[each]

        names = kind.__struct_fields__
        columns = [plain(each).alias(each.lower()) for each in source.columns if each.lower() in names]
        if "id" not in map(str.lower, source.columns):
            raise InvalidJobError(f"{name} needs a column id")
        texts = source.select(functions.to_json(functions.struct(*columns)).alias("row")).limit(most + 1).collect()
        try:
            rows = [msgspec.json.decode(each.row, type=kind, strict=False) for each in texts]
        except msgspec.ValidationError as error:
            raise InvalidJobError(f"{name} has a row without an id, or a column of a wrong type: {error}") from None
    if len(rows) > most:
        raise InvalidJobError(
            f"more than {counted(most, 'row')} of {name}: make batches smaller with max_jobs_per_trigger, or fail "
            "the batch as a whole"
        )
    if any(not row.id or type(row.id) is not str for row in rows):
        raise InvalidJobError(f"{name} has a row without an id")
    return {row.id: row for row in rows}


def _failure_of(row: FailedRow, delay: Duration | None) -> Outcome:
    pause = delay if row.delay is None else row.delay
    return Outcome.of_failure(Claim(row.id, 0), JobFailure(row.error, pause, dead=row.dead, charge=row.charge))


def _result_of(row: ResultRow, keep_result: Duration | None) -> Outcome:
    try:
        result, _ = check_result(row.result, Limits())
    except InvalidJobError as error:
        raise InvalidJobError(f"the result of job {shown(row.id)}: {error}") from None
    period = keep_result if row.keep_result is None else row.keep_result
    return Outcome(
        row.id, 0, "succeeded", result=result, keep_result=None if period is None else to_seconds("keep_result", period)
    )


async def _stage(url: str, job_id: str, holder: str, outcomes: list[Outcome]) -> None:
    """Stage outcomes, if the queue has the claim on a row of the batch."""

    def put(content: bytes | None) -> bytes:
        return replace(Staged.decode(content), outcomes=tuple(outcomes)).encode()

    async with connect(url, DirectQueue) as queue:
        job = await queue.find(job_id)
        if job is None or job.holder != holder:
            raise ClaimLostError(
                job_id,
                None,
                "the queue has no claim of this batch: is the URL that of the stream, and its claim not stale?",
            )
        ids = tuple(each.job_id for each in outcomes)
        jobs, ranges, pairs = await queue.apply(HeldBy(holder), LeasesHeldBy(holder), JobsInLeases(ids))
        ours = {claim.id for claim in ranges}
        held_ids = {job.id for job in jobs} | {job_id for lease_id, job_id in pairs if lease_id in ours}
        others = [each for each in ids if each not in held_ids][:MOST_LOOKED_UP]  # lost by now, or of no job
        other_jobs = await queue.apply(*map(Find, others)) if others else []
        if missing := [each for each, job in zip(others, other_jobs, strict=True) if not job]:
            raise InvalidJobError(f"the batch has no row with the id {shown(missing[0])}")
        async with Staging(url, OUTCOMES_DEADLINE).opened() as objects:
            await objects.update(name_of_outcomes(claim_of(holder)), put)
