"""The pauses of a writer: backoff after failures, and the pace that a store keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jqueue.domain.durations import exponential_bound
from jqueue.domain.models import CommitRecord
from jqueue.ports.clock import Clock, Entropy

FAILURE_BASE, FAILURE_CAP = 0.05, 5.0
THROTTLED_BASE, THROTTLED_CAP = 0.5, 10.0

FIRST_INTERVAL, LEAST_INTERVAL, LONGEST_INTERVAL = 1.0, 0.001, 10.0
"""Seconds between two writes: after the first refusal, the least (below it there is no pace), and the most."""

SLOWER, HARDLY_SLOWER = 1.25, 1.05
"""Factors by which a refusal lengthens the interval: usually, and for the first refusal if another writer was in the
way. With one factor for both, two writers at one write a second would commit 0.64 times a second, not 0.8 times."""

QUICKER = 0.005
"""Each further commit in a row without a refusal shortens the interval by this share more than the last. Without it,
two writers commit 0.71 times a second, not 0.8 times."""

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


class Backoff:
    """The pauses between the tries of one commit: growing, with full jitter."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._failures = 0

    def failure(self, *, throttled: bool) -> float:
        """Return the seconds to wait after a failure of the store; more if it asked for fewer requests.

        Args:
            throttled: True if the store asked for fewer requests.
        """
        self._failures += 1
        base, cap = (THROTTLED_BASE, THROTTLED_CAP) if throttled else (FAILURE_BASE, FAILURE_CAP)
        return self._entropy.jitter(exponential_bound(self._failures, base, cap))


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
        self.interval = 0.0
        self.sent = 0.0
        self._clock = clock
        self._entropy = entropy
        self._last_landed = self._last_change = -math.inf
        self._own_version = self._refusals = self._commits_in_a_row = 0
        self._rivals: set[str] = set()
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
            seen = (self.sent - self._last_landed) / max(1, version - self._own_version)
            self.interval = max(self.interval / 2, min(seen, self.interval / (1 + QUICKER * self._commits_in_a_row)))
            if self.interval < LEAST_INTERVAL:
                self.interval = 0.0
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
        if not self.interval:
            self.interval = FIRST_INTERVAL
        elif self.sent - self._last_change < KEPT * self.interval:
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
        self.rows_of_try = 0.0

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
