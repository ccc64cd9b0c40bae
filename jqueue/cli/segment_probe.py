"""The probe of `jqueue doctor` that looks for the segments of a queue. It reads only their ends."""

from __future__ import annotations

from datetime import timedelta

from jqueue.cli.printing import jobs, size
from jqueue.cli.probes import NotTriedError, ProbeContext, Result, failed, noted, passed
from jqueue.cli.scratch import with_retries
from jqueue.core.blob.codec import parse_blob
from jqueue.domain.counting import counted
from jqueue.domain.errors import InvalidBlobError, ObjectMissingError, StorageFatalError
from jqueue.domain.models import QueueState
from jqueue.domain.segments import FOLDER
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import Listed, ObjectStoragePort, SupportsObjects

KEPT_FOR = timedelta(hours=2)
"""Age below which an unnamed segment is no litter: a commit may name it soon, or a reader may still need it."""

NAMED = 3
"""Largest number of missing segments to name."""

RESTORE = (
    "Restore the missing segments from a backup. If there is none, give up their jobs: `jqueue drop-segment URL NAME`."
)
COLLECT = "Objects that nothing names are removed while workers run, or by queue.collect()."


async def segments(context: ProbeContext) -> Result | None:
    """Compare the segments in the manifest with the stored objects. Return None for a queue without segments."""
    storage, entropy = context.space.storage, context.space.entropy
    if not isinstance(storage, SupportsObjects):
        return None
    try:
        listed = await with_retries(lambda: storage.list_beside(FOLDER), entropy)
        header = await _header(storage, entropy)
        missing = [name for name in header.segments if not await _is_whole(storage, header, name, entropy)]
        if missing:
            header = await _header(storage, entropy)  # the queue may have changed meanwhile
            missing = [name for name in missing if name in header.segments]
    except (InvalidBlobError, StorageFatalError) as error:
        raise NotTriedError(f"{error}") from None
    if missing:
        number = sum(header.segments[name].waiting for name in missing)
        named = ", ".join(f"{FOLDER}{name}" for name in missing[:NAMED])
        return failed(
            f"{counted(len(missing), 'segment is', 'segments are')} missing or cut off: {named}",
            f"not run {jobs(number)} of the queue, whose segments are missing.",
            RESTORE,
        )
    before = context.clock.now() - KEPT_FOR
    orphans = [each for each in listed if _name(each) not in {*header.segments, *header.retired}]
    old = [each for each in orphans if each.modified < before]
    there = f"{counted(len(header.segments), 'segment')} with {_waiting(header)}"
    if old:
        litter = counted(len(old), "object that nothing names", "objects that nothing names")
        return noted(f"{there}; {litter}, {size(sum(each.size for each in old))}", COLLECT)
    return passed(there) if header.segments else None


def _waiting(header: QueueState) -> str:
    return counted(sum(segment.waiting for segment in header.segments.values()), "waiting job")


def _name(listed: Listed) -> str:
    return listed.suffix.removeprefix(FOLDER)


async def _header(storage: ObjectStoragePort, entropy: Entropy) -> QueueState:
    data, etag = await with_retries(storage.read, entropy)
    return QueueState() if etag is None else parse_blob(data).header


async def _is_whole(storage: SupportsObjects, header: QueueState, name: str, entropy: Entropy) -> bool:
    """Return True if a segment exists, and is as long as the queue says."""
    end = header.segments[name].bytes
    try:
        return len(await with_retries(lambda: storage.read_object(FOLDER + name, end - 1, end + 1), entropy)) == 1
    except ObjectMissingError:
        return False
