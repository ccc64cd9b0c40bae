"""The probes of `jqueue doctor`: one function for each promise of a store that a queue rests on.

Nothing here prints. The probes write objects of their own beside the queue's. Every call to them ends in time, and they
are removed even after an error. Each content that is written is unlike every other. So a read afterwards tells which
write landed, even if its answer was a refusal: a client may send a write again, and be refused because of its own first
try.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from jqueue.core.tasks import Backoff, as_storage_error
from jqueue.domain.errors import CASConflictError, StorageError, StorageFatalError, StorageThrottledError, shown
from jqueue.domain.printable import counted
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.storage import SupportsReadIfChanged, SupportsScratch, SupportsStoreTime
from jqueue.runtime.tasks import all_at_once

Answer = TypeVar("Answer")
Content = tuple[bytes, str | None]

CALL_LIMIT = 20.0
"""Seconds for one call. Our adapters have a shorter deadline of their own; a user's adapter may have none."""

TRIES = 5
"""Number of failures after which a read or a write is not tried again. Throttled tries do not count."""

REMOVAL_LIMIT = 15.0
"""Seconds for the removal of one object."""

LATE = 1.0
"""Seconds after which an object is removed once more, if a call to it failed: a write may land late."""


async def with_retries(call: Callable[[], Awaitable[Answer]], entropy: Entropy) -> Answer:
    """Return the answer of a call. If the store fails, try a few times. While it throttles, retry with growing pauses.

    Raises:
        StorageError: the store failed or did not answer in time, each time, or refused.
    """
    failures, backoff = 0, Backoff(entropy)
    while True:
        try:
            async with asyncio.timeout(CALL_LIMIT):
                return await call()
        except StorageFatalError:
            raise
        except (StorageError, TimeoutError) as error:
            failures += not isinstance(error, StorageThrottledError)
            if failures == TRIES:
                raise as_storage_error(error) from error
            await asyncio.sleep(backoff.after(error))


