"""The probes of `jqueue doctor`: one function for each promise of a store that a queue rests on.

Nothing here prints. The probes write objects of their own beside the queue's. Every call to them ends in time, and they
are removed even after an error. Each content that is written is unlike every other. So a read afterwards tells which
write landed, even if its answer was a refusal: a client may send a write again, and be refused because of its own first
try.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from jqueue.core.tasks import Backoff
from jqueue.domain.errors import CASConflictError, StorageError, StorageFatalError, StorageThrottledError, shown
from jqueue.domain.printable import counted
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.storage import SupportsListing, SupportsReadIfChanged, SupportsScratch, SupportsStoreTime

Answer = TypeVar("Answer")
Found = tuple[bytes, str | None]

CALL_LIMIT = 20.0
"""Seconds for one call. Our adapters have a shorter deadline of their own; a user's adapter may have none."""

TRIES = 5
"""Number of failures after which a read or a write is not tried again. Throttled tries do not count."""

REMOVAL_LIMIT = 15.0
"""Seconds for the removal of one object."""

LATE = 1.0
"""Seconds after which a write that got no answer is looked for once more."""


async def with_retries(call: Callable[[], Awaitable[Answer]], entropy: Entropy) -> Answer:
    """Return the answer of a call. If the store fails, try a few times. While it throttles, retry with growing pauses.

    Raises:
        StorageError: the store failed each time, or refused.
    """
    failures, backoff = 0, Backoff(entropy)
    while True:
        try:
            return await call()
        except StorageFatalError:
            raise
        except StorageError as error:
            failures += not isinstance(error, StorageThrottledError)
            if failures == TRIES:
                raise
            await asyncio.sleep(backoff.after(error))


