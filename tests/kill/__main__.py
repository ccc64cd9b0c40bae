"""The proof by killing: a process that dies at any instruction loses and damages nothing that a file has acknowledged.

    python -m tests.kill --cycles 5000
    python -m tests.kill --cycles 0 --commit enqueue --commit ack

First several processes work on one file and are killed at random moments; every kill is a cycle. Then single commits
are killed at the entry and at the exit of each of their system calls. `ledger.py` and `system_calls.py` have the
checks. The exit code is 0 if all is well, 1 if a promise was not kept, and 2 if system calls cannot be traced here.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kill.adapters import ADAPTERS, REAL
from tests.kill.children import warm_up
from tests.kill.commits import COMMITS
from tests.kill.ledger import ViolationError
from tests.kill.random_kills import RandomKills
from tests.kill.system_calls import Hits, SystemCallKills
from tests.kill.tracing import why_not

try:
    from rich.console import Console

    from tests.kill.report import Report
except ImportError:
    sys.exit("This tool shows its progress with rich: pip install 'jqueue[examples]', or use `make kill`")

DESCRIPTION = "Kill processes that use a queue in a file, at random moments and at every system call, and audit it."
HELD, VIOLATED, UNAVAILABLE = 0, 1, 2


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kill", description=DESCRIPTION)
    parser.add_argument("--cycles", type=int, default=300, help="how many kills at random moments (default: 300)")
    parser.add_argument("--seed", type=int, help="of all dice; the moments of death are the machine's as well")
    parser.add_argument("--processes", type=int, default=4, help="how many work at a time (default: 4)")
    parser.add_argument(
        "--system-calls",
        choices=("both", "entry", "none"),
        default="both",
        help="kill at entry and exit of each system call (the default), at each entry and after the answer, or not",
    )
    parser.add_argument("--commit", action="append", choices=COMMITS, help="only this one; can be repeated")
    parser.add_argument(
        "--adapter", choices=ADAPTERS, default=REAL, help="one that is broken on purpose, to see that it is found"
    )
    parser.add_argument(
        "--segments", action="store_true", help="kill at random while waiting jobs are kept in small segments"
    )
    chosen = parser.parse_args(arguments)
    if chosen.cycles < 0 or chosen.processes < 1:
        parser.error("--cycles must be 0 or more, and --processes 1 or more")
    if not chosen.cycles and chosen.system_calls == "none":
        parser.error("--cycles 0 and --system-calls none leave nothing to kill")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all kills, and return the exit code."""
    chosen = _arguments(arguments)
    console = Console(highlight=False)
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    console.print(f"seed {seed}")
    warm_up()
    if chosen.system_calls != "none" and (reason := why_not()) is not None:
        _say(f"System calls cannot be traced: {reason}. Without them: --system-calls none")
        return UNAVAILABLE
    folder = Path(tempfile.mkdtemp(prefix="jqueue-kill-"))
    random_kills = RandomKills(
        folder / "random", ADAPTERS[chosen.adapter], seed, chosen.processes, segments=chosen.segments
    )
    hits: dict[str, Hits] = {}
    report = Report(console)
    try:
        with report:
            seconds = _kill_at_random(random_kills, chosen.cycles, report)
            if chosen.system_calls != "none":
                _kill_at_system_calls(folder, chosen, hits, report)
    except (ViolationError, TimeoutError) as error:
        (folder / "journal").write_bytes(random_kills.journal())
        lost = f" Jobs lost: {error.lost}." if isinstance(error, ViolationError) and error.lost else ""
        _say(f"VIOLATION: {error}.{lost} Seed {seed}; kept for you: {folder}")
        return VIOLATED
    except BaseException:
        _say(f"It did not end. Seed {seed}; kept for you: {folder}")
        raise
    shutil.rmtree(folder)
    report.summary(seconds, random_kills.figures, random_kills.ledger, hits)
    return HELD


def _kill_at_random(kills: RandomKills, cycles: int, report: Report) -> float:
    """Kill at random moments, and return the seconds that it took."""
    if not cycles:
        return 0.0
    started = time.monotonic()

    def show() -> None:
        detail = f"{kills.ledger.acknowledged.total():,} acknowledged"
        report.show("killed at random", min(kills.figures.kills, cycles), cycles, detail)

    kills.run(cycles, show)
    return time.monotonic() - started


def _kill_at_system_calls(folder: Path, chosen: argparse.Namespace, hits: dict[str, Hits], report: Report) -> None:
    for name in dict.fromkeys(chosen.commit or COMMITS):
        commit, hit = COMMITS[name], Hits()

        def show(done: int, total: int, name: str = name, hit: Hits = hit) -> None:
            report.show(f"killed in {name}", done, total, f"{hit.kills:,} kills")

        is_real = chosen.adapter == REAL
        kills = SystemCallKills(folder / name, ADAPTERS[chosen.adapter], commit, hit, is_real=is_real)
        kills.run(chosen.system_calls == "both", show)
        hits[name] = hit


def _say(message: str) -> None:
    sys.stdout.flush()
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
