"""Offsets of the streaming source: which claim of which query a batch is, as Spark writes it into its offset log.

A queue has no positions to go on from: a batch is what one claim took. So an offset names that claim, and the jobs that
are in progress under its name are the batch, for whoever reads the log after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jqueue.domain.errors import InvalidJobError


class Offset(NamedTuple):
    """The end of one batch, and the start of the next.

    Attributes:
        source: the query's own id, drawn when it first starts, and kept by its checkpoint.
        batch: how many batches there were until then; for people.
        claim: the id of the claim that took the jobs of this batch; empty where there is none.
    """

    source: str
    batch: int
    claim: str

    @classmethod
    def read(cls, told: object) -> Offset:
        """An offset as Spark gives it back.

        Raises:
            InvalidJobError: it is none of ours.
        """
        if isinstance(told, Mapping):
            source, batch, claim = (told.get(name) for name in cls._fields)
            if isinstance(source, str) and source and isinstance(batch, int) and isinstance(claim, str):
                return cls(source, batch, claim)
        raise InvalidJobError(
            "the checkpoint holds an offset that is not of a queue: was it made by a query on another source?"
        )

    def told(self) -> dict[str, Any]:
        """The offset as Spark takes it."""
        return self._asdict()

    def followed_by(self, claim: str) -> Offset:
        """The end of the batch that this claim took."""
        return Offset(self.source, self.batch + 1, claim)


def holder_prefix(source: str) -> str:
    """How the holders of all claims of a query are named."""
    return f"spark/{source}/"


def holder_of(source: str, claim: str) -> str:
    """The holder of the jobs that one claim took."""
    return holder_prefix(source) + claim
