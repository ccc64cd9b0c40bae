"""The probes of `jqueue doctor`: one function for each promise of a store that a queue rests on.

Nothing here prints. Each content that is written is unlike every other. So a read afterwards tells which write landed,
even if its answer was a refusal: a client may send a write again, and be refused because of its own first try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from jqueue.cli.scratch import TRIES, Found, ScratchObject, ScratchSpace, run_concurrently, with_retries
from jqueue.domain.errors import CASConflictError, StorageError, StorageFatalError, StorageThrottledError, shown
from jqueue.domain.printable import counted
from jqueue.ports.clock import Clock
from jqueue.ports.storage import SupportsReadIfChanged, SupportsStoreTime

CREATORS = 20
MANY_BYTES = bytes(range(256)) * 256
SOME_ETAG = "0123456789abcdef0123456789abcdef"
CLOCK_TOLERANCE = 2.0
"""Seconds of difference to ignore: an answer's date names a whole second, and is as old as the answer's way here."""

HONOUR = (
    "Use another store, or a newer version of this one: it must honour If-Match and If-None-Match. If there is a proxy "
    "or a gateway in front of it, try the store's own endpoint."
)
PROXY = "Look for a proxy, a gateway or a cache that changes requests or answers, and try the store's own endpoint."
CLOCK = "Set the clock of this machine (NTP): stores refuse requests from clocks that are minutes off."
NO_TIME = (
    "Keep the clocks of all machines that use the queue within a minute of each other: they set the times of its jobs."
)
READS = "Raise poll_interval if consumers mostly wait: each poll reads the whole queue."


class Outcome(Enum):
    """The outcome of a probe."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"


@dataclass(frozen=True)
class Result:
    """The result of a probe.

    Attributes:
        outcome: a failure means that no queue is safe here.
        detail: the observation.
        harm: the harm to a queue, as the rest of "It would …".
        advice: the steps to take.
    """

    outcome: Outcome
    detail: str
    harm: str = ""
    advice: tuple[str, ...] = ()


def passed(detail: str) -> Result:
    """Return the result of a promise that is kept."""
    return Result(Outcome.PASSED, detail)


def noted(detail: str, advice: str = "") -> Result:
    """Return a result that is safe, and worth knowing."""
    return Result(Outcome.NOTED, detail, advice=(advice,) if advice else ())


def failed(detail: str, harm: str, *advice: str) -> Result:
    """Return the result of a store that is not safe. Without advice, the store must honour its conditions."""
    return Result(Outcome.FAILED, detail, harm, advice or (HONOUR,))


class NotTriedError(Exception):
    """A probe needs something that an earlier probe has found missing. The message names it."""


