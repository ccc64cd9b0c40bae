"""`python -m tests.simulation`: run many seeds, with progress, and count what happened."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jqueue.ports.storage import ObjectStoragePort
from tests.simulation.many import Failed, explain, run_in_parallel
from tests.simulation.network import FaultKind
from tests.simulation.runner import Report, Settings

try:
    from rich import box
    from rich.columns import Columns
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ImportError:  # pragma: no cover - the environment of the tests has it
    sys.exit("the simulation shows its progress with rich: pip install 'jqueue[testing]'")

SEEDS_PER_LINE = 1_000
"""Number of seeds for each line of progress, if there is no terminal to draw a bar on."""

DESCRIPTION = "Run many processes on one store under faults, in virtual time: a schedule for each seed."


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds that the command line names. Return 0, 1 if a rule was broken, or 2 if the arguments are wrong."""
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    settings = Settings(rate=options.faults)
    if options.storage:
        settings = replace(settings, make_storage=_load(options.storage))
    report, failures = _run(console, options, settings)
    _show(console, report)
    if not failures:
        console.print(f"No rule was broken in {report.seeds:,} seeds.")
        return 0
    seeds = ", ".join(str(seed) for seed, _ in failures)
    console.print(
        f"\n[bold red]A rule was broken by seed {seeds}.[/] Looking for a shorter schedule that breaks it …\n"
    )
    console.print(explain(*failures[0], settings), markup=False)
    again = f"--seeds 1 --first {failures[0][0]}"
    again += "" if options.faults is None else f" --faults {options.faults}"
    again += f" --storage {options.storage}" if options.storage else ""
    console.print(f"\nTo reproduce it: python -m tests.simulation {again}")
    return 1


def _run(console: Console, options: argparse.Namespace, settings: Settings) -> tuple[Report, list[Failed]]:
    """Run the seeds until one fails, or all of them. Return a report and the failures."""
    report, failures = Report(), []
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[done]}"), console=console) as progress:
        task, printed = progress.add_task("seeds", total=options.seeds, done=""), 0
        for lot, failed in run_in_parallel(options.first, options.seeds, settings, options.processes):
            report.add(lot)
            failures += failed
            done = f"{report.operations:,} operations, {report.commits:,} commits, {report.recognised:,} recognised"
            seeds = report.seeds + len(failures)
            progress.update(task, completed=seeds, done=done)
            if not console.is_terminal and seeds >= printed + SEEDS_PER_LINE:
                printed = seeds
                console.print(f"{seeds:,} of {options.seeds:,} seeds: {done}")
            if failures and not options.keep_going:
                break
    return report, failures


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
                _table("work", totals),
                _table("faults of the store", faults),
                _table("what happened", dict(report.events.most_common())),
                _table("how calls ended", dict(report.outcomes.most_common())),
            ]
        )
    )


def _table(title: str, counts: Mapping[str, int]) -> Table:
    table = Table(title, "number", box=box.SIMPLE)
    table.columns[1].justify = "right"
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    return table


def _load(name: str) -> Any:
    """Return the function that `package.module:function` names, after checking that it makes storages."""
    module, _, function = name.partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
        made = make()
    except Exception as error:
        print(f"--storage {name}: {error}. Give it as package.module:function", file=sys.stderr)
        raise SystemExit(2) from None
    if not isinstance(made, ObjectStoragePort):
        print(f"--storage {name} makes a {type(made).__name__}, which has no `read` and `write`", file=sys.stderr)
        raise SystemExit(2)
    return make


def _count(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of 1 or more")
    return int(text)


def _seed(text: str) -> int:
    """A whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of 0 or more")
    return int(text)


def _share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 1")
    return share


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=DESCRIPTION)
    parser.add_argument("--seeds", type=_count, default=2000, help="number of seeds to run (default: %(default)s)")
    parser.add_argument("--first", type=_seed, default=0, help="first seed (default: %(default)s)")
    parser.add_argument(
        "--faults",
        type=_share,
        help="share of requests with a fault, from 0 to 1 (default: a different share for each seed)",
    )
    parser.add_argument("--storage", help="package.module:function that returns an empty storage of your own")
    parser.add_argument(
        "--processes", type=_count, default=os.cpu_count() or 1, help="number of processes (default: one for each core)"
    )
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, even after a rule was broken")
    return parser


if __name__ == "__main__":
    sys.exit(main())
