"""A piece of work that is killed at each of its system calls, each time from the same beginning: the common frame.

A child does the work under ptrace. First it is not killed, which tells the points. Then it is killed at one point after
the other, and what it left is checked each time.
"""

from __future__ import annotations

import asyncio
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tests.kill.children import warm_up
from tests.kill.ledger import ViolationError
from tests.kill.tracing import Point, Trace, trace_call, why_not

SECONDS = 60.0
TRIES = 5
HELD, VIOLATED, UNAVAILABLE = 0, 1, 2

EVERY_COMMIT = frozenset({"openat", "flock", "write", "fsync", "pwrite64", "rename", "close"})
"""System calls of every commit to a file. If one is not seen, the wrong process is traced."""

EVERY_CREATION = frozenset({"openat", "write", "fsync", "link", "unlink", "close"})
"""System calls of every creation of an object beside a file."""

_LIKE = {"renameat": "rename", "renameat2": "rename", "linkat": "link", "unlinkat": "unlink", "mkdirat": "mkdir"}

ON_FILES = (EVERY_COMMIT | EVERY_CREATION) - {"close"} | {
    "read",
    "pread64",
    "lseek",
    "fstat",
    "newfstatat",
    "getdents64",
    "mkdir",
    "fchown",
}
"""System calls that every run makes alike. Others occur by chance, as threads wait, start or are reused. So does the
`close` of a replaced file, which its thread makes after the answer: at times before the child acknowledges, at times
after it, and that of a call before this one may come late."""


def name_of(point: Point) -> str:
    """Return the name of a system call, one for all variants of it."""
    return _LIKE.get(point.name, point.name)


class TracedKills(ABC):
    """The kills in one piece of work.

    Args:
        name: name of the work.

    Attributes:
        expected: system calls that the work must make.
        must_return: True if a call of `ON_FILES` must occur in every run.
    """

    expected: frozenset[str] = frozenset()
    must_return = True

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def begin(self) -> None:
        """Put the folder into the state in which the work begins. The parent does that before each child."""

    @abstractmethod
    async def work(self, descriptor: int) -> None:
        """Do the work, in the child: raise the signal START, then do it, then write a byte into the descriptor."""

    @abstractmethod
    def check(self, acknowledged: bool) -> bool:
        """Check what is there after the child has ended. Return True if the work was done.

        Raises:
            ViolationError: something is wrong.
        """

    def points(self) -> list[Point]:
        """Do the work unharmed, and list the points at which it can be killed, in their order.

        Raises:
            ViolationError: the work fails without a kill, or makes other system calls than expected.
        """
        for _ in range(2):  # the second run and all later ones find everything imported
            trace, acknowledged = self._trace(None)
            if trace.code != 0 or not acknowledged:
                raise ViolationError(f"{self.name} ended with {trace.code}, though nobody killed it")
        if unseen := self.expected - {name_of(point) for point in trace.points}:
            raise ViolationError(f"{self.name} was watched, and made no call of {', '.join(sorted(unseen))}")
        return trace.points

    def kill_at(self, point: Point) -> bool | None:
        """Kill the work at a point and check. Return True if it was done; None if chance did not bring the point again.

        Raises:
            ViolationError: something is wrong, or the child does not come to that point again, though it must.
        """
        by_chance = name_of(point) not in ON_FILES
        for _ in range(1 if by_chance else TRIES):
            trace, acknowledged = self._trace(point)
            if not trace.killed:
                continue
            try:
                return self.check(acknowledged)
            except (ViolationError, TimeoutError) as error:
                raise ViolationError(f"{self.name}, killed at {point}: {error}") from error
        if by_chance or not self.must_return:
            return None
        raise ViolationError(f"{self.name}: {point} was there once, and not again in {TRIES} runs")

    def run(
        self, both: bool, on_progress: Callable[[int, int], None] = lambda done, total: None, every: int = 1
    ) -> tuple[int, int]:
        """Kill at points, the last one first, as kills after the answer tell most.

        Args:
            both: True to kill at entry and exit of each call; otherwise at each entry and after the answer.
            on_progress: called with the number of points done and of all points.
            every: 1 to kill at each of these points, 2 at every second one before the answer, and so on. Chance
                decides which is the first.

        Returns:
            The number of kills, and of those after which the work was done.
        """
        *before, answered = self.points()
        entries = [point for point in before if both or not point.at_exit]
        chosen = [*entries[random.randrange(every) :: every], answered]
        kills = landed = 0
        for done, point in enumerate(reversed(chosen), 1):
            found = self.kill_at(point)
            kills, landed = kills + (found is not None), landed + bool(found)
            on_progress(done, len(chosen))
        return kills, landed

    def _trace(self, point: Point | None) -> tuple[Trace, bool]:
        self.begin()
        return trace_call(lambda descriptor: asyncio.run(self.work(descriptor)), point, SECONDS, self.name)


def run_all(several: Sequence[TracedKills], both: bool, done: str, every: int = 1) -> int:
    """Kill in several pieces of work, say so, and return the exit code of a program.

    Args:
        several: the kills in each.
        both: as in `TracedKills.run`.
        done: a clause that says that the work was done.
        every: as in `TracedKills.run`.
    """
    warm_up()
    if (reason := why_not()) is not None:
        print(reason, file=sys.stderr)
        return UNAVAILABLE
    for kills in several:
        try:
            count, landed = kills.run(both, every=every)
        except ViolationError as error:
            print(f"VIOLATION: {error}", file=sys.stderr)
            return VIOLATED
        print(f"{kills.name:10} {count:4} kills, and {done} after {landed}", flush=True)
    return HELD
