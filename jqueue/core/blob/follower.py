"""A reader that follows the object of a queue: it reads again only what has changed, and never writes."""

from __future__ import annotations

from jqueue.core.blob.codec import parse_blob
from jqueue.core.blob.content import Blob
from jqueue.core.blob.segment_jobs import RowSource
from jqueue.core.blob.segment_reader import SegmentReader
from jqueue.core.lazy_state import LazyState
from jqueue.core.observers import Observers
from jqueue.core.tasks import read_until
from jqueue.domain.errors import BlobMissingError, InvalidBlobError
from jqueue.domain.limits import bytes_taken
from jqueue.domain.models import QueueState
from jqueue.domain.slices import exhaust
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects, SupportsReadIfChanged
from jqueue.runtime.threads import in_a_thread


class Follower:
    """The content of a queue's object. An unchanged object is not sent again, and an unchanged line is not parsed.

    Calls must not overlap. It shares nothing with queues on the same storage, and sees no commit before it has landed.

    Args:
        storage: holds the object.
        entropy: draws the pauses between failed reads.
        clock: measures the calls for segments.
        call_timeout: seconds within which a call for a segment must end.

    Attributes:
        size: bytes of the object; 0 if there is none.
        taken: bytes of it that count against the limit of enqueue.
    """

    def __init__(self, storage: ObjectStoragePort, entropy: Entropy, clock: Clock, *, call_timeout: float) -> None:
        self._storage = storage
        self._entropy = entropy
        self._blob = Blob()
        self._header = QueueState()
        self._etag: str | None = None
        self._rows: RowSource | None = None
        if isinstance(storage, SupportsObjects):
            reader = SegmentReader(storage, Observers(clock), call_timeout=call_timeout)
            self._rows = RowSource(reader, entropy)
        self.size = 0
        self.taken = 0

    async def refresh(self, deadline: float) -> bool:
        """Read the object. Return True if it had changed.

        Args:
            deadline: maximum seconds.

        Raises:
            BlobMissingError: the object was there and is gone.
            InvalidBlobError: the object is not a queue that this version can read.
            StorageError: the store failed until the deadline.
        """
        found = await read_until(deadline, self._read, self._entropy, "the queue")
        if found is None:
            return False
        data, etag = found
        if etag is None and self._etag is None:
            return False
        if etag is None:
            raise BlobMissingError("the queue's object has disappeared: restore it, or check who removed it")
        await in_a_thread(self._adopt, data)
        self._etag = etag
        return True

    def forget_damage(self) -> None:
        """Forget which segments could not be read: they may have been restored."""
        if self._rows is not None:
            self._rows.reader.damage.forget()

    def content(self, deadline: float) -> LazyState:
        """Return the content as of the last `refresh`. The next one changes its jobs in place.

        Args:
            deadline: maximum seconds for each request for a segment, with its repetitions.
        """
        content = LazyState(self._header, self._blob.draft.set_aside, self._blob.draft.jobs)
        if self._header.segments and self._rows is not None:
            content.rows = self._rows.jobs_of(self._header, deadline)
        return content

    async def _read(self) -> tuple[bytes, str | None] | None:
        if self._etag is not None and isinstance(self._storage, SupportsReadIfChanged):
            return await self._storage.read_if_changed(self._etag)
        data, etag = await self._storage.read()
        return None if etag is not None and etag == self._etag else (data, etag)

    def _adopt(self, data: bytes) -> None:
        parsed = parse_blob(data)
        if parsed.header.segments and self._rows is None:
            raise InvalidBlobError(
                "the queue keeps jobs in segments beside it, which this storage cannot read: use a storage with the "
                "methods of SupportsObjects"
            )
        try:
            exhaust(self._blob.adopting(parsed, len(data)))
        except BaseException:  # only a part of it was taken over
            self._blob, self._etag = Blob(), None
            raise
        header = self._header = parsed.header
        self.size = len(data)
        self.taken = bytes_taken(len(data) - parsed.header_bytes, header.holds, header.schedules)