async def run_concurrently(calls: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Make several calls at once, and return their answers. If one fails or we are cancelled, all others end too."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class ScratchObject:
    """One object for trials.

    Attributes:
        storage: its storage.
        last_error: the last error of the store, other than a conflict.
        may_exist: True if a write was not refused, or if a read has found it; False once it was removed.
        left: the reason why it could not be removed; empty if it was removed, or if that was not tried yet.
    """

    def __init__(self, storage: SupportsScratch) -> None:
        self.storage = storage
        self.last_error: StorageError | None = None
        self.may_exist = False
        self.left = ""
        self._under_way: set[asyncio.Task[Any]] = set()
        self._tried = False
        self._unsure = False

    async def read(self) -> Found:
        """As of any storage."""
        found = await self._call("read", self.storage.read())
        self.may_exist = self.may_exist or found[1] is not None
        return found

    async def read_if_changed(self, etag: str) -> Found | None:
        """As of any storage; it must support this read."""
        assert isinstance(self.storage, SupportsReadIfChanged)
        return await self._call("read", self.storage.read_if_changed(etag))

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """As of any storage."""
        self._tried, refused = True, False
        try:
            return await self._call("write", self.storage.write(content, if_match))
        except (CASConflictError, StorageFatalError):
            refused = True
            raise
        except StorageError:
            self._unsure = True
            raise
        finally:  # a cancelled write may land, too
            self.may_exist = self.may_exist or not refused

    async def _call(self, doing: str, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for a call. It goes on if we are cancelled, so that an object it writes can be removed afterwards."""
        task = asyncio.create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait([task], timeout=CALL_LIMIT)
            if not task.done():
                raise StorageError(f"the store did not answer a {doing} within {CALL_LIMIT:g} s")
            return task.result()
        except StorageError as error:
            self.last_error = error
            raise

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # counts as seen, so that asyncio does not log it

    async def remove(self, entropy: Entropy) -> None:
        """Remove it, once no call is under way. If that fails, `left` says why."""
        if not self._tried:
            return
        try:
            async with asyncio.timeout(REMOVAL_LIMIT):
                if self._under_way:
                    _, late = await asyncio.wait(self._under_way, timeout=REMOVAL_LIMIT / 2)
                    for task in late:
                        task.cancel()
                    self._unsure = self._unsure or bool(late)
                await with_retries(self.storage.remove, entropy)
                if self._unsure:
                    await asyncio.sleep(LATE)
                    await with_retries(self.storage.remove, entropy)
            self.may_exist = False
        except (StorageError, TimeoutError) as error:
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(REMOVAL_LIMIT):
                    self.may_exist = (await with_retries(self.storage.read, entropy))[1] is not None
            if self.may_exist:
                self.left = str(error) or f"the store did not remove it within {REMOVAL_LIMIT:g} s"


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
LATE_LISTS = (
    "This store lists new objects late: if `jqueue history` reports missing events, run it again after a while."
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


def noted(detail: str, advice: str = "") -> Result:
    """Return a result that is safe, and worth knowing."""
    return Result("noted", detail, advice=(advice,) if advice else ())


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
        etag: the last etag of `main` that was seen.
        tell: called with the progress of a long probe, in words.
    """

    def __init__(self, storage: SupportsScratch, clock: Clock, entropy: Entropy, *, quick: bool = False) -> None:
        self.storage = storage
        self.clock = clock
        self.entropy = entropy
        self.quick = quick
        self.tell: Callable[[str], None] = lambda text: None
        self.prefix = f".doctor-{''.join(char for char in entropy.new_id() if char.isalnum())[-12:]}-"
        self.objects: list[ScratchObject] = []
        self.main = self.new_object()
        self.matches = True
        self.etag: str | None = None
        self._bodies = 0

    def new_object(self) -> ScratchObject:
        """Return a new object, under a name of its own."""
        made = ScratchObject(self.storage.beside(f"{self.prefix}{len(self.objects) + 1}"))
        self.objects.append(made)
        return made

    @property
    def last_error(self) -> StorageError | None:
        """The last error of the store, other than conflicts."""
        return next((made.last_error for made in reversed(self.objects) if made.last_error), None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(made.remove(self.entropy) for made in self.objects))

    def body(self) -> bytes:
        """Return a content unlike all others."""
        self._bodies += 1
        return b'{"jqueue doctor": "%s", "body": %d}' % (self.entropy.new_id().encode(), self._bodies)

    async def read(self, thing: ScratchObject) -> Found:
        """Return the content and the etag of an object."""
        found = await with_retries(thing.read, self.entropy)
        if thing is self.main:
            self.etag = found[1] or self.etag
        return found

    async def put(self, thing: ScratchObject, content: bytes, if_match: str | None = None) -> str | None:
        """Write, and return the etag if the write landed, even if the answer was a conflict; None if it was refused."""
        try:
            return await with_retries(lambda: thing.write(content, if_match), self.entropy)
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
        return STALLS
    harm = "lose jobs and run others twice: a program overwrites what another wrote since it read"
    if await context.put(context.main, context.body(), earlier) is not None:
        return failed("accepted: it overwrote a newer write", harm)
    if (await context.read(context.main))[0] != later:
        return failed("refused, but the object has changed", harm)
    return passed("refused, and nothing changed")


async def absent_object(context: ProbeContext) -> Result:
    """Check that a write that names an etag creates nothing."""
    absent = context.new_object()
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
    thing, content = context.new_object(), MANY_BYTES + context.body()
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
    entropy, earlier = context.entropy, await context.current()
    unchanged = await with_retries(lambda: thing.read_if_changed(earlier), entropy)
    if context.matches:
        content = context.body()
        if await context.put(thing, content, earlier) is None:
            return STALLS
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
    thing = context.new_object()
    contents = [context.body() for _ in range(CREATORS)]

    async def create(content: bytes) -> bytes | None:
        try:
            await with_retries(lambda: thing.write(content), context.entropy)
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

LONGEST_PAUSE = 2.0
"""Seconds to wait at most after a failure, so that a probe ends soon after its time."""

SLOW = 2.0
"""Writes a second; a slower store gets a remark."""

BROKER = (
    "Each commit is one write. Use a BrokerQueue, and the calls for many jobs (enqueue_many, ack_many): they put all "
    "waiting changes into one commit."
)


async def racing_increments(context: ProbeContext) -> Result:
    """Check that no update of many writers is lost."""
    context.need_matches()
    thing, tally, total = context.new_object(), Counter[str](), WRITERS * INCREMENTS
    begun = context.clock.monotonic()
    await run_concurrently(_increment(context, thing, tally, begun + INCREMENTS_END) for _ in range(WRITERS))
    seconds, done, conflicts = context.clock.monotonic() - begun, tally["done"], tally["conflicts"]
    if not done:
        last = f": {thing.last_error}" if thing.last_error else ", each was a conflict"
        raise StorageError(f"none of {total} racing increments succeeded within {seconds:.0f} s{last}")
    found = _number((await context.read(thing))[0])
    if found < done:
        return failed(
            f"updates are lost: {done} were acknowledged, and only {found} are stored",
            "lose jobs and run others twice: writers overwrite each other's changes",
        )
    if done < total:
        if tally["throttled"]:
            why = f"the store throttled {counted(tally['throttled'], 'request')}"
        elif tally["failures"]:
            why = f"{counted(tally['failures'], 'request')} failed"
        else:
            why = f"{counted(conflicts, 'conflict')} with other writers" if conflicts > done else "the store is slow"
        return noted(f"{done} of {total} done in {seconds:.0f} s, none lost: {why}", BROKER)
    if found > total:
        return noted(f"none lost, {found - total} counted twice as writes were sent again; a queue recognises those")
    return passed(f"all {total} stored, {counted(conflicts, 'conflict')}, {seconds:.1f} s")


async def _increment(context: ProbeContext, thing: ScratchObject, tally: Counter[str], end: float) -> None:
    """Add one, several times. If a write is refused or its fate is unknown, read and add again."""
    backoff, left = Backoff(context.entropy), INCREMENTS
    for _ in range(ATTEMPTS):
        if not left or context.clock.monotonic() >= end:
            break
        try:
            content, etag = await thing.read()
            await thing.write(b"%d" % (_number(content) + 1), etag)
            tally["done"], left, backoff = tally["done"] + 1, left - 1, Backoff(context.entropy)
        except CASConflictError:
            tally["conflicts"] += 1
        except StorageFatalError:
            raise
        except StorageError as error:
            tally["throttled" if isinstance(error, StorageThrottledError) else "failures"] += 1
            await asyncio.sleep(min(LONGEST_PAUSE, backoff.after(error)))


def _number(content: bytes) -> int:
    return int(content) if content.isdigit() and len(content) < 10 else 0


async def write_rate(context: ProbeContext) -> Result:
    """Count the writes a second that the store takes, one after the other."""
    context.need_matches()
    thing, etag, backoff = context.new_object(), None, Backoff(context.entropy)
    begun, took, done, throttled = context.clock.monotonic(), 0.0, 0, False
    for _ in range(ATTEMPTS):
        if done == WRITES or context.clock.monotonic() - begun >= (WRITES_END_THROTTLED if throttled else WRITES_END):
            break
        try:
            etag = await thing.write(context.body(), etag)
            done, took, backoff = done + 1, context.clock.monotonic() - begun, Backoff(context.entropy)
        except StorageFatalError:
            raise
        except (StorageError, CASConflictError) as error:  # it may have landed, and been sent again by the client
            throttled = throttled or isinstance(error, StorageThrottledError)
            await asyncio.sleep(min(LONGEST_PAUSE, backoff.after(error)))
            etag = (await context.read(thing))[1]
    if not done:
        raise StorageError("none of the writes to measure the rate succeeded", thing.last_error)
    rate = done / max(took, 0.001)
    text = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    if throttled:
        return noted(f"{text}; the store throttles faster writes", BROKER)
    text += ", one after the other"
    return noted(text, BROKER) if rate < SLOW else passed(text)


async def listing(context: ProbeContext) -> Result | None:
    """Check that an object is listed once it is written. Then the history of a queue is whole at any time."""
    if not isinstance(context.storage, SupportsListing):
        return None
    thing, storage = context.new_object(), context.storage
    if await context.put(thing, context.body()) is None:
        raise NotTriedError("no object can be created")
    try:
        listed = await with_retries(lambda: storage.list_beside(context.prefix), context.entropy)
    except StorageFatalError as error:
        raise NotTriedError(str(error)) from None
    if f"{context.prefix}{len(context.objects)}" not in {each.suffix for each in listed}:
        return noted("an object that was just written is not listed yet", LATE_LISTS)
    return passed("a new object is listed at once")
