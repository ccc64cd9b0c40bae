"""The soak: processes work on one queue while answers get lost and processes are killed, and every call is audited.

    python -m tests.soak --store seaweedfs --seconds 600
    python -m tests.soak --store file --kills 2000 --segments --shared

The journals of the processes are compared with the plain model, which the simulation uses. The exit code is 0 if all is
well, 1 if a promise was not kept, and 2 if the server cannot be started here.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.servers.child import ServerUnavailableError
from tests.soak.places import FILE, SERVERS, place_in
from tests.soak.run import Soak
from tests.soak.worker import Settings

HELD, VIOLATED, UNAVAILABLE = 0, 1, 2
VIOLATIONS_SHOWN = 10
LONGEST = {"azurite": 480.0}
"""Largest number of seconds of a soak on a store.

Azurite cleans up ten minutes after its start and answers no request meanwhile. This took 25 s for 1,400 writes, and
grows with the square of their number.
"""


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=(FILE, *SERVERS), default="seaweedfs", help="where (default: seaweedfs)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the workers work (default: 60)")
    parser.add_argument("--kills", type=int, default=0, help="instead, end after so many kills at random moments")
    parser.add_argument("--processes", type=int, default=4, help="how many work at a time, 1 to 8 (default: 4)")
    parser.add_argument("--rate", type=float, default=0.05, help="the share of broken requests (default: 0.05)")
    parser.add_argument("--seed", type=int, help="of all dice; what happens is the machine's choice as well")
    parser.add_argument("--segments", action="store_true", help="keep waiting jobs in segments beside the queue")
    parser.add_argument(
        "--shared", action="store_true", help="let processes commit for others, and stop some for a while"
    )
    chosen = parser.parse_args(arguments)
    if not 1 <= chosen.processes <= 8 or chosen.seconds <= 0 or chosen.kills < 0 or not 0 <= chosen.rate <= 1:
        parser.error("--processes must be 1 to 8, --seconds more than 0, --kills 0 or more, and --rate 0 to 1")
    if chosen.seconds > LONGEST.get(chosen.store, chosen.seconds):
        parser.error(f"--seconds must be at most {LONGEST[chosen.store]:g} with {chosen.store}, which then hangs")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak, and return the exit code."""
    chosen = _arguments(arguments)
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}")
    settings = Settings(
        chosen.seconds, chosen.kills, chosen.processes, chosen.rate, seed, chosen.segments, shared=chosen.shared
    )
    folder = Path(tempfile.mkdtemp(prefix="jqueue-soak-journals-"))
    try:
        with place_in(chosen.store) as place:
            soak, tenths = Soak(settings, place, folder), 0

            def on_progress(share: float) -> None:
                nonlocal tenths
                if 10 * share >= tenths + 1:
                    tenths = int(10 * share)
                    print(f"{share:.0%}: {soak.fired.total():,} faults, {soak.kills:,} kills", flush=True)

            asyncio.run(soak.run(on_progress))
    except ServerUnavailableError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    _show(soak)
    if soak.violations:
        print(f"A promise was broken. Seed {seed}; the journals of all processes: {folder}", file=sys.stderr)
        return VIOLATED
    shutil.rmtree(folder)
    print("No promise was broken.")
    return HELD


def _show(soak: Soak) -> None:
    """Print the counts and the violations."""
    counts = Counter(f"{call.verb}: {call.outcome}" for call in soak.journals.calls)
    totals = {"commits": soak.journals.landed, "calls": len(soak.journals.calls), "requests": soak.requests}
    totals |= {"faults": soak.fired.total(), "kills": soak.kills}
    for title, count in [*totals.items(), *sorted(counts.items()), *sorted(soak.journals.seen.items())]:
        print(f"{count:>14,}  {title}")
    for violation in soak.violations[:VIOLATIONS_SHOWN]:
        print(f"VIOLATION: {violation}")
    if (more := len(soak.violations) - VIOLATIONS_SHOWN) > 0:
        print(f"and {more:,} more")


if __name__ == "__main__":
    sys.exit(main())
