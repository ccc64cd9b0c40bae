"""The timing of an engine's reads and writes: at the pace of a slow store, or in turns with other writers.

The writer of the last version needs one write for the next, any other writer a failed write, a read and a write. So
without turns, one of eight writers wins for many seconds. A lock in the blob would stop all when its holder dies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jqueue.domain.header import CommitRecord
from jqueue.ports.clock import Clock, Entropy

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


class Turns:
    """The turns of the writers that contend for one object: the writer that committed longest ago is next.

    The writer of the last version needs one write for the next version. All others need a failed write, a read and a
    write. So a writer that has committed lets each writer that committed since its own previous commit go first. It
    waits for about as long as they take, and reads before it writes. A writer whose turn is over tries again at once.
    All writers see the same commit table, so they agree on the order. This is a courtesy: no rule of the protocol
    depends on it, and no clocks are compared.

    Newcomers are not in the table. For them, the writers in the table pause for a while after certain versions. A
    writer that sees a newcomer waits a little, as there may be more.

    A writer that rested is in no turn. If the object had changed when it last went on after a rest, it reads first.

    Args:
        clock: measures times.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._others: list[tuple[str, float]] = []  # the contending writers with their cycles, the oldest commit first
        self._cycle = self._slowest = 0.0  # the own cycle at the last commit, and that of the slowest writer
        self._due = self._last_access = self._last_arrival = self._wait_end = -math.inf
        self._since_version: int | None = None
        self._own_version = self._gaps_through = self._arrived = self._landings = 0
        self._known_writers: set[str] = set()
        self._waits = self._rested = self._reads_first = False

    def pause(self) -> float:
        """Return the seconds until it is time to begin; 0 or less if it is time."""
        return self._due - self._clock.monotonic() if self._waits else 0.0

    def begin(self) -> bool:
        """Note that a commit begins. Return True if it should begin with a read."""
        now = self._clock.monotonic()
        self._rested = now > max(self._last_access, self._due) + RESTED * self._cycle
        if self._rested:
            self._since_version, self._waits = None, False
            return self._reads_first
        self._last_arrival, self._wait_end = now, now + LONGEST_PAUSE
        return self._waits and bool(self._others)

    def read(self, version: int, *, moved: bool) -> None:
        """Note that the object was read: its version, and whether it had changed."""
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
        now = self._clock.monotonic()
        if not (self._waits and self._others) or now >= self._wait_end:
            return None
        if version > self._gaps_through:
            self._gaps_through = version
            if gap := self._gap(version, version):
                return min(gap, self._wait_end - now)
        if newcomers := commits.keys() - self._known_writers:
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

    def landed(self, own: str, commits: Mapping[str, CommitRecord], cycle: float) -> None:
        """Note that the last write has landed.

        Args:
            own: this writer's id.
            commits: the commit table that it wrote.
            cycle: seconds that this writer takes to read and write the blob once.
        """
        version, since = commits[own].version, self._since_version
        self._landings += 1
        since = version - 1 if since is None else since
        others, slowest, turns = [], cycle, 0.0
        if version > since + 1:
            records = [(record.version, writer) for writer, record in commits.items() if record.version > since]
            others = [(writer, commits[writer].cycle) for _, writer in sorted(records) if writer != own]
        if others:  # while one writes, the next one reads: a turn takes half a cycle, and a round at least a whole one
            cycles = [each for _, each in others]
            slowest = max(cycle, *cycles)
            turns = max((cycle + sum(cycles)) / 2, slowest)
        self._others, self._cycle, self._slowest = others, cycle, slowest
        gap = self._gap(version, version + len(others))
        if self._landings == FIRST_GAP:
            gap = max(gap, slowest, min(FIRST_GAP_CYCLES * slowest, FIRST_GAP_SECONDS))
        if gap and not others:
            recent = (
                record.cycle for record in commits.values() if record.version > version - RECENT and record.sequence > 1
            )
            gap = ALONE_GAP * max([gap, *recent])
        window = min(LONGEST_PAUSE, turns + gap)
        self._last_access = self._clock.monotonic()
        self._due = self._last_access + window - (cycle if others else cycle / 2)
        self._waits, self._rested = window > 0.0, False
        self._own_version = self._since_version = version
        self._gaps_through, self._arrived, self._known_writers = version + len(others), 0, set(commits)

    def _gap(self, first: int, last: int) -> float:
        """Return the seconds without writes after some of the versions from `first` to `last`: newcomers get in."""
        step = KNOWN_STEP if self._others else ALONE_STEP
        if last // step == (first - 1) // step:
            return 0.0
        return self._slowest * max(
            16 if count % 32 == 0 else 4 if count % 4 == 2 or (self._others and count % 2) else 1
            for count in range((first - 1) // step + 1, last // step + 1)
        )


FIRST_INTERVAL, LEAST_INTERVAL, LONGEST_INTERVAL = 1.0, 0.001, 10.0
"""Seconds between two writes: after the first refusal, the least (below it there is no pace), and the most."""

SLOWER, HARDLY_SLOWER = 1.25, 1.05
"""Factors by which a refusal lengthens the interval: usually, and for the first refusal if another writer was in the
way. With one factor for both, two writers at one write a second would commit 0.64 times a second, not 0.8 times."""

QUICKER = 0.005
"""Each further commit in a row without a refusal shortens the interval by this share more than the last. Without it,
two writers commit 0.71 times a second, not 0.8 times."""

HELD = 25
"""Number of commits for which a lone writer keeps the interval at which the store has refused it more than once, and
of the last versions in which it must have been alone. Without it, a store that takes one write a second refuses a tenth
of its writes, not a twentieth."""

KEPT = 0.95
"""A writer that waited this share of the interval has kept the pace: timers may fire a little early."""

MOST_REFUSALS = 4
"""Maximum number of refusals in a row that lengthen the pause before the next try, each by up to a quarter of an
interval, if other writers compete. Without it, the store refuses sixteen writers 9 writes for each that lands, not
5."""

AFTER_ANOTHER = 0.5
"""Intervals to wait when a read has found another writer's commit, which came after the previous read. Without it,
the store refuses eight writers 2.9 writes for each that lands, not 2.0."""

MOST_TURNS = 8
"""Maximum number of turns in a round: each writer gets at least every eighth turn, however many others there are.
Without it, a newcomer to a queue that sixty writers have left waits 35 s for its first commit, not 5 s."""

BATCH_WHILE_PACED = 10_000
"""Maximum number of calls in one commit while a store keeps a pace: the same as for a broker."""


class WritePace:
    """The pace at which a store takes writes of one object, learned from its refusals.

    Google Cloud Storage and Cloudflare R2 take one a second. A refusal lengthens the interval between writes, and each
    commit without one shortens it a little, so that it stays near the limit of the store. A store that refuses nothing
    has no pace.

    All writers of the object share its pace. So a writer leaves a turn to each writer that has committed since its own
    last commit. A refusal says little about the store if another writer's commit was in the way.

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
        self._own_version = self._refusals = self._commits_in_a_row = 0
        self._rivals: set[str] = set()
        self._alone = self._limited = False  # True if no other writer commits; if the store refuses again and again
        self._interval_if_moved = 0.0
        self._own_id, self._seen_version, self._passed = "", 0, 0
        self._drawn_place, self._due, self._contended = 0.0, -math.inf, False

    @property
    def shared(self) -> bool:
        """True if other writers take turns with us, so that our last commit is outdated when our turn comes."""
        return self.interval > 0.0 and bool(self._rivals)

    def pause(self) -> float:
        """Return the seconds until our turn to write; 0 or less if it is our turn."""
        if not self.interval:
            return 0.0
        turns = min(MOST_TURNS, 1 + len(self._rivals))
        return self._last_landed + min(LONGEST_INTERVAL, turns * self.interval) - self._clock.monotonic()

    def landed(self, own: str, commits: Mapping[str, CommitRecord]) -> None:
        """Note that the last write has landed.

        Args:
            own: this writer's id.
            commits: the commit table that it wrote.
        """
        version = commits[own].version
        self._own_id, self._seen_version, self._passed, self._drawn_place = own, version, 0, 0.0
        self._contended = False
        if self.interval:
            since = {
                writer for writer, record in commits.items() if writer != own and record.version > self._own_version
            }
            self._rivals = since if self._own_version else set()
            self._commits_in_a_row = 0 if self._refusals else self._commits_in_a_row + 1
            self._alone = all(writer == own or each.version <= version - HELD for writer, each in commits.items())
            seen = (self.sent - self._last_landed) / max(1, version - self._own_version)
            steps = max(0, self._commits_in_a_row - HELD * (self._alone and self._limited))
            self.interval = max(self.interval / 2, min(seen, self.interval / (1 + QUICKER * steps)))
            if self.interval < LEAST_INTERVAL:
                self.interval, self._limited = 0.0, False
        self._last_landed = self._last_change = self.sent
        self._own_version, self._refusals, self._interval_if_moved = version, 0, 0.0

    def wait_after_read(self, version: int, commits: Mapping[str, CommitRecord]) -> float | None:
        """Return the seconds to wait after a read before the next one; None if it is our turn to write.

        The writer that committed longest ago is next, and the others leave it an interval. A writer that has not
        committed yet draws its place at random. No writer waits twice for the same version, so an absent writer is
        skipped.

        Args:
            version: of the object.
            commits: the commit table.
        """
        now = self._clock.monotonic()
        if version != self._seen_version and any(writer != self._own_id for writer in commits):
            place, self._contended = self._place(version, commits), True
            self._passed += place < 1
            self._seen_version = version
            if place < 1 and not self._refusals and not self._rivals:  # the other commit may be old
                return None
            wait = self.interval * min(MOST_TURNS, place + AFTER_ANOTHER / max(1, self._passed))
            self._due = now + min(LONGEST_INTERVAL, wait)
        return self._due - now if now < self._due else None

    def _place(self, version: int, commits: Mapping[str, CommitRecord]) -> float:
        """Number of writers to leave a turn to: each that committed between our last two commits, but not since."""
        if self._own_id in commits:
            return sum(writer in commits and commits[writer].version < self._own_version for writer in self._rivals)
        if not self._drawn_place:
            self._drawn_place = version + self._entropy.jitter(float(min(MOST_TURNS, len(commits))))
        return max(0.0, self._drawn_place - version)

    def refused(self) -> float:
        """Note that the last write came too soon, and return the seconds until the next try."""
        first, self._refusals, self._interval_if_moved = not self._refusals, self._refusals + 1, 0.0
        hardly = self.interval * (HARDLY_SLOWER if first else 1.0)
        near, self._limited = first and self._alone and self._limited, self.interval > 0.0
        if not self.interval:
            self.interval = FIRST_INTERVAL
        elif near or self.sent - self._last_change < KEPT * self.interval:
            self.interval = min(LONGEST_INTERVAL, hardly)
        else:
            self._interval_if_moved = min(LONGEST_INTERVAL, hardly)
            self.interval = min(LONGEST_INTERVAL, self.interval * SLOWER)
        now = self._clock.monotonic()
        due = self._last_landed + self.interval if self._last_landed == self._last_change else now
        in_a_row = min(MOST_REFUSALS, self._refusals - 1) if self._contended else 0
        more = self._entropy.jitter(self.interval * in_a_row / 4)
        return max(due - now, self.interval / 2 - self._entropy.jitter(self.interval / 4) + more)

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
        rows_of_try: seconds that rows took since the last write, or since the commit began.
    """

    WEIGHT = 0.2
    MOST_ROWS = 2.0
    """Largest share of the time for the blob that the rows may add. With more, the other writers would wait long for a
    writer that seldom comes; without rows, a writer that takes 100 ms for them makes 150 commits a minute beside two
    writers that make 2,000, not 400 beside 800."""

    def __init__(self) -> None:
        self._first = self._read = self._write = self._rows = 0.0
        self.rows_of_try: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds for one read and one write, with the rows that are read between them."""
        if self._read or self._write:
            read = self._read or min(self._first or self._write, self._write)
            blob = read + (self._write or read)
        else:
            blob = self._first
        return blob + min(self._rows, self.MOST_ROWS * blob)

    def read(self, seconds: float) -> None:
        """Add the seconds that a read took."""
        if not self._first:
            self._first = seconds
        else:
            self._read += (seconds - self._read) * (self.WEIGHT if self._read else 1.0)

    def write(self, seconds: float) -> None:
        """Add the seconds that a write took."""
        self._write += (seconds - self._write) * (self.WEIGHT if self._write else 1.0)
        self._rows += (self.rows_of_try - self._rows) * self.WEIGHT
        self.rows_of_try = 0.0


class Pacing:
    """Tells an engine when to read and write, and learns from the store's answers.

    Args:
        clock: measures the time between reads and writes.
        entropy: randomises the moments of tries.

    Attributes:
        cycle: time that one read and one write take.
        pace: the pace of the store; it has no interval while the store takes all writes.
        turns: the turns of the writers, used only while the pace has no interval.
        has_neighbours: True if another writer has committed between the last two commits of this one.
    """

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self.cycle: CycleTime = CycleTime()
        self.pace: WritePace = WritePace(clock, entropy)
        self.turns: Turns = Turns(clock)
        self.has_neighbours: bool = False
        self._own_version = 0

    def pause(self) -> float:
        """Return the seconds until our turn to begin; 0 or less if it is our turn."""
        return self.pace.pause() if self.pace.interval else self.turns.pause()

    def begin(self) -> bool:
        """Note that a commit begins. Return True if it should begin with a read."""
        return self.pace.shared if self.pace.interval else self.turns.begin()

    def wait_after_read(self, version: int, commits: Mapping[str, CommitRecord]) -> float | None:
        """Return the seconds to wait after a read before the next one; None if it is our turn to write.

        Args:
            version: of the object.
            commits: the commit table.
        """
        return (
            self.pace.wait_after_read(version, commits)
            if self.pace.interval
            else self.turns.wait_after_read(version, commits)
        )

    def read(self, version: int, *, moved: bool) -> None:
        """Note that the object was read.

        Args:
            version: of the object.
            moved: True if the object had changed.
        """
        if moved:
            self.pace.moved()
        self.turns.read(version, moved=moved)

    def landed(self, writer: str, commits: Mapping[str, CommitRecord]) -> None:
        """Note that the last write has landed.

        Args:
            writer: the id of this writer.
            commits: the commit table that it wrote.
        """
        version = commits[writer].version
        self.has_neighbours = 0 < self._own_version < version - 1
        self._own_version = version
        self.pace.landed(writer, commits)
        self.turns.landed(writer, commits, self.cycle.seconds)

    def refused(self) -> float:
        """Note that the last write came too soon for the store, and return the seconds until the next try."""
        return self.pace.refused()
