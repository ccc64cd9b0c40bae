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
from tests.simulation.runner import Report, Settings

SEEDS_PER_LINE = 1_000
"""Number of seeds for each line of progress."""

DESCRIPTION = "Run many processes on one store under faults, in virtual time: a schedule for each seed."


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds that the command line names. Return 0, 1 if a rule was broken, or 2 if the arguments are wrong."""
    options = _parser().parse_args(arguments)
    settings = Settings(rate=options.faults)
    if options.storage:
        settings = replace(settings, make_storage=_load(options.storage))
    report, failures = _run(options, settings)
    _show(report)
    if not failures:
        print(f"No rule was broken in {report.work['seeds']:,} seeds.")
        return 0
    print(f"\nA rule was broken by seed {', '.join(str(seed) for seed, _ in failures)}.")
    print("Looking for a shorter schedule that breaks it …\n")
    print(explain(*failures[0], settings))
    again = f"--seeds 1 --first {failures[0][0]}"
    again += "" if options.faults is None else f" --faults {options.faults}"
    again += f" --storage {options.storage}" if options.storage else ""
    print(f"\nTo reproduce it: python -m tests.simulation {again}")
    return 1


def _run(options: argparse.Namespace, settings: Settings) -> tuple[Report, list[Failed]]:
    """Run the seeds until one fails, or all of them. Return a report and the failures."""
    report, failures, printed = Report(), list[Failed](), 0
    for lot, failed in run_in_parallel(options.first, options.seeds, settings, options.processes):
        report.add(lot)
        failures += failed
        seeds = report.work["seeds"] + len(failures)
        if seeds >= printed + SEEDS_PER_LINE:
            printed = seeds
            done = ", ".join(
                f"{report.work[name]:,} {name}" for name in ("operations", "commits", "commits recognised")
            )
            print(f"{seeds:,} of {options.seeds:,} seeds: {done}", flush=True)
        if failures and not options.keep_going:
            break
    return report, failures


def _show(report: Report) -> None:
    parts: dict[str, Mapping[str, int]] = {
        "work": report.work,
        "faults of the store and of links": {
            name.lower().replace("_", " "): count for name, count in report.faults.items()
        },
        "what happened": dict(report.events.most_common()),
        "how calls ended": dict(report.outcomes.most_common()),
    }
    for title, counts in parts.items():
        print(f"\n{title}")
        for name, count in counts.items():
            print(f"{count:>14,}  {name}")


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=DESCRIPTION)
    parser.add_argument("--seeds", type=int, default=2000, help="number of seeds to run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: %(default)s)")
    parser.add_argument(
        "--faults",
        type=float,
        help="share of requests with a fault, from 0 to 1 (default: a different share for each seed)",
    )
    parser.add_argument("--storage", help="package.module:function that returns an empty storage of your own")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="number of processes (default: one for each core)"
    )
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, even after a rule was broken")
    return parser


if __name__ == "__main__":
    sys.exit(main())
