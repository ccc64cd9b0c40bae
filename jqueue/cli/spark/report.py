"""`jqueue spark report URL…`: the jobs of queues and their past: in tables, as JSON, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jqueue.cli import options
from jqueue.cli.on_queue import AsJSON
from jqueue.cli.printing import instant, refusal, show_json
from jqueue.cli.spark.progress import tasks_shown
from jqueue.cli.spark.session import Conf, Log, Master, SparkLog, SparkTarget, absolute, queues_here, spark_session
from jqueue.domain.printable import printable
from jqueue.runtime.system import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jqueue.spark.report import PastReport, Report
    from jqueue.spark.report.past_columns import PastFailure, PastFigures


def report(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL…]", help="URLs or paths of queues, or patterns such as 'q/*.json'.", show_default=False
        ),
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option(metavar="LAKE", help="Lake of `jqueue spark archive`, for the past.", show_default=False),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Events of the lake from this time on, or from so long ago: 7d.", show_default=False
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Events of the lake before this time only.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.html", help="HTML page with plots to write.", show_default=False, dir_okay=False),
    ] = None,
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
