"""The timing of an engine's reads and writes: in turns with other writers, and at the pace of a slow store.

The writer of the last version needs one write for the next, any other writer a failed write, a read and a write. So
without turns, one of eight writers wins for many seconds. A lock in the blob would stop all when its holder dies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jqueue.domain.header import CommitRecord
from jqueue.ports.clock import Clock, Entropy

FIRST_INTERVAL, LEAST_INTERVAL, LONGEST_INTERVAL = 1.0, 0.001, 10.0
"""Seconds between two writes: after the first refusal, the least (below it there is no pace), and the most."""

SLOWER = 1.05
"""Factor by which a refusal lengthens the interval. With 1.25, four writers at one write a second commit 0.6 times a
second, not 0.8 times."""

QUICKER = 0.005
"""Each further commit in a row without a refusal shortens the interval by this share more than the last. Without it, a
lone writer on a store that takes ten writes a second commits once a second, not seven times."""

HELD = 25
"""Number of commits for which a lone writer keeps the interval at which the store has refused it more than once, and
of the last versions in which it must have been alone. Without it, a store that takes one write a second refuses a sixth
of its writes, not a twentieth."""

AFTER_ANOTHER = 0.5
"""Intervals to wait when a read has found another writer's commit, which came after the previous read. Without it, the
store refuses eight writers 1.6 writes for each that lands, not 0.9. With 1, one of two may wait 70 s for a commit."""

BATCH_LIMIT = 10_000
"""Maximum number of calls in one commit: of a broker, or of a direct queue whose commits must be few."""


class WritePace:
    """The pace at which a store takes writes of one object, learned from its refusals.

    Google Cloud Storage and Cloudflare R2 take one a second. A refusal lengthens the interval between writes, and each
    commit without one shortens it a little, so that it stays near the limit of the store. A store that refuses nothing
    has no pace.

    A refusal says little about the store if another writer's commit was in the way.

    Args:
        clock: measures intervals.
        entropy: randomises the next try, as two writers would otherwise keep colliding.

    Attributes:
        interval: seconds between two writes of the object; 0 while the store takes all writes.
        sent: time of the last sent write, on the monotonic clock.
    """

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self.interval: float = 0.0
        self.sent: float = 0.0
        self._clock = clock
        self._entropy = entropy
        self._last_landed = self._last_change = -math.inf
        self._own_version = self._commits_in_a_row = 0
        self._refused = False  # True if the next write was refused
        self._alone = self._limited = False  # True if no other writer commits; if the store refuses again and again
        self._interval_if_moved = 0.0

    def landed(self, own: str, commits: Mapping[str, CommitRecord]) -> None:
        """Note that the last write has landed.

        Args:
            own: this writer's id.
            commits: the commit table that it wrote.
        """
        version = commits[own].version
        if self.interval:
            taken = min(version - self._own_version, len(commits))  # since the own last commit, one for each writer
            self._commits_in_a_row = 0 if self._refused else self._commits_in_a_row + taken
            self._alone = all(writer == own or each.version <= version - HELD for writer, each in commits.items())
            seen = (self.sent - self._last_landed) / max(1, version - self._own_version)
            steps = max(0, self._commits_in_a_row - HELD * (self._alone and self._limited))
            self.interval = max(self.interval / 2, min(seen, self.interval / (1 + QUICKER * steps)))
            if self.interval < LEAST_INTERVAL:
                self.interval, self._limited = 0.0, False
        self._last_landed = self._last_change = self.sent
        self._own_version, self._refused, self._interval_if_moved = version, False, 0.0

    def refused(self) -> float:
        """Note that the last write came too soon, and return the seconds until the next try."""
        first, before = not self._refused, self.interval
        self._refused, self._limited, self._interval_if_moved = True, before > 0.0, 0.0 if first else before
        if not before:
            self.interval = FIRST_INTERVAL
        elif first or self.sent - self._last_change >= before:
            self.interval = min(LONGEST_INTERVAL, SLOWER * before)
        now = self._clock.monotonic()
        due = self._last_landed + self.interval if self._last_landed == self._last_change else now
        return max(due - now, self.interval / 2 - self._entropy.jitter(self.interval / 4))

    def moved(self) -> None:
        """Note that a read found another writer's commit. If our write was refused, that commit was in its way."""
        if self.interval:
            self._last_change = self._clock.monotonic()
            self.interval, self._interval_if_moved = self._interval_if_moved or self.interval, 0.0


