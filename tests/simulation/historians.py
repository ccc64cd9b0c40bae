"""The actor that switches the history of the queue on, and now and then off."""

from __future__ import annotations

from tests.simulation.workload import Actor

KEPT = 365 * 86400.0
"""Seconds for which events are kept: no object is removed for its age."""


SOON = 0.05
"""Average seconds between the steps: the history begins before most jobs are there."""


class Historian(Actor):
    """Switches the history on, and sometimes off and on again."""

    async def step(self) -> None:
        """Set the history."""
        kept = None if self.dice.random() < 0.1 else KEPT
        if kept is not None and not self.queue.capabilities.history:
            return
        await self.call("configure", self.queue.configure(history=kept))
