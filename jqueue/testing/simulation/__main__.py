"""`python -m jqueue.testing.simulation`: run many seeds, with progress, and count what happened."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jqueue.testing.simulation.many import Failed, explain, run_in_parallel
from jqueue.testing.simulation.network import FaultKind
from jqueue.testing.simulation.runner import Report, Settings

try:
    from rich import box
    from rich.columns import Columns
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ImportError:  # pragma: no cover - the environment of the tests has it
    sys.exit("the simulation shows its progress with rich: pip install 'jqueue[testing]'")


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds that the command line names. Returns 0, or 1 if a rule was broken, or 2 if it made no sense."""
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    settings = Settings(rate=options.faults)
    if options.storage:
        settings = replace(settings, make_storage=_load(options.storage))
    report, failed = _run(console, options, settings)
    _show(console, report)
    if failed is None:
        console.print(f"No rule was broken in {report.seeds:,} seeds.")
        return 0
    console.print(f"\n[bold red]Seed {failed[0]} broke a rule.[/] Looking for a short schedule …\n")
    console.print(explain(*failed, settings), markup=False)
    faults = "" if options.faults is None else f" FAULTS={options.faults}"
    console.print(f"\nTo see it again: make simulate SEEDS=1 FIRST={failed[0]}{faults}")
    return 1


def _run(console: Console, options: argparse.Namespace, settings: Settings) -> tuple[Report, Failed | None]:
    report = Report()
    columns = (
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[done]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("seeds", total=options.seeds, done="")
        lots = run_in_parallel(options.first, options.seeds, settings, options.processes)
        for lot, failed in lots:
            report.add(lot)
            if failed is not None:
                return report, failed
            done = f"{report.operations:,} operations, {report.commits:,} commits, {report.recognised:,} recognised"
            progress.update(task, completed=report.seeds, done=done)
    return report, None


def _show(console: Console, report: Report) -> None:
    totals = {
        "seeds": report.seeds,
        "calls": report.calls,
        "operations": report.operations,
        "requests to the store": report.requests,
        "commits": report.commits,
        "commits recognised": report.recognised,
    }
    faults = {kind.name.lower().replace("_", " "): report.faults[kind.name] for kind in FaultKind}
    console.print(
        Columns(
            [
                _table("what was done", totals),
                _table("faults of the store", faults),
                _table("what happened", dict(report.events.most_common())),
                _table("how calls ended", dict(report.outcomes.most_common())),
            ]
        )
    )


def _table(title: str, counts: Mapping[str, int]) -> Table:
    table = Table(title, "how often", box=box.SIMPLE)
    table.columns[1].justify = "right"
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    return table


def _load(name: str) -> Any:
    """What `package.module:function` names."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        print(f"--storage {name}: {error}. It should be like package.module:function", file=sys.stderr)
        raise SystemExit(2) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jqueue.testing.simulation", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--seeds", type=int, default=2000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default: %(default)s)")
    parser.add_argument(
        "--faults", type=float, help="the share of requests to which something happens (default: another for each seed)"
    )
    parser.add_argument("--storage", help="package.module:function that makes an empty storage of yours")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="how many at once (default: one for each core)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
