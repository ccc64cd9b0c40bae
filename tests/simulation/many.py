"""Many seeds, one after the other or on several cores."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.failure import describe, shorten
from tests.simulation.history import Violation
from tests.simulation.runner import Report, Settings, run_seed

SEEDS_AT_ONCE = 50
"""Number of seeds given to a process at a time."""

SEEDS_PER_COLLECTION = 5
"""Number of seeds between garbage collections. Left alone, Python would collect hundreds of times in each seed."""

Failed = tuple[int, int]
"""A seed, and the number of the rule that it broke."""


def run_seeds(seeds: Iterable[int], settings: Settings | None = None) -> Report:
    """Run many seeds, and audit them.

    Raises:
        Violation: a rule is broken; the text shows the seed, the shortest schedule found, and the versions around it.
    """
    settings = settings or Settings()
    report, failures = _run_lot(settings, seeds, stops=True)
    for seed, rule in failures:
        raise Violation(rule, explain(seed, rule, settings))
    return report


def run_in_parallel(
    first: int, count: int, settings: Settings, processes: int
) -> Iterator[tuple[Report, list[Failed]]]:
    """Run `count` seeds on several cores. Yield a report for each lot, and the failures in it.

    Args:
        first: the first seed.
        count: number of seeds.
        settings: settings of all seeds; `make_storage` must be importable by name.
        processes: number of processes to use at once.
    """
    starts = range(first, first + count, SEEDS_AT_ONCE)
    lots = [range(start, min(start + SEEDS_AT_ONCE, first + count)) for start in starts]
    if processes == 1:
        yield from (_run_lot(settings, lot) for lot in lots)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(functools.partial(_run_lot, settings), lots)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def explain(seed: int, rule: int, settings: Settings) -> str:
    """Describe a failing seed, after making its schedule short."""
    shortest = shorten(seed, settings, rule)
    text = describe(seed, shortest)
    return f"{text}\n\n{len(shortest.left_out)} other events of the seed are left out here: it breaks without them."


def _run_lot(settings: Settings, lot: Iterable[int], *, stops: bool = False) -> tuple[Report, list[Failed]]:
    """Run seeds, all of them or up to the first failure."""
    report, failures = Report(), list[Failed]()
    for seed in _collecting_between(lot):
        try:
            report.add(run_seed(seed, settings))
        except Violation as violation:
            failures.append((seed, violation.rule))
            if stops:
                break
    return report, failures


def _collecting_between(seeds: Iterable[int]) -> Iterator[int]:
    """Collect garbage between seeds, and not while one runs."""
    enabled = gc.isenabled()
    gc.freeze()  # objects that exist by now stay: the collector need not search them
    try:
        for number, seed in enumerate(seeds, 1):
            gc.disable()
            yield seed
            if number % SEEDS_PER_COLLECTION == 0:
                gc.collect()
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