class CycleTime:
    """Moving averages of the seconds that this writer takes to read and to write the blob once.

    The first read also opens the client and its connection. A process that reads once and then only writes would show
    that time for ever, and all writers would leave gaps for it. So the first read counts for at most as much as a
    write. If no write is known yet, it counts for a read and a write, as a connection takes a round trip or more. The
    second read replaces it.

    A try that needs rows of segments reads them between the two. It takes longer, and so loses more races.

    Attributes:
        seconds: for one read and one write, with the rows that are read between them.
        rows_of_try: seconds that rows took since the last write, or since the commit began.
    """

    WEIGHT = 0.2
    MOST_ROWS = 2.0
    """Largest share of the time for the blob that the rows may add. With more, the other writers would wait long for a
    writer that seldom comes; without rows, a writer that takes 100 ms for them makes 150 commits a minute beside two
    writers that make 2,000, not 400 beside 800."""

    def __init__(self) -> None:
        self._first = self._read = self._write = self._rows = 0.0
        self.seconds: float = 0.0
        self.rows_of_try: float = 0.0

    def _add_up(self) -> None:
        if self._read or self._write:
            read = self._read or min(self._first or self._write, self._write)
            blob = read + (self._write or read)
        else:
            blob = self._first
        self.seconds = blob + min(self._rows, self.MOST_ROWS * blob)

    def read(self, seconds: float) -> None:
        """Add the seconds that a read took."""
        if not self._first:
            self._first = seconds
        else:
            self._read += (seconds - self._read) * (self.WEIGHT if self._read else 1.0)
        self._add_up()

    def write(self, seconds: float) -> None:
        """Add the seconds that a write took."""
        self._write += (seconds - self._write) * (self.WEIGHT if self._write else 1.0)
        self._rows += (self.rows_of_try - self._rows) * self.WEIGHT
        self.rows_of_try = 0.0
        self._add_up()


PATIENCE = 1.5
"""Cycles to wait for an absent writer before its turn is skipped: one failed write, one read, one write. Without
patience, four writers on a store 30 ms away send 1.3 failed writes for each that lands, not 0.05."""

RESTED = 2.0
"""Cycles without a read or write after which a writer counts as idle. If no writer did, eight writers of single
commits would make 6 commits a second, not 11."""

ALONE_STEP, KNOWN_STEP = 128, 64
"""Versions between two gaps for newcomers: with one writer, and with several. Without gaps, a newcomer of 150 ms
beside writers of 30 ms gets in after 33 s, not after 6 to 11 s."""

FIRST_GAP, FIRST_GAP_CYCLES, FIRST_GAP_SECONDS = 2, 4.0, 0.15
"""Commits after which a writer leaves its first gap, and the length of that gap: the cycles of the slowest known
writer, up to the seconds, but at least one cycle. If many writers begin at once, the others have lost one race by
then, and may be slower than the known ones. Without the gap, four writers on a store 150 ms away lose twice as many
races. With a gap of one cycle, two writers of 100 ms beside two of 20 ms wait up to 3.8 s for a commit, not 2.2 s."""

ALONE_GAP = 1.75
"""Factor that lengthens the gap of a lone writer, as no round is added to it: time for one failed write, one read
and one write. Without it, a newcomer of 150 ms beside one writer of 30 ms gets in after 20 s, not after 11 s."""

RECENT = 1024
"""Number of versions for which the gaps of a lone writer last as long as the slowest writer needs that committed in
them. Without it, in 3 of 100 runs of two minutes a writer five times slower than the other makes 2 commits or fewer.
A writer whose only try landed does not count: it lost no race, and most such processes have ended."""

LONGEST_PAUSE = 2.0
"""Maximum seconds that a writer leaves to others, whatever the commit table says. It is only a bound, not tuned."""


