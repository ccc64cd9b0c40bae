"""The seed at which the search for each planted bug begins: one that finds it, which costs a tenth of a search from 0.

A change of timing in the product moves these seeds: the tests still find each bug, but search longer.
`python -m tests.simulation.first_seeds` looks for those that moved, and writes `first_seeds.json` anew.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.history import Violation
from tests.simulation.planted_bugs import PLANTED, Bug, built_in
from tests.simulation.runner import Settings, run_seed

FILE = Path(__file__).with_name("first_seeds.json")

Search = tuple[Settings, str, Bug]


@functools.cache
def first_seeds() -> dict[str, int]:
    """Return the seed of each planted bug by the bug's name. A new bug has none yet, and its search begins at 0."""
    seeds: dict[str, int] = json.loads(FILE.read_text(encoding="utf-8"))
    return seeds


def finding_seed(search: Search) -> int | None:
    """Return a seed that finds a bug: the one that did, if it still does, or else the first one."""
    logging.disable(logging.CRITICAL)
    settings, name, bug = search
    with built_in(name, bug):
        seeds = [first_seeds().get(name, 0), *range(bug.seeds)]
        return next((seed for seed in seeds if not _passes(seed, settings)), None)


def _passes(seed: int, settings: Settings) -> bool:
    try:
        run_seed(seed, settings)
    except Violation:
        return False
    return True


def main() -> None:
    """Write the seeds anew, and print which moved."""
    searches = [(settings, name, bug) for settings, bugs in PLANTED.items() for name, bug in bugs.items()]
    before, seeds = first_seeds(), dict[str, int]()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for (_, name, bug), seed in zip(searches, pool.map(finding_seed, searches), strict=True):
            if seed is None:
                print(f"not found in {bug.seeds} seeds: {name}", flush=True)
            elif seed != before.get(name):
                print(f"{before.get(name)} -> {seed}: {name}", flush=True)
            seeds[name] = seed or 0
    FILE.write_text(json.dumps(seeds, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
