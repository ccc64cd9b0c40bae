"""The checks of `jqueue doctor`: one function for each promise of a store that a queue rests on.

Nothing here prints. The checks write objects of their own beside the queue's, which are removed even after an error.
Each content that is written is unlike every other. So a read afterwards tells which write landed, even if its answer
was a refusal: a client may send a write again, and be refused because of its own first try.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, NamedTuple, Self, TypeVar

from jqueue.cli.printing import note
from jqueue.core.tasks import retried
from jqueue.domain.errors import CASConflictError, DeadlineExceededError, StorageError, StorageFatalError, shown
from jqueue.domain.printable import counted
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.storage import SupportsListing, SupportsReadIfChanged, SupportsScratch, SupportsStoreTime, describe
from jqueue.runtime.tasks import all_at_once

Answer = TypeVar("Answer")

CALL_LIMIT = 20.0
"""Seconds for one read or write, its repetitions included."""

REMOVAL_LIMIT = 10.0
"""Seconds for the removal of one object."""

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
BROKER = (
    "Each commit is one write. Use a BrokerQueue, and the calls for many jobs (enqueue_many, ack_many): they put all "
    "waiting changes into one commit."
)


class Result(NamedTuple):
    """The result of a check.

    Attributes:
        outcome: a failure means that no queue is safe here. A note is safe, and worth knowing.
        detail: the observation.
        advice: the step to take.
    """

    outcome: Literal["passed", "failed", "noted"]
    detail: str
    advice: str = ""


class Trials:
    """Objects for trials beside the queue's, which is not written. They are removed at the end of the `async with`.

    Args:
        storage: the queue's object.
        clock: measures the time, and is compared with the store's.
        entropy: source of the names and contents of the objects, and of jitter.

    Attributes:
        made: the objects for trials.
    """

    def __init__(self, storage: SupportsScratch, clock: Clock, entropy: Entropy) -> None:
        self.storage = storage
        self.clock = clock
        self.entropy = entropy
        self.prefix: str = f".doctor-{''.join(char for char in entropy.new_id() if char.isalnum())[-12:]}-"
        self.made: list[SupportsScratch] = []

    def new(self) -> SupportsScratch:
        """Return a new object, under a name of its own."""
        self.made.append(self.storage.beside(f"{self.prefix}{len(self.made) + 1}"))
        return self.made[-1]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await all_at_once(*map(self._remove, self.made))

    async def _remove(self, thing: SupportsScratch) -> None:
        try:
            await retried(REMOVAL_LIMIT, thing.remove, self.entropy, "it was not removed")
        except StorageError as error:
            note(f"{describe(thing)} may be left behind: remove it by hand ({error})")

    def content(self) -> bytes:
        """Return a content unlike all others."""
        return b'{"jqueue doctor": "%s"}' % self.entropy.new_id().encode()

    async def call(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer of a call, which is made again while the store fails or throttles.

        Raises:
            StorageError: the store refused, or did not answer in time.
        """
        return await retried(CALL_LIMIT, request, self.entropy, "the store did not do what a check needs")

    async def put(self, thing: SupportsScratch, content: bytes, if_match: str | None = None) -> str | None:
        """Write, and return the etag if the write landed, even if the answer was a conflict; None if it was refused."""

        async def write() -> str | None:
            try:
                return await thing.write(content, if_match)
            except CASConflictError:
                return None

        if (etag := await self.call(write)) is not None:
            return etag
        current, current_etag = await self.call(thing.read)
        return current_etag if current == content else None


async def create_only(trials: Trials) -> Result:
    """Check that a write without an etag creates an object, and never replaces one."""
    thing, first = trials.new(), trials.content()
    if await trials.put(thing, first) is None:
        return Result("failed", "the first create was refused, though no object existed", HONOUR)
    if await trials.put(thing, trials.content()) is not None or (await trials.call(thing.read))[0] != first:
        return Result("failed", "a second create overwrote the first: of two new queues, one loses its jobs", HONOUR)
    return Result("passed", "a second create was refused, and changed nothing")


async def conditional_writes(trials: Trials) -> Result:
    """Check that a write with an etag lands if it names the newest, and otherwise changes and creates nothing."""
    thing, newest = trials.new(), trials.content()
    await trials.put(thing, trials.content())
    etag = (await trials.call(thing.read))[1]
    if etag is None or await trials.put(thing, newest, etag) is None:
        weak = "a proxy has made the etag weak" if f"{etag}".startswith("W/") else f"etag {shown(f'{etag}')}"
        return Result("failed", f"the right etag was refused, though there was no other write ({weak})", PROXY)
    if (await trials.call(thing.read))[0] != newest:
        return Result("failed", "a write was acknowledged, but not stored: jobs are lost", HONOUR)
    if await trials.put(thing, trials.content(), etag) is not None or (await trials.call(thing.read))[0] != newest:
        return Result("failed", "a stale etag overwrote a newer write: jobs are lost, and others run twice", HONOUR)
    if await trials.put(trials.new(), newest, etag) is not None:
        return Result("failed", "a write with an etag created an object: a deleted queue would come back", HONOUR)
    return Result("passed", "only the newest etag was accepted")