class ProbeContext:
    """The tools of the probes, and the facts that one probe has found out for the next.

    Args:
        space: makes the objects to try.
        clock: measures the time, and is compared with the store's.
        quick: True if no rows of segments are read.
        tell: called with the progress of a long probe, in words.

    Attributes:
        main: an object that several probes use, one after the other.
        matches: False if no write that names the right etag goes through; `right_etag` finds out.
        etag: the last etag of `main` that was seen.
    """

    def __init__(
        self, space: ScratchSpace, clock: Clock, *, quick: bool = False, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        self.space = space
        self.clock = clock
        self.quick = quick
        self.tell = tell
        self.main = space.new_object()
        self.matches = True
        self.etag: str | None = None
        self._bodies = 0

    def body(self) -> bytes:
        """Return a content unlike all others."""
        self._bodies += 1
        return b'{"jqueue doctor": "%s", "body": %d}' % (self.space.entropy.new_id().encode(), self._bodies)

    async def read(self, thing: ScratchObject) -> Found:
        """Return the content and the etag of an object."""
        found = await with_retries(thing.read, self.space.entropy)
        if thing is self.main:
            self.etag = found[1] or self.etag
        return found

    async def put(self, thing: ScratchObject, content: bytes, if_match: str | None = None) -> str | None:
        """Write, and return the etag if the write landed, even if the answer was a conflict; None if it was refused."""
        try:
            return await with_retries(lambda: thing.write(content, if_match), self.space.entropy)
        except CASConflictError:
            found, etag = await self.read(thing)
            return etag if found == content else None

    async def current(self) -> str:
        """Return the etag of `main`, which is created if it does not exist."""
        etag = (await self.read(self.main))[1] or await self.put(self.main, self.body())
        if etag is None:
            self.matches = False
            raise NotTriedError("no object can be created")
        return etag

    def need_matches(self) -> None:
        """Raise NotTriedError if no write that names the right etag goes through."""
        if not self.matches:
            raise NotTriedError("no write with an etag succeeds")


async def create_only(context: ProbeContext) -> Result:
    """Check that a write without an etag creates an object, and never replaces one."""
    first = context.body()
    if await context.put(context.main, first) is None:
        return failed("the first create was refused, though no object existed", "never start: it cannot be created")
    harm = "lose jobs: if two programs create a queue, the second erases the jobs of the first"
    if await context.put(context.main, context.body()) is not None:
        return failed("accepted: it overwrote the existing object", harm)
    if (await context.read(context.main))[0] != first:
        return failed("refused, but the content of the first create is gone", harm)
    return passed("refused")


async def right_etag(context: ProbeContext) -> Result:
    """Check that a write that names the etag of the object goes through."""
    etag, content = await context.current(), context.body()
    if await context.put(context.main, content, etag) is None:
        context.matches = False
        weak = "a proxy has made the etag weak" if etag.startswith("W/") else f"etag {shown(etag)}"
        return failed(
            f"refused, though there was no other write ({weak})", "stand still: the store refuses every change", PROXY
        )
    if (await context.read(context.main))[0] != content:
        context.matches = False
        return failed("acknowledged, but not stored", "lose jobs that it has acknowledged")
    return passed("accepted")


async def stale_etag(context: ProbeContext) -> Result:
    """Check that a write that names an earlier etag is refused."""
    context.need_matches()
    earlier, later = await context.current(), context.body()
    if await context.put(context.main, later, earlier) is None:
        return failed(
            "a write with the right etag was refused", "stall at times: the store refuses valid changes", PROXY
        )
    harm = "lose jobs and run others twice: a program overwrites what another wrote since it read"
    if await context.put(context.main, context.body(), earlier) is not None:
        return failed("accepted: it overwrote a newer write", harm)
    if (await context.read(context.main))[0] != later:
        return failed("refused, but the object has changed", harm)
    return passed("refused, and nothing changed")


async def absent_object(context: ProbeContext) -> Result:
    """Check that a write that names an etag creates nothing."""
    absent = context.space.new_object()
    harm = "bring back a deleted queue: its jobs would run a second time"
    if await context.put(absent, context.body(), context.etag or SOME_ETAG) is not None:
        return failed("accepted: it created an object", harm)
    if (await context.read(absent))[1] is not None:
        return failed("refused, but an object was created", harm)
    return passed("refused, and nothing created")


async def etag_quoting(context: ProbeContext) -> Result | None:
    """Tell the style of etags: some S3-compatible stores take back an etag only without the quotes that they return."""
    if not hasattr(context.main.storage, "etag_style"):
        return None
    style = context.main.storage.etag_style
    if style == "quoted":
        return passed("with quotes, as in HTTP")
    if style == "unquoted":
        return passed("without quotes; jqueue has noticed and adapts")
    return noted("unknown: no write with an etag succeeded")


async def round_trip(context: ProbeContext) -> Result:
    """Check that bytes come back as they were, with the etag that their write returned."""
    thing, content = context.space.new_object(), MANY_BYTES + context.body()
    written = await context.put(thing, content)
    if written is None:
        raise NotTriedError("no object can be created")
    found, etag = await context.read(thing)
    if found != content:
        what = f"{len(content):,} bytes were written, and {'different bytes' if found else 'none'} read back"
        return failed(what, "read other bytes than were written: it would refuse to work, or lose jobs", PROXY)
    if written != etag:
        return noted("the read returned another etag than the write: each commit needs a second try", PROXY)
    return passed(f"{len(content):,} bytes came back unchanged, with the right etag")


async def conditional_read(context: ProbeContext) -> Result | None:
    """Check that a conditional read says "unchanged" for objects that have not changed, and only for them."""
    thing = context.main
    if not isinstance(thing.storage, SupportsReadIfChanged):
        return None
    entropy, earlier = context.space.entropy, await context.current()
    unchanged = await with_retries(lambda: thing.read_if_changed(earlier), entropy)
    if context.matches:
        content = context.body()
        if await context.put(thing, content, earlier) is None:
            return failed(
                "a write with the right etag was refused", "stall at times: the store refuses valid changes", PROXY
            )
        found = await with_retries(lambda: thing.read_if_changed(earlier), entropy)
        if found is None or found[0] != content:
            return failed(
                "a changed object was reported as unchanged", "leave new jobs undone: consumers do not see them", PROXY
            )
    if unchanged is not None:
        return noted("an unchanged object is sent whole: polling costs more", READS)
    return passed("reports an object as unchanged only if it is")


async def racing_creators(context: ProbeContext) -> Result:
    """Check that one wins if many create an object at once."""
    thing = context.space.new_object()
    contents = [context.body() for _ in range(CREATORS)]

    async def create(content: bytes) -> bytes | None:
        try:
            await with_retries(lambda: thing.write(content), context.space.entropy)
        except CASConflictError:
            return None
        return content

    won = [content for content in await run_concurrently(map(create, contents)) if content is not None]
    found, etag = await context.read(thing)
    harm = "lose jobs: programs that create the queue at the same moment erase each other's jobs"
    if len(won) > 1:
        return failed(f"{len(won)} of {CREATORS} were told that they created the object", harm)
    if won and won != [found]:
        return failed("the content of the winner is not stored", harm)
    if etag is None:
        return failed("all were refused, and nothing was created", "never start: it cannot be created")
    if found not in contents:
        return failed("the stored content was written by none of them", harm)
    return passed(f"one won, {CREATORS - 1} were refused")


async def clock_offset(context: ProbeContext) -> Result:
    """Compare this machine's clock with the store's."""
    storage = context.main.storage
    store_time = storage.store_time() if isinstance(storage, SupportsStoreTime) else None
    if store_time is None:
        return noted("the store does not report its time", NO_TIME)
    offset = (context.clock.now() - store_time).total_seconds()
    if abs(offset) <= CLOCK_TOLERANCE:
        return passed(f"within {CLOCK_TOLERANCE:g} s of the store's")
    side = "ahead of" if offset > 0 else "behind"
    return noted(f"this machine is {abs(offset):,.0f} s {side} the store", CLOCK)


WRITERS = 5
INCREMENTS = 10
INCREMENTS_END = 30.0
"""Seconds after which no further increment is begun."""

WRITES = 100
WRITES_END, WRITES_END_THROTTLED = 3.0, 8.0
"""Seconds for which writes are counted; the second holds if the store throttles, as its pace is slow."""

ATTEMPTS = 200
"""Largest number of writes of one writer: a store that refuses at once would get too many within the time limit."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
SLOW = 2.0
"""Writes a second; a slower store gets a remark."""

BROKER = (
    "Each commit is one write. Use a BrokerQueue, and the calls for many jobs (enqueue_many, ack_many): they put all "
    "waiting changes into one commit."
)


class _Pauses:
    """The pauses of one writer. They grow when the store complains, and shrink when a write lands."""

    def __init__(self, context: ProbeContext) -> None:
        self._entropy = context.space.entropy
        self._pause = 0.0

    def note_trouble(self) -> None:
        """Note that the store failed, or asked for fewer requests."""
        self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._pause * 2))

    def note_success(self) -> None:
        """Note that a write landed."""
        self._pause *= 0.8

    async def wait(self) -> None:
        """Pause, at least to let other tasks of this event loop run."""
        await asyncio.sleep(self._pause / 2 + self._entropy.jitter(self._pause / 2) if self._pause > 0.01 else 0)


class _Tally:
    """Counts of the racing increments."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.conflicts = 0
        self.throttled = 0
        self.failures = 0

    @property
    def reason_unfinished(self) -> str:
        """The reason why not all increments were made in time."""
        if self.throttled:
            return f"the store throttled {counted(self.throttled, 'request')}"
        if self.failures:
            return f"{counted(self.failures, 'request')} failed"
        if self.conflicts > self.acknowledged:
            return f"{counted(self.conflicts, 'conflict')} with other writers"
        return "the store is slow"


async def racing_increments(context: ProbeContext) -> Result:
    """Check that no update of many writers is lost."""
    context.need_matches()
    thing, tally, total = context.space.new_object(), _Tally(), WRITERS * INCREMENTS
    begun = context.clock.monotonic()
    await run_concurrently(_increment(context, thing, tally, begun + INCREMENTS_END) for _ in range(WRITERS))
    seconds = context.clock.monotonic() - begun
    if not tally.acknowledged:
        last = f": {thing.last_error}" if thing.last_error else ", each was a conflict"
        raise StorageError(f"none of {total} racing increments succeeded within {seconds:.0f} s{last}")
    found = _number((await context.read(thing))[0])
    if found < tally.acknowledged:
        return failed(
            f"updates are lost: {tally.acknowledged} were acknowledged, and only {found} are stored",
            "lose jobs and run others twice: writers overwrite each other's changes",
            HONOUR,
        )
    if tally.acknowledged < total:
        return noted(
            f"{tally.acknowledged} of {total} done in {seconds:.0f} s, none lost: {tally.reason_unfinished}", BROKER
        )
    if found > total:
        return noted(f"none lost, {found - total} counted twice as writes were sent again; a queue recognises those")
    return passed(f"all {total} stored, {counted(tally.conflicts, 'conflict')}, {seconds:.1f} s")


async def _increment(context: ProbeContext, thing: ScratchObject, tally: _Tally, end: float) -> None:
    """Add one, several times. If a write is refused or its fate is unknown, read and add again."""
    pauses, left = _Pauses(context), INCREMENTS
    for _ in range(ATTEMPTS):
        if not left or context.clock.monotonic() >= end:
            break
        try:
            content, etag = await thing.read()
            await thing.write(b"%d" % (_number(content) + 1), etag)
        except CASConflictError:
            tally.conflicts += 1
        except StorageFatalError:
            raise
        except StorageError as error:
            throttled = isinstance(error, StorageThrottledError)
            tally.throttled, tally.failures = tally.throttled + throttled, tally.failures + (not throttled)
            pauses.note_trouble()
        else:
            tally.acknowledged += 1
            left -= 1
            pauses.note_success()
        await pauses.wait()


def _number(content: bytes) -> int:
    return int(content) if content.isdigit() and len(content) < 10 else 0


async def write_rate(context: ProbeContext) -> Result:
    """Count the writes a second that the store takes, one after the other."""
    context.need_matches()
    thing, pauses, etag = context.space.new_object(), _Pauses(context), None
    begun, took, done, throttled, failures = context.clock.monotonic(), 0.0, 0, False, 0
    for _ in range(ATTEMPTS):
        if done == WRITES or context.clock.monotonic() - begun >= (WRITES_END_THROTTLED if throttled else WRITES_END):
            break
        try:
            etag = await thing.write(context.body(), etag)
        except StorageFatalError:
            raise
        except StorageThrottledError:
            throttled = True
            pauses.note_trouble()
        except (StorageError, CASConflictError) as error:  # it may have landed, and been sent again by the client
            failures += isinstance(error, StorageError)
            if failures == TRIES:
                raise
            etag = (await context.read(thing))[1]
        else:
            done, took, failures = done + 1, context.clock.monotonic() - begun, 0
        if throttled:
            await pauses.wait()
    if not done:
        raise StorageError("none of the writes to measure the rate succeeded", thing.last_error)
    rate = done / max(took, 0.001)
    said = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    if throttled:
        return noted(f"{said}; the store throttles faster writes", BROKER)
    if rate < SLOW:
        return noted(f"{said}, one after the other", BROKER)
    return passed(f"{said}, one after the other")
