"""The slow probes of `jqueue doctor`: many updates at once, and writes for several seconds."""

from __future__ import annotations

import asyncio

from jqueue.cli.probes import HONOUR, ProbeContext, Result, failed, noted, passed
from jqueue.cli.scratch import TRIES, ScratchObject, run_concurrently
from jqueue.domain.errors import CASConflictError, StorageError, StorageFatalError, StorageThrottledError
from jqueue.domain.printable import counted

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