async def round_trip(trials: Trials) -> Result:
    """Check that bytes come back as they were, with the etag that their write returned."""
    thing, content = trials.new(), MANY_BYTES + trials.content()
    written = await trials.put(thing, content)
    stored, etag = await trials.call(thing.read)
    if stored != content:
        different = "different bytes" if stored else "none"
        return Result("failed", f"{len(content):,} bytes were written, and {different} read back", PROXY)
    if written != etag:
        return Result("noted", "a read returned another etag than the write: each commit needs a second try", PROXY)
    return Result("passed", f"{len(content):,} bytes came back unchanged, with the right etag")


async def conditional_read(trials: Trials) -> Result | None:
    """Check that a conditional read says "unchanged" for objects that have not changed, and only for them."""
    thing, content = trials.new(), trials.content()
    if not isinstance(thing, SupportsReadIfChanged):
        return None
    read = thing.read_if_changed
    earlier = f"{await trials.put(thing, trials.content())}"
    unchanged = await trials.call(lambda: read(earlier))
    await trials.put(thing, content, earlier)
    changed = await trials.call(lambda: read(earlier))
    if changed is None or changed[0] != content:
        return Result("failed", "a changed object was reported as unchanged: consumers miss new jobs", PROXY)
    if unchanged is not None:
        return Result("noted", "an unchanged object is sent whole: polling costs more", READS)
    return Result("passed", "an object is reported as unchanged only if it is")


async def listing(trials: Trials) -> Result | None:
    """Check that an object is listed once it was written. Segments and the history need that."""
    if not isinstance(storage := trials.storage, SupportsListing):
        return None
    await trials.put(trials.new(), trials.content())
    try:
        listed = await trials.call(lambda: storage.list_beside(trials.prefix))
    except StorageFatalError as error:
        return Result("noted", f"not tried: {error}", "Grant it: deep queues, the history and large payloads need it.")
    if f"{trials.prefix}{len(trials.made)}" not in {each.suffix for each in listed}:
        return Result("failed", "an object that was written is not listed: segments would seem to be missing", PROXY)
    return Result("passed", "an object was listed once it was written")


WRITERS = 5
INCREMENTS = 10
INCREMENTS_END = 30.0
"""Seconds after which no further increment is begun."""


async def racing_increments(trials: Trials) -> Result:
    """Check that no update is lost if many writers each add one to the number in an object, several times."""
    thing, clock = trials.new(), trials.clock
    done, conflicts, began = 0, 0, clock.monotonic()

    async def add() -> bool:
        content, etag = await thing.read()
        try:
            await thing.write(b"%d" % (int(content or 0) + 1), etag)
        except CASConflictError:
            return False
        return True

    async def write() -> None:
        nonlocal done, conflicts
        left = INCREMENTS
        while left and clock.monotonic() < began + INCREMENTS_END:
            try:
                landed = await trials.call(add)
            except DeadlineExceededError:
                break
            left -= landed
            done += landed
            conflicts += not landed

    await all_at_once(*(write() for _ in range(WRITERS)))
    seconds, total = clock.monotonic() - began, WRITERS * INCREMENTS
    stored = int((await trials.call(thing.read))[0] or 0)
    if stored < done:
        lost = f"{done} updates were acknowledged, and only {stored} are stored: jobs are lost, and others run twice"
        return Result("failed", lost, HONOUR)
    if done < total:
        return Result("noted", f"{done} of {total} done in {seconds:.0f} s, none lost: the store is slow", BROKER)
    return Result("passed", f"all {total} stored, {counted(conflicts, 'conflict')}, {seconds:.1f} s")


async def clock(trials: Trials) -> Result:
    """Compare this machine's clock with the store's."""
    storage = trials.storage
    store_time = storage.store_time() if isinstance(storage, SupportsStoreTime) else None
    if store_time is None:
        return Result("noted", "the store does not report its time", NO_TIME)
    offset = (trials.clock.now() - store_time).total_seconds()
    if abs(offset) <= CLOCK_TOLERANCE:
        return Result("passed", f"within {CLOCK_TOLERANCE:g} s of the store's")
    side = "ahead of" if offset > 0 else "behind"
    return Result("noted", f"this machine is {abs(offset):,.0f} s {side} the store", CLOCK)


CHECKS: Mapping[str, Callable[[Trials], Awaitable[Result | None]]] = {
    check.__name__: check
    for check in (create_only, conditional_writes, round_trip, conditional_read, listing, racing_increments, clock)
}
"""The checks of a store by their names, in their order. One returns None if it says nothing about this store."""
