"""The proof by killing: a process that dies at any system call loses and damages nothing that it has acknowledged.

    python -m tests.kill
    python -m tests.kill --case enqueue --case merge --both
    python -m tests.kill formats --case 'ack on *'
    python -m tests.kill moves --every 100

A child makes a few calls under ptrace, once unharmed, then killed at one system call after the other: `commits` are
calls on a queue in a file, `formats` are calls on queues in older formats, and `moves` take jobs from one queue to
another. The exit code is 0 if all is well, 1 if a promise was not kept, and 2 if system calls cannot be traced here.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.kill.children import warm_up
from tests.kill.commits import CASES, CommitKills
from tests.kill.formats import CALLS, FormatKills
from tests.kill.kills import Kills
from tests.kill.moves import MOVES, MoveKills
from tests.kill.tracing import ViolationError, why_not

HELD, VIOLATED, UNAVAILABLE = 0, 1, 2
WORK: Mapping[str, tuple[Callable[[str, Path], Kills], Sequence[str]]] = {
    "commits": (CommitKills, [*CASES]),
    "formats": (FormatKills, [*CALLS]),
    "moves": (MoveKills, [*MOVES]),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill in all cases, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill", description=__doc__.partition("\n")[0])
    parser.add_argument("work", nargs="?", choices=WORK, default="commits", help="what is killed (default: commits)")
    parser.add_argument("--case", action="append", help="only those of this name or pattern; can be repeated")
    parser.add_argument("--both", action="store_true", help="at the entry and the exit of each system call")
    parser.add_argument("--every", type=int, default=1, help="2 kills at every second point, and so on")
    chosen = parser.parse_args(arguments)
    make, names = WORK[chosen.work]
    if unknown := [each for each in chosen.case or () if not fnmatch.filter(names, each)]:
        parser.error(f"--case {unknown[0]}: the cases are {', '.join(names)}")
    logging.disable(logging.WARNING)  # a read of the state says each time that jobs are in segments
    warm_up()
    if (reason := why_not()) is not None:
        print(f"System calls cannot be traced: {reason}", file=sys.stderr)
        return UNAVAILABLE
    print(f"{'killed in':26} {'kills':>6} {'it was done':>12} {'temporary file':>15} {'missed':>7}")
    for name in [name for name in names if any(fnmatch.fnmatch(name, each) for each in chosen.case or "*")]:
        with tempfile.TemporaryDirectory(prefix="jqueue-kill-") as folder:
            kills = make(name, Path(folder))
            try:
                kills.run(chosen.both, chosen.every)
            except ViolationError as error:
                print(f"VIOLATION: {error}", file=sys.stderr)
                return VIOLATED
        counts = kills.counts
        print(
            f"{name:26} {counts['kills']:6} {counts['done']:12} {counts['temporaries']:15} {counts['missed']:7}",
            flush=True,
        )
    return HELD


if __name__ == "__main__":
    sys.exit(main())
