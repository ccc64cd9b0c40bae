"""The jobs of a source in the parts in which they are read: a part that is in order need not be read to its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Self

from jqueue.core.engine.view import QueueView
from jqueue.core.verbs.operator import OperatorVerbs
from jqueue.domain.models import Job, QueueState
from jqueue.ports.queue import Operator

Part = tuple[aclosing[AsyncGenerator[Job, None]], int | None]
"""Some of the jobs; and their number if they come in the order in which they are served, or else None."""


@dataclass(frozen=True)
class SourceJobs:
    """One version of a source.

    Attributes:
        state: the state of its object; the jobs in it are not used.
        source: the queue.
        view: the version; None for a queue without views, which is read again for its jobs.
    """

    state: QueueState
    source: Operator
    view: QueueView | None = None

    @classmethod
    async def of(cls, source: Operator) -> Self:
        """Read a source.

        Raises:
            StorageError: the store failed.
        """
        if not isinstance(source, OperatorVerbs):
            return cls(await source.read_state(), source)
        view = await source.view()
        return cls(view.header.model_copy(update={"set_aside": view.set_aside}), source, view)

    def parts(self) -> Iterator[Part]:
        """Yield the parts."""
        if self.view is None:
            yield aclosing(self.source.iterate_jobs()), None
            return
        ready = [each for each in self.state.segments.values() if not each.scheduled]
        if self.state.ranges:  # jobs of ranges, which are in progress, are not among those in order
            yield aclosing(self.view.jobs()), None
            return
        yield aclosing(self.view.jobs(others=False)), None
        yield self.view.others_in_order(scheduled=True), None
        yield self.view.others_in_order(scheduled=False), sum(each.waiting for each in ready)
