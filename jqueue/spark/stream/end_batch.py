"""`end_batch`: outcomes of single rows, told by the function of `foreachBatch`.

    def work(batch, number):
        bad = batch.where("length(payload) = 0")
        end_batch(batch, url, failed=bad.selectExpr("id", "'it is empty' AS error", "true AS dead"))

All other rows are done. The source tells the outcomes when Spark has noted that the batch is done: see `query_claims`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import ClaimLostError, InvalidJobError, shown
from jqueue.domain.limits import Limits, check_result, cut_error
from jqueue.domain.printable import counted
from jqueue.domain.segments import RangeFailure
from jqueue.spark.claims.outcomes import Outcome, OutcomeKind, Staged
from jqueue.spark.staging import Staging, absolute
from jqueue.spark.stream.query_claims import HOLDERS, OUTCOMES_DEADLINE, claim_of
from jqueue.spark.stream.shipping import name_of_outcomes
from jqueue.sync.background import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_OUTCOMES = 10_000
"""Largest number of rows of a batch with an outcome of their own, by default. They are collected to the driver."""

FAILED = {"id": "string", "error": "string", "delay": "double", "dead": "boolean", "charge": "boolean"}
RESULTS = {"id": "string", "result": "", "keep_result": "double"}
"""Columns that count, and the type to which each is cast. All but the id may be missing."""

Failed = Mapping[str, RangeFailure | BaseException | str | None]
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
    most: int = MOST_OUTCOMES,
) -> EndedBatch:
    """Say which rows of a batch have failed, and which results to keep. All other rows are done.

    Call it once in a function of `foreachBatch`, with its DataFrame. If Spark repeats the batch, the outcomes of the
    last run count. If it is called again in one run, the last call counts.

    Args:
        batch: the DataFrame that the function was given, with its columns `id` and `holder`.
        url: of the queue that the stream reads.
        failed: the failed rows by their `id`, with columns `error`, `delay` (seconds), `dead` and `charge` as for
            `nack`, as far as wanted. Or a mapping of ids to errors or `RangeFailure`s.
        results: a column `result` of any type by `id`, kept as JSON, and `keep_result` (seconds). Or a mapping.
        delay: time before which failed rows without a delay of their own are not tried again.
        keep_result: time for which results are kept, for rows that say nothing else. A job keeps its own time.
        most: largest number of failed rows and results together.

    Raises:
        ClaimLostError: the queue has no claim of this batch. Check the URL.
        InvalidJobError: there are too many rows, a column is missing or wrong, or a row has two outcomes.
        StorageError: the store failed, or cannot hold outcomes beside the queue.
    """
    address = absolute(os.fspath(url))
    pause = None if delay is None else to_seconds("delay", delay)
    kept = None if keep_result is None else to_seconds("keep_result", keep_result)
    first = _first_of(batch)
    if first is None:
        return EndedBatch(0, 0)  # the batch has no rows, or has lost all of them
    failures = [_failure_of(row, pause) for row in _rows(failed, "failed", FAILED, most, _of_failure)]
    left = most - len(failures)
    done = [_result_of(row, kept) for row in _rows(results, "results", RESULTS, left, _of_result)]
    outcomes = {outcome.job_id: outcome for outcome in (*failures, *done)}
    ended = EndedBatch(len({each.job_id for each in failures}), len({each.job_id for each in done}))
    if sum(ended) > len(outcomes):
        raise InvalidJobError("a row of a batch has failed, or it has a result, and not both")
    wait_for(lambda: _stage(address, *first, list(outcomes.values())))
    return ended


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


def _rows(
    given: DataFrame | Mapping[str, Any] | None,
    name: str,
    kinds: Mapping[str, str],
    most: int,
    of_value: Callable[[str, Any], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield rows as plain values by column.

    Raises:
        InvalidJobError: there are too many, or the column `id` is missing.
    """
    if given is None:
        return
    if isinstance(given, Mapping):
        rows = [of_value(job_id, value) for job_id, value in given.items()]
    else:
        if "id" not in map(str.lower, given.columns):
            raise InvalidJobError(f"{name} needs a column id")
        rows = [row.asDict() for row in _narrow(given, kinds).limit(most + 1).collect()]
    if len(rows) > most:
        raise InvalidJobError(
            f"more than {counted(most, 'row')} of {name}: make batches smaller with maxJobsPerTrigger, fail the batch "
            "as a whole, or raise most="
        )
    for row in rows:
        if not isinstance(row["id"], str) or not row["id"]:
            raise InvalidJobError(f"{name} has a row without an id")
        yield row


def _narrow(given: DataFrame, kinds: Mapping[str, str]) -> DataFrame:
    """Return the columns that count, in any case, in the types that are collected."""
    from pyspark.sql import functions
    from pyspark.sql.types import DayTimeIntervalType

    columns = []
    for spelled in given.columns:
        name = spelled.lower()
        if name not in kinds:
            continue
        column = given[spelled]
        if name == "result":
            column = functions.to_json(functions.struct(column.alias("result")))
        elif not (kinds[name] == "double" and isinstance(given.schema[spelled].dataType, DayTimeIntervalType)):
            column = column.cast(kinds[name])
        columns.append(column.alias(name))
    return given.select(*columns)


def _of_failure(job_id: str, value: Any) -> dict[str, Any]:
    given = value if isinstance(value, RangeFailure) else RangeFailure(value)
    return {"id": job_id, "error": given.error, "delay": given.delay, "dead": given.dead, "charge": given.charge}


def _of_result(job_id: str, value: Any) -> dict[str, Any]:
    return {"id": job_id, "value": value}


def _failure_of(row: dict[str, Any], pause: float | None) -> Outcome:
    delay = pause if row.get("delay") is None else to_seconds("delay", row["delay"])
    error = None if row.get("error") is None else cut_error(row["error"])
    kind: OutcomeKind = "dead" if row.get("dead") else "retried"
    if row.get("charge") is False and not row.get("dead"):
        kind = "handed_back" if delay is None else "snoozed"
    return Outcome(row["id"], 0, kind, delay=delay, error=error)


def _result_of(row: dict[str, Any], kept: float | None) -> Outcome:
    value = row["value"] if "value" in row else json.loads(row.get("result") or "{}").get("result")
    try:
        result, _ = check_result(value, Limits())
    except InvalidJobError as error:
        raise InvalidJobError(f"the result of job {shown(row['id'])}: {error}") from None
    seconds = kept if row.get("keep_result") is None else to_seconds("keep_result", row["keep_result"])
    return Outcome(row["id"], 0, "done", result=result, keep_result=seconds)


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
        async with Staging(url, OUTCOMES_DEADLINE).opened() as objects:
            await objects.update(name_of_outcomes(claim_of(holder)), put)