class Pacing:
    """Tells an engine when to read and write: among contending writers, the writer with the oldest commit is next.

    The writer of the last version needs one write for the next version. All others need a failed write, a read and a
    write. So a writer that has committed lets each writer that committed since its own previous commit go first. It
    waits for about as long as they take, and reads before it writes. A writer whose turn is over tries again at once.
    All writers see the same commit table, so they agree on the order. This is a courtesy: no rule of the protocol
    depends on it, and no clocks are compared.

    Newcomers are not in the table. For them, the writers in the table pause for a while after certain versions. A
    writer that sees a newcomer waits a little, as there may be more.

    A writer that rested is in no turn. If the object had changed when it last went on after a rest, it reads first.

    If the store keeps a pace, a turn takes at least its interval. Then no gap is left to newcomers: the store refuses
    some writes of each writer, so that a newcomer gets in.

    Args:
        clock: measures times.
        entropy: randomises the next try of a refused write.

    Attributes:
        cycle: time that one read and one write take.
        pace: the pace of the store; it has no interval while the store takes all writes.
        has_neighbours: True if another writer has committed between the last two commits of this one.
    """

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self.cycle: CycleTime = CycleTime()
        self.pace: WritePace = WritePace(clock, entropy)
        self.has_neighbours: bool = False
        self._clock = clock
        self._others: list[tuple[str, float]] = []  # the contending writers with their cycles, the oldest commit first
        self._cycle = self._slowest = 0.0  # the own cycle at the last commit, and that of the slowest writer
        self._due = self._last_access = self._last_arrival = self._wait_end = self._free_at = -math.inf
        self._since_version: int | None = None
        self._own_version = self._seen_version = self._gaps_through = self._arrived = self._landings = 0
        self._known_writers: set[str] = set()
        self._waits = self._rested = self._reads_first = False

    def pause(self) -> float:
        """Return the seconds until it is time to begin; 0 or less if it is time."""
        return self._due - self._clock.monotonic() if self._waits else 0.0

    def begin(self) -> bool:
        """Note that a commit begins. Return True if it should begin with a read."""
        now = self._clock.monotonic()
        self._rested = now > max(self._last_access, self._due) + RESTED * max(self._cycle, 2 * self.pace.interval)
        if self._rested:
            self._since_version, self._waits = None, False
            return self._reads_first
        if not (self._waits and self._others):
            return False
        self._last_arrival, self._wait_end = now, now + self._longest_pause
        return True

    def read(self, version: int, *, moved: bool) -> None:
        """Note that the object was read: its version, and whether it had changed."""
        if moved:
            self.pace.moved()
        if self._rested and self._last_access > -math.inf:
            self._reads_first = moved
        self._rested = False
        self._last_access = self._clock.monotonic()
        if self._since_version is None:
            self._since_version = version

    def wait_after_read(self, version: int, commits: Mapping[str, CommitRecord]) -> float | None:
        """Return the seconds to wait after a read before the next one; None if it is our turn to write.

        Args:
            version: of the object.
            commits: the commit table.
        """
        now, before = self._clock.monotonic(), self._seen_version
        self._seen_version = version
        if 0 < before < version:
            self._free_at = now + AFTER_ANOTHER * self.pace.interval
        wait = self._wait_for_others(version, commits, now)
        return self._free_at - now if wait is None and now < self._free_at else wait

    def _wait_for_others(self, version: int, commits: Mapping[str, CommitRecord], now: float) -> float | None:
        if not (self._waits and self._others) or now >= self._wait_end:
            return None
        if version > self._gaps_through:
            self._gaps_through = version
            if gap := self._gap(version, version):
                return min(gap, self._wait_end - now)
        newcomers = commits.keys() - self._known_writers
        if newcomers and not self.pace.interval:
            self._known_writers |= newcomers
            return min(max(commits[writer].cycle for writer in newcomers), self._wait_end - now)
        others = self._others
        for place, (writer, _) in enumerate(others[self._arrived :], self._arrived + 1):
            if writer in commits and commits[writer].version > self._own_version:
                self._arrived, self._last_arrival = place, now  # it has waited for the writers before it already
        missing = [cycle for _, cycle in others[self._arrived :]]
        if not missing or now - self._last_arrival >= PATIENCE * max(missing):
            return None
        pause = sum(missing[1:]) / 2 + max(0.0, missing[0] / 4 - self._cycle / 2)
        return min(pause, max(0.0, self._wait_end - now))

    def landed(self, own: str, commits: Mapping[str, CommitRecord]) -> None:
        """Note that the last write has landed.

        Args:
            own: this writer's id.
            commits: the commit table that it wrote.
        """
        self.pace.landed(own, commits)
        version, since, cycle = commits[own].version, self._since_version, self.cycle.seconds
        self.has_neighbours = 0 < self._own_version < version - 1
        self._landings += 1
        since = version - 1 if since is None else since
        others, turns = [], self.pace.interval
        slowest = max(cycle, 2 * turns)  # at the pace of the store, a cycle is two writes at least
        if version > since + 1:
            records = [(record.version, writer) for writer, record in commits.items() if record.version > since]
            others = [(writer, max(commits[writer].cycle, 2 * turns)) for _, writer in sorted(records) if writer != own]
        if others:  # while one writes, the next one reads: a turn takes half a cycle, and a round at least a whole one
            cycles = [slowest, *(each for _, each in others)]
            slowest = max(cycles)
            turns = max(sum(cycles) / 2, slowest)
        self._others, self._cycle, self._slowest = others, cycle, slowest
        gap = self._gap(version, version + len(others))
        if self._landings == FIRST_GAP and not self.pace.interval:
            gap = max(gap, slowest, min(FIRST_GAP_CYCLES * slowest, FIRST_GAP_SECONDS))
        if gap and not others:
            recent = (
                record.cycle for record in commits.values() if record.version > version - RECENT and record.sequence > 1
            )
            gap = ALONE_GAP * max([gap, *recent])
        window = min(self._longest_pause, turns + gap)
        self._last_access = self._clock.monotonic()
        self._due = self._last_access + window - (cycle if others else cycle / 2)
        self._waits, self._rested = window > 0.0, False
        self._own_version = self._since_version = self._seen_version = version
        self._gaps_through, self._arrived, self._known_writers = version + len(others), 0, set(commits)

    def _gap(self, first: int, last: int) -> float:
        """Return the seconds without writes after some of the versions from `first` to `last`: newcomers get in."""
        step = KNOWN_STEP if self._others else ALONE_STEP
        if self.pace.interval or last // step == (first - 1) // step:
            return 0.0
        return self._slowest * max(
            16 if count % 32 == 0 else 4 if count % 4 == 2 or (self._others and count % 2) else 1
            for count in range((first - 1) // step + 1, last // step + 1)
        )

    @property
    def _longest_pause(self) -> float:
        return LONGEST_INTERVAL if self.pace.interval else LONGEST_PAUSE
