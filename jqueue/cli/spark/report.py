"""`jqueue spark report URL…`: the jobs of queues, their ages and outcomes: in tables, as JSON, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jqueue.cli.on_queue import AsJSON
from jqueue.cli.printing import instant, refusal, show_json
from jqueue.cli.spark.progress import tasks_shown
from jqueue.cli.spark.session import Conf, Log, Master, SparkLog, SparkTarget, queues_here, spark_session
from jqueue.domain.printable import printable

if TYPE_CHECKING:
    from jqueue.spark.report import Report


def report(
    urls: Annotated[
        list[str],
        typer.Argument(
            metavar="URL…", help="URLs or paths of queues, or patterns such as 'q/*.json'.", show_default=False
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.html", help="HTML page with plots to write.", show_default=False, dir_okay=False),
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    spark_log: Log = SparkLog.OFF,
    as_json: AsJSON = False,
) -> None:
    """Report on one or more queues: depth, ages, attempts, failures, times.

    This command only reads, each queue once. It shows no payloads, no results and no texts of errors.
    """
    if html is not None and not html.absolute().parent.is_dir():
        raise refusal(f"there is no folder {printable(str(html.absolute().parent))}: create it first", as_json=as_json)
    with spark_session(SparkTarget(master, tuple(conf or ()), spark_log, as_json)) as session:
        from jqueue.spark import report as reporting

        with tasks_shown(session, "reading"):
            found = reporting.report(session, list(map(queues_here, urls)))
        if as_json:
            show_json(_as_values(found, html))
        else:
            found.print()
        if html is not None:
            found.to_html(html)
            if not as_json:
                typer.echo(f"\npage written to {printable(str(html.absolute()))}")


def _as_values(found: Report, html: Path | None) -> dict[str, Any]:
    totals = {"all" if name is None else name: _plain(total._asdict()) for name, total in found.totals.items()}
    return {
        "now": instant(found.now),
        "queues": list(found.queues),
        "page": None if html is None else str(html.absolute()),
        "totals": [{"queue": name, **total} for name, total in totals.items()],
        "entrypoints": [_plain(each._asdict()) for each in found.standings],
        "failures": [each._asdict() for each in found.failures],
        "ages": [each._asdict() for each in found.ages],
        "turnarounds": [each._asdict() for each in found.turnarounds],
        "attempts": [each._asdict() for each in found.attempts],
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "next_at": instant(values["next_at"])}
