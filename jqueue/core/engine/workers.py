"""The workers of one queue object, which report themselves with its commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from jqueue.domain.workers import WorkerRecord

Describe = Callable[[float], WorkerRecord]
"""Returns the record of a worker at a time, in seconds since 1970."""


class Workers:
    """The workers that run on one queue object, by the id of their run."""

    def __init__(self) -> None:
        self._present: dict[str, Describe] = {}
        self._left: set[str] = set()

    def attend(self, run: str, describe: Describe) -> None:
        """Add a worker."""
        self._present[run] = describe

    def leave(self, run: str) -> None:
        """Remove a worker. The next commit removes its record."""
        if self._present.pop(run, None) is not None:
            self._left.add(run)

    def records(self, at: float) -> Mapping[str, WorkerRecord | None]:
        """Return the records to write at a time, in seconds since 1970; None for a worker that has left."""
        if not self._present and not self._left:
            return {}
        return {run: describe(at) for run, describe in self._present.items()} | dict.fromkeys(self._left)

    def landed(self, runs: Iterable[str]) -> None:
        """Note that the records of these runs were committed."""
        self._left.difference_update(runs)
