"""`StoreQueue`: a queue on a store that keeps each job by itself, such as a folder in the format of another program."""

from __future__ import annotations

from typing import Any

from jqueue.core.queue_base import Prepared, UsableAtOnce
from jqueue.core.verbs import QueueVerbs
from jqueue.domain.durations import to_seconds
from jqueue.formats.engine import StoreEngine
from jqueue.formats.port import JobStorePort
from jqueue.ports.queue import Capabilities
from jqueue.runtime.queue_options import QueueOptions, lists_queue_options, takes_queue_options

BATCH_LIMIT = 1_000
"""Largest number of calls in one commit."""


@lists_queue_options
class StoreQueue(QueueVerbs, UsableAtOnce):
    """A queue on a store that keeps each job by itself.

    It can be used at once. The end of `async with`, or `aclose`, waits for the calls that are still under way.

    Args:
        store: the store of the jobs. A call that needs a feature the store lacks is refused.
        options: by name, as below.
    """

    _engine: StoreEngine

    @takes_queue_options
    def __init__(self, store: JobStorePort, **options: Any) -> None:
        self.store = store
        settings = QueueOptions(**options)
        settings.check()
        timeout = to_seconds("stale_timeout", settings.stale_timeout)
        engine = StoreEngine(store, settings.clock, settings.entropy, claim_timeout=timeout)
        super().__init__(engine, settings, batch_limit=BATCH_LIMIT)

    @property
    def capabilities(self) -> Capabilities:
        """Features of the store."""
        return self.store.capabilities

    def __repr__(self) -> str:
        return f"StoreQueue(store={self.store!r})"

    def _checked(self, operation: Prepared) -> Prepared:
        self.capabilities.require(*operation.needs(self._preparation.claim_timeout))
        return operation

    async def _release(self) -> None:
        await self._engine.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.store, dict(vars(self.options)))


def _rebuild(store: JobStorePort, settings: dict[str, Any]) -> StoreQueue:
    return StoreQueue(store, **settings)
