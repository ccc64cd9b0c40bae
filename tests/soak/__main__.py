"""The soak: processes work long on one queue in a real store while answers get lost, and every call is audited.

    python -m tests.soak --store seaweedfs --seconds 600
    python -m tests.soak --store seaweedfs --race 20

`ledger.py` has the checks. The exit code is 0 if all is well, 1 if a promise was not kept, and 2 if the server cannot
be started here.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.object_stores import Store
from tests.servers.child import ServerUnavailableError
from tests.soak.broken import BROKEN
from tests.soak.places import SERVERS, running
from tests.soak.race import race
from tests.soak.run import Settings, Soak

try:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tests.soak.report import show, show_race
except ImportError:
    sys.exit("This tool shows its progress with rich: pip install 'jqueue[examples]', or use `make soak`")

DESCRIPTION = "Have processes use one queue in a real store while answers get lost, and audit their answers."
HELD, VIOLATED, UNAVAILABLE = 0, 1, 2
LONGEST = {"azurite": 480.0}
"""Largest number of seconds of a soak on a store.

Azurite cleans up ten minutes after its start and answers no request meanwhile. This took 25 s for 1,400 writes, and
grows with the square of their number.
"""

COMMITS = 20
"""Number of commits of each writer in a race."""


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=DESCRIPTION)
    parser.add_argument("--store", choices=SERVERS, default="seaweedfs", help="which server (default: seaweedfs)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the workers work (default: 60)")
    parser.add_argument("--processes", type=int, default=4, help="how many work at a time, 1 to 8 (default: 4)")
    parser.add_argument("--rate", type=float, default=0.05, help="the share of broken requests (default: 0.05)")
    parser.add_argument("--seed", type=int, help="of all dice; what happens is the machine's choice as well")
    parser.add_argument("--kill", action="store_true", help="kill a worker now and then; another takes its place")
    parser.add_argument("--broken", choices=BROKEN, default="", help="break it on purpose, to see that it is found")
    parser.add_argument("--race", type=int, metavar="WRITERS", help="instead, so many writers race to commit")
    chosen = parser.parse_args(arguments)
    if not 1 <= chosen.processes <= 8 or chosen.seconds <= 0 or not 0 <= chosen.rate <= 1:
        parser.error("--processes must be 1 to 8, --seconds more than 0, and --rate 0 to 1")
    if chosen.seconds > LONGEST.get(chosen.store, chosen.seconds):
        parser.error(
            f"--seconds must be at most {LONGEST[chosen.store]:g} with {chosen.store}, which then hangs itself"
        )
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak or a race, and return the exit code."""
    chosen = _arguments(arguments)
    console = Console(highlight=False)
    try:
        with running(chosen.store) as store:
            return _race(chosen, store, console) if chosen.race else _soak(chosen, store, console)
    except ServerUnavailableError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE


def _soak(chosen: argparse.Namespace, store: Store, console: Console) -> int:
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    console.print(f"seed {seed}")
    settings = Settings(
        chosen.store, chosen.seconds, chosen.processes, chosen.rate, seed, kill=chosen.kill, broken=chosen.broken
    )
    folder = Path(tempfile.mkdtemp(prefix="jqueue-soak-"))
    soak, began = Soak(settings, store, folder), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=12), TextColumn("{task.fields[detail]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(chosen.store, total=chosen.seconds, detail="")

        def on_progress(passed: float) -> None:
            detail = (
                f"{soak.ledger.version:,} commits, {soak.faults:,} faults, {len(soak.ledger.violations)} violations"
            )
            progress.update(task, completed=passed, detail=detail)

        try:
            asyncio.run(soak.run(on_progress))
        except BaseException:
            print(f"It did not end. Seed {seed}; kept for you: {folder}", file=sys.stderr)
            raise
    show(console, soak, time.monotonic() - began)
    if soak.ledger.violations:
        print(f"A promise was broken. Seed {seed}; kept for you: {folder}", file=sys.stderr)
        return VIOLATED
    shutil.rmtree(folder)
    console.print("No promise was broken.")
    return HELD


def _race(chosen: argparse.Namespace, store: Store, console: Console) -> int:
    finish = asyncio.run(race(store, chosen.race, COMMITS))
    show_race(console, finish)
    return HELD if finish.is_fair else VIOLATED


if __name__ == "__main__":
    sys.exit(main())