class ScratchObject:
    """One object for trials.

    Args:
        storage: its storage.
        entropy: source of its contents, and of jitter.

    Attributes:
        storage: its storage.
        last_error: the last error of the store, other than a conflict.
        may_exist: True if a write was not refused, or if a read has found it; False once it was removed.
        left: the reason why it could not be removed; empty if it was removed, or if that was not tried yet.
    """

    def __init__(self, storage: SupportsScratch, entropy: Entropy) -> None:
        self.storage = storage
        self.last_error: StorageError | None = None
        self.may_exist: bool = False
        self.left: str = ""
        self._entropy = entropy
        self._calls: list[asyncio.Task[Any]] = []

    async def read(self) -> Content:
        """Return the content and the etag, after a few tries."""
        content, etag = await with_retries(lambda: self._call(self.storage.read()), self._entropy)
        self.may_exist = self.may_exist or etag is not None
        return content, etag

    async def read_if_changed(self, etag: str) -> Content | None:
        """Return them, or None for an unchanged object, after a few tries. The storage must support this read."""
        read = self.storage.read_if_changed  # type: ignore[attr-defined]
        return await with_retries(lambda: self._call(read(etag)), self._entropy)

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """As of any storage."""
        refused = False
        try:
            return await self._call(self.storage.write(content, if_match))
        except (CASConflictError, StorageFatalError):
            refused = True
            raise
        finally:  # a cancelled write may land, too
            self.may_exist = self.may_exist or not refused

    async def put(self, content: bytes, if_match: str | None = None) -> str | None:
        """Write, and return the etag if the write landed, even if the answer was a conflict; None if it was refused."""
        try:
            return await with_retries(lambda: self.write(content, if_match), self._entropy)
        except CASConflictError:
            current, etag = await self.read()
            return etag if current == content else None

    async def _call(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for a call. It goes on if we are cancelled, so that an object it writes can be removed afterwards."""
        task = asyncio.create_task(call)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # or asyncio would log the error
        self._calls.append(task)
        try:
            await asyncio.wait([task])
            return task.result()
        except StorageError as error:
            self.last_error = error
            raise

    async def remove(self) -> None:
        """Remove it, once no call is under way. If that fails, `left` says why."""
        if not self._calls:
            return
        try:
            async with asyncio.timeout(REMOVAL_LIMIT):
                _, late = await asyncio.wait(self._calls, timeout=REMOVAL_LIMIT / 2)
                for task in late:
                    task.cancel()
                await with_retries(self.storage.remove, self._entropy)
                if late or self.last_error is not None:
                    await asyncio.sleep(LATE)
                    await with_retries(self.storage.remove, self._entropy)
            self.may_exist = False
        except (StorageError, TimeoutError) as error:
            self.left = str(error) or f"the store did not remove it within {REMOVAL_LIMIT:g} s"


MANY_BYTES = bytes(range(256)) * 256
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


Outcome = Literal["passed", "failed", "noted"]


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
    return Result("passed", detail)


def noted(detail: str, *advice: str) -> Result:
    """Return a result that is safe, and worth knowing."""
    return Result("noted", detail, advice=advice)


def failed(detail: str, harm: str, *advice: str) -> Result:
    """Return the result of a store that is not safe. Without advice, the store must honour its conditions."""
    return Result("failed", detail, harm, advice or (HONOUR,))


STALLS = failed("a write with the right etag was refused", "stall at times: the store refuses valid changes", PROXY)


class NotTriedError(Exception):
    """A probe needs something that an earlier probe has found missing. The message names it."""


class ProbeContext:
    """The tools of the probes, and the facts that one probe has found out for the next.

    At the end of its `async with` block, all objects of the probes are removed.

    Args:
        storage: the queue's object, which is not written.
        clock: measures the time, and is compared with the store's.
        entropy: source of the id in the names of the objects, and of jitter.
        quick: True if no rows of segments are read.

    Attributes:
        objects: the objects that were made for trials.
        main: one of them, which several probes use, one after the other.
        matches: False if no write that names the right etag goes through; `right_etag` finds out.
        tell: called with the progress of a long probe, in words.
    """

    def __init__(self, storage: SupportsScratch, clock: Clock, entropy: Entropy, *, quick: bool = False) -> None:
        self.storage = storage
        self.clock = clock
        self.entropy = entropy
        self.quick = quick
        self.tell: Callable[[str], None] = lambda text: None
        self.prefix: str = f".doctor-{''.join(char for char in entropy.new_id() if char.isalnum())[-12:]}-"
        self.objects: list[ScratchObject] = []
        self.main: ScratchObject = self.new_object()
        self.matches: bool = True

    def new_object(self) -> ScratchObject:
        """Return a new object, under a name of its own."""
        self.objects.append(ScratchObject(self.storage.beside(f"{self.prefix}{len(self.objects) + 1}"), self.entropy))
        return self.objects[-1]

    @property
    def last_error(self) -> StorageError | None:
        """The last error of the store, other than conflicts."""
        return next((made.last_error for made in reversed(self.objects) if made.last_error), None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await all_at_once(*(made.remove() for made in self.objects))

    def body(self) -> bytes:
        """Return a content unlike all others."""
        return b'{"jqueue doctor": "%s"}' % self.entropy.new_id().encode()

    async def current(self) -> str:
        """Return the etag of `main`, which is created if it does not exist."""
        etag = (await self.main.read())[1] or await self.main.put(self.body())
        if etag is None:
            self.matches = False
            raise NotTriedError("no object can be created")
        return etag

    def need_matches(self) -> None:
        """Raise NotTriedError if no write that names the right etag goes through."""
        if not self.matches:
            raise NotTriedError("no write with an etag succeeds")


async def refusal(
    context: ProbeContext, thing: ScratchObject, if_match: str | None, content: bytes, accepted: str, harm: str
) -> Result:
    """Check that a write is refused and changes nothing.

    Args:
        context: of the probe.
        thing: the object to write.
        if_match: the etag that the write names.
        content: of the object now; empty if it does not exist.
        accepted: the effect of the write if it lands.
        harm: the harm to a queue if it does.
    """
    if await thing.put(context.body(), if_match) is not None:
        return failed(f"accepted: it {accepted}", harm)
    if (await thing.read())[0] != content:
        return failed("refused, but the object has changed", harm)
    return passed("refused, and nothing changed")


async def create_only(context: ProbeContext) -> Result:
    """Check that a write without an etag creates an object, and never replaces one."""
    first = context.body()
    if await context.main.put(first) is None:
        return failed("the first create was refused, though no object existed", "never start: it cannot be created")
    harm = "lose jobs: if two programs create a queue, the second erases the jobs of the first"
    return await refusal(context, context.main, None, first, "overwrote the existing object", harm)


async def right_etag(context: ProbeContext) -> Result:
    """Check that a write that names the etag of the object goes through."""
    etag, content = await context.current(), context.body()
    if await context.main.put(content, etag) is None:
        context.matches = False
        weak = "a proxy has made the etag weak" if etag.startswith("W/") else f"etag {shown(etag)}"
        return failed(
            f"refused, though there was no other write ({weak})", "stand still: the store refuses every change", PROXY
        )
    if (await context.main.read())[0] != content:
        context.matches = False
        return failed("acknowledged, but not stored", "lose jobs that it has acknowledged")
    return passed("accepted")


async def stale_etag(context: ProbeContext) -> Result:
    """Check that a write that names an earlier etag is refused."""
    context.need_matches()
    earlier, later = await context.current(), context.body()
    if await context.main.put(later, earlier) is None:
        return STALLS
    harm = "lose jobs and run others twice: a program overwrites what another wrote since it read"
    return await refusal(context, context.main, earlier, later, "overwrote a newer write", harm)


async def absent_object(context: ProbeContext) -> Result:
    """Check that a write that names an etag creates nothing."""
    harm = "bring back a deleted queue: its jobs would run a second time"
    return await refusal(context, context.new_object(), await context.current(), b"", "created an object", harm)


async def round_trip(context: ProbeContext) -> Result:
    """Check that bytes come back as they were, with the etag that their write returned."""
    thing, content = context.new_object(), MANY_BYTES + context.body()
    written = await thing.put(content)
    if written is None:
        raise NotTriedError("no object can be created")
    stored, etag = await thing.read()
    if stored != content:
        what = f"{len(content):,} bytes were written, and {'different bytes' if stored else 'none'} read back"
        return failed(what, "read other bytes than were written: it would refuse to work, or lose jobs", PROXY)
    if written != etag:
        return noted("the read returned another etag than the write: each commit needs a second try", PROXY)
    return passed(f"{len(content):,} bytes came back unchanged, with the right etag")


async def conditional_read(context: ProbeContext) -> Result | None:
    """Check that a conditional read says "unchanged" for objects that have not changed, and only for them."""
    thing = context.main
    if not isinstance(thing.storage, SupportsReadIfChanged):
        return None
    earlier = await context.current()
    unchanged = await thing.read_if_changed(earlier)
    if context.matches:
        content = context.body()
        if await thing.put(content, earlier) is None:
            return STALLS
        changed = await thing.read_if_changed(earlier)
        if changed is None or changed[0] != content:
            return failed(
                "a changed object was reported as unchanged", "leave new jobs undone: consumers do not see them", PROXY
            )
    if unchanged is not None:
        return noted("an unchanged object is sent whole: polling costs more", READS)
    return passed("reports an object as unchanged only if it is")


async def clock(context: ProbeContext) -> Result:
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

ATTEMPTS = 200
"""Largest number of writes of one writer: a store that refuses at once would get too many within the time limit."""

LONGEST_PAUSE = 2.0
"""Seconds to wait at most after a failure, so that a probe ends soon after its time."""

BROKER = (
    "Each commit is one write. Use a BrokerQueue, and the calls for many jobs (enqueue_many, ack_many): they put all "
    "waiting changes into one commit."
)


def number_in(content: bytes) -> int:
    """Return the number in an object; 0 if there is none."""
    return int(content) if content.isdigit() and len(content) < 10 else 0


async def racing_increments(context: ProbeContext) -> Result:
    """Check that no update is lost if many writers each add one to the number in an object, several times."""
    context.need_matches()
    thing, tally, clock = context.new_object(), Counter[str](), context.clock
    began = clock.monotonic()

    async def write() -> None:
        """Add one, several times. If a write is refused or its fate is unknown, read and add again."""
        left, backoff = INCREMENTS, Backoff(context.entropy)
        for _ in range(ATTEMPTS):
            if not left or clock.monotonic() >= began + INCREMENTS_END:
                break
            try:
                async with asyncio.timeout(CALL_LIMIT):
                    content, etag = await thing.read()
                    await thing.write(b"%d" % (number_in(content) + 1), etag)
                tally["done"], left, backoff = tally["done"] + 1, left - 1, Backoff(context.entropy)
            except CASConflictError:
                tally["conflict"] += 1
            except StorageFatalError:
                raise
            except (StorageError, TimeoutError) as error:
                tally["throttled request" if isinstance(error, StorageThrottledError) else "failed request"] += 1
                await asyncio.sleep(min(LONGEST_PAUSE, backoff.after(error)))

    await all_at_once(*(write() for _ in range(WRITERS)))
    seconds = clock.monotonic() - began
    done, total, stored = tally.pop("done", 0), WRITERS * INCREMENTS, number_in((await thing.read())[0])
    if not done:
        last = thing.last_error or "each was a conflict"
        raise StorageError(f"none of {total} writes succeeded within {seconds:.0f} s: {last}")
    if stored < done:
        return failed(
            f"updates are lost: {done} were acknowledged, and only {stored} are stored",
            "lose jobs and run others twice: writers overwrite each other's changes",
        )
    if done < total:
        why = ", ".join(counted(number, kind) for kind, number in tally.items()) or "the store is slow"
        return noted(f"{done} of {total} done in {seconds:.0f} s, none lost: {why}", BROKER)
    if stored > total:
        return noted(f"none lost, {stored - total} counted twice as writes were sent again; a queue recognises those")
    return passed(f"all {total} stored, {counted(tally['conflict'], 'conflict')}, {seconds:.1f} s")
