"""`BrokerQueue`: the group-commit loop as a context manager. For programs with many calls in flight."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from jqueue.core.group_commit import GroupCommitLoop
from jqueue.runtime.queue_options import lists_queue_options


@lists_queue_options
class BrokerQueue(GroupCommitLoop):
    """A queue that puts every call in flight into one commit.

        async with BrokerQueue(LocalFileSystemStorage("queue.json")) as queue:
            await queue.enqueue("resize", image)

    Leaving the block finishes the calls under way, hands back claims that no caller took, and ends by the deadline.

    Args:
        storage: holds the queue's object; `open_storage(url)` makes it from a URL.
        stale_timeout: time without a heartbeat after which a claim made here is stale; 5 minutes by default.
        options: by name: those of `QueueOptions`.
    """

    _how_to_start = "use it as `async with BrokerQueue(...) as queue:`"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.stop()
