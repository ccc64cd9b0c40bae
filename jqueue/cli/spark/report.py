"""`jqueue spark report URL…` and `archive URL LAKE`: the jobs of queues and their past, and the lake that keeps it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jqueue.cli import options
from jqueue.cli.on_queue import AsJSON
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import instant, refusal, show_json
from jqueue.cli.spark.session import (
    Conf,
    Log,
    Master,
    SparkLog,
    SparkTarget,
    absolute,
    queues_here,
    spark_session,
    tasks_shown,
)
from jqueue.cli.spark.snapshot import FleetURL
from jqueue.domain.printable import printable
from jqueue.runtime.system import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jqueue.spark.report import PastReport, Report
    from jqueue.spark.report.past_columns import PastFailure, PastFigures


def report(
    urls: Annotated[
        list[str] | None, argument("[URL…]", "URLs or paths of queues, or patterns such as 'q/*.json'.")
    ] = None,
    lake: Annotated[str | None, option("LAKE", "Lake of `jqueue spark archive`, for the past.")] = None,
    since: Annotated[
        str | None, option("TIME", "Events of the lake from this time on, or from so long ago: 7d.")
    ] = None,
    until: Annotated[str | None, option("TIME", "Events of the lake before this time only.")] = None,
    html: Annotated[Path | None, option("PAGE.html", "HTML page with plots to write.", dir_okay=False)] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    spark_log: Log = SparkLog.OFF,
    as_json: AsJSON = False,
) -> None:
    """Report on queues: depth, ages, attempts, failures, times; or with --lake on the past.

    This command only reads, each queue once. It shows no payloads, no results and no texts of errors.
    """
    if not urls and lake is None:
        raise refusal("give the URL of a queue, or --lake", as_json=as_json)
    try:
        now = SystemClock().now()
        first = None if since is None else options.past("--since", since, now)
        end = None if until is None else options.past("--until", until, now)
    except ValueError as error:
        raise refusal(str(error), as_json=as_json) from None
    if html is not None and not html.absolute().parent.is_dir():
        raise refusal(f"there is no folder {printable(str(html.absolute().parent))}: create it first", as_json=as_json)
    with spark_session(SparkTarget(master, tuple(conf or ()), spark_log, as_json)) as session:
        from jqueue.spark import report as reporting

        with tasks_shown(session, "reading"):
            place = None if lake is None else absolute(lake)
            found = (
                reporting.report(session, list(map(queues_here, urls)), lake=place, since=first, until=end)
                if urls
                else reporting.report(session, lake=str(place), since=first, until=end)
            )
        if as_json:
            show_json(_page_and(html, found))
        else:
            found.print()
        if html is not None:
            found.to_html(html)
            if not as_json:
                typer.echo(f"\npage written to {printable(str(html.absolute()))}")


def _page_and(html: Path | None, found: Report | PastReport) -> dict[str, Any]:
    from jqueue.spark.report import Report

    page = {"page": None if html is None else str(html.absolute())}
    if isinstance(found, Report):
        past = {} if found.past is None else {"past": _past_values(found.past)}
        return {**_as_values(found), **page, **past}
    return {**_past_values(found), **page}


def _past_values(past: PastReport) -> dict[str, Any]:
    def rows(each: Sequence[PastFigures] | Sequence[PastFailure]) -> list[dict[str, Any]]:
        return [{**row._asdict(), "start": instant(row.start)} for row in each]

    return {
        "lake": past.lake,
        "since": instant(past.since),
        "until": instant(past.until),
        "window": past.window,
        "total": rows([past.total])[0],
        "entrypoints": rows(past.entrypoints),
        "holders": rows(past.holders),
        "windows": rows(past.windows),
        "parts": rows(past.parts),
        "failures": rows(past.failures),
    }


def _as_values(found: Report) -> dict[str, Any]:
    totals = {"all" if name is None else name: _plain(total._asdict()) for name, total in found.totals.items()}
    return {
        "now": instant(found.now),
        "queues": list(found.queues),
        "totals": [{"queue": name, **total} for name, total in totals.items()],
        "entrypoints": [_plain(each._asdict()) for each in found.standings],
        "failures": [each._asdict() for each in found.failures],
        "ages": [each._asdict() for each in found.ages],
        "turnarounds": [each._asdict() for each in found.turnarounds],
        "attempts": [each._asdict() for each in found.attempts],
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "next_at": instant(values["next_at"])}


def archive(
    url: FleetURL,
    lake: Annotated[str, typer.Argument(metavar="LAKE", help="Folder or URL of the lake, such as s3://bucket/lake.")],
    master: Master = "local[*]",
    conf: Conf = None,
    spark_log: Log = SparkLog.OFF,
    as_json: AsJSON = False,
) -> None:
    """Add new events of the history to LAKE, a folder of Parquet files by day and entrypoint.

    An event is added once, however often this command runs or is interrupted.
    """
    with spark_session(SparkTarget(master, tuple(conf or ()), spark_log, as_json)) as session:
        from jqueue.spark import lake as archiving

        with tasks_shown(session, "archiving"):
            done = archiving.archive(session, queues_here(url), absolute(lake))
    if as_json:
        show_json({**asdict(done), "seconds": round(done.seconds, 3)})
    else:
        typer.echo(f"{done}")
