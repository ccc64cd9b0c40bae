"""`jqueue spark enqueue SOURCE URL`: the rows of a Parquet, CSV or JSON file as jobs, in one commit."""

from __future__ import annotations

import json
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.on_queue import IN_MEMORY, URL, AsJSON, Create
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import jobs, refusal, show_json
from jqueue.cli.spark.files import format_of, is_missing, read_jobs
from jqueue.cli.spark.session import (
    Conf,
    Log,
    Master,
    SparkLog,
    SparkTarget,
    absolute,
    pairs,
    spark_session,
    tasks_shown,
)
from jqueue.connect import connect_storage
from jqueue.domain.errors import JQueueError
from jqueue.domain.job_options import IN_BULK
from jqueue.domain.printable import counted, printable
from jqueue.ports.storage import describe
from jqueue.runtime.system import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Format(StrEnum):
    """The formats of a file of jobs."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


class OnConflict(StrEnum):
    """The action if a unique key is taken."""

    RETURN = "return"
    RAISE = "raise"


def enqueue(
    source: Annotated[str, argument("SOURCE", "File, folder, pattern or URL with the rows.")],
    url: URL,
    kind: Annotated[
        Format | None, typer.Option("--format", help="Format of SOURCE, if its name does not tell.", show_default=False)
    ] = None,
    entrypoint: Annotated[str | None, option("NAME", "Entrypoint of all rows, if they have no such column.")] = None,
    txn_app_id: Annotated[
        str | None, option("ID", "Name of the writer, so that a repeated write adds nothing.")
    ] = None,
    txn_version: Annotated[
        int | None, option("N", "Number of this write, higher than of the writes before.", min=0)
    ] = None,
    on_conflict: Annotated[
        OnConflict, typer.Option(help="If a unique key is taken: leave out that row, or add no rows.")
    ] = OnConflict.RETURN,
    option: Annotated[list[str] | None, option("KEY=VALUE", "Option of the jqueue sink, such as priority=5.")] = None,
    read_option: Annotated[
        list[str] | None, option("KEY=VALUE", "Option of Spark's file reader, such as sep=;")
    ] = None,
    create: Create = False,
    master: Master = "local[*]",
    conf: Conf = None,
    spark_log: Log = SparkLog.OFF,
    as_json: AsJSON = False,
) -> None:
    """Enqueue the rows of a file or folder with Spark: all of them in one commit, or none.

    The columns are entrypoint and payload, and optionally {optional}.
    Without a payload column, all other columns of a row become its payload, as one JSON object.
    """
    given = {
        "entrypoint": entrypoint,
        "txnAppId": txn_app_id,
        "txnVersion": None if txn_version is None else str(txn_version),
        "onConflict": on_conflict.value,
    }
    options = {**{name: text for name, text in given.items() if text is not None}, **pairs("--option", option, as_json)}
    reading = pairs("--read-option", read_option, as_json)
    if (txn_app_id is None) != (txn_version is None):
        what = "give --txn-app-id and --txn-version together: the name of the writer, and the number of its write"
        raise refusal(what, as_json=as_json)
    target = SparkTarget(master, tuple(conf or ()), spark_log, as_json)
    name, found = _checked(source, url, kind, target, create)
    with spark_session(target) as session, tasks_shown(session, "enqueuing"):
        receipt, seconds = _enqueue(read_jobs(session, target.file(source), found, reading), url, options)
    if as_json:
        show_json({"queue": name, **receipt, "seconds": round(seconds, 3)})
    else:
        typer.echo(_told(receipt, name, seconds, (txn_app_id, txn_version)))


if enqueue.__doc__ is not None:  # with python -OO it is
    enqueue.__doc__ = enqueue.__doc__.format(optional=", ".join(IN_BULK))


def _enqueue(jobs: DataFrame, url: str, options: dict[str, str]) -> tuple[dict[str, Any], float]:
    """Enqueue the rows of a frame. Return the receipt of the write, and the seconds that it took."""
    with tempfile.TemporaryDirectory(prefix="jqueue-") as folder:
        receipt = Path(folder) / "receipt.json"
        began = SystemClock().monotonic()
        writer = jobs.write.format("jqueue").options(**options).mode("append")
        writer.option("receiptPath", str(receipt)).save(absolute(url))
        return json.loads(receipt.read_bytes()), SystemClock().monotonic() - began


def _checked(source: str, url: str, kind: Format | None, target: SparkTarget, create: bool) -> tuple[str, str]:
    """Return the name of the queue and the format of the file. If they are wrong, refuse before Spark starts."""
    as_json = target.as_json
    try:
        storage = connect_storage(url, create=create)
        if create and isinstance(storage, LocalFileSystemStorage):  # the tasks of Spark expect it
            storage.path.parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, ImportError, OSError, JQueueError) as error:  # messages of errors about a URL hold no secrets
        raise refusal(str(error), as_json=as_json) from None
    if isinstance(storage, InMemoryStorage):
        raise refusal(IN_MEMORY, as_json=as_json)
    if target.is_here and is_missing(source):
        raise refusal(f"there is no file or folder {printable(source)}", as_json=as_json)
    found = kind or format_of(source)
    if found is None:
        raise refusal(
            f"the format of {printable(source)} is unknown: add --format parquet, csv or json", as_json=as_json
        )
    return describe(storage), str(found)


def _told(receipt: dict[str, Any], name: str, seconds: float, transaction: tuple[str | None, int | None]) -> str:
    if receipt["repeated"]:
        app_id, version = transaction
        if receipt["left_out"]:
            rows = counted(receipt["left_out"], "row was", "rows were")
            last = f"the queue already has version {receipt['version']} of {printable(str(app_id))}"
            return f"nothing added: {rows} not written, as {last}, later than {version}"
        return f"nothing added: version {version} of {printable(str(app_id))} was already written"
    said = f"{jobs(receipt['added'])} added to {name} in {seconds:.1f} s"
    taken = counted(receipt["taken"], "row was", "rows were")
    return f"{said}; {taken} left out: unique key already taken" if receipt["taken"] else said
