"""Offsets of the streaming source: the query and the claim of a batch, as Spark writes them into its offset log.

A queue has no positions to continue from: a batch is the jobs that one claim took. So an offset names that claim. After
a restart, the jobs that are in progress under that name are the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jqueue.domain.errors import InvalidJobError


class Offset(NamedTuple):
    """The end of one batch, and the start of the next.

    Attributes:
        source: the query's own id, drawn when it first starts, and kept by its checkpoint.
        batch: number of batches until then; for people.
        claim: the id of the claim that took the jobs of this batch; empty if there is none.
    """

    source: str
    batch: int
    claim: str

    @classmethod
    def read(cls, values: object) -> Offset:
        """Return the offset that Spark gives back.

        Raises:
            InvalidJobError: it is not an offset of ours.
        """
        if isinstance(values, Mapping):
            source, batch, claim = (values.get(name) for name in cls._fields)
            if isinstance(source, str) and source and isinstance(batch, int) and isinstance(claim, str):
                return cls(source, batch, claim)
        raise InvalidJobError(
            "the checkpoint holds an offset that is not of a queue: was it made by a query on another source?"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the offset as Spark takes it."""
        return self._asdict()

    def followed_by(self, claim: str) -> Offset:
        """Return the end of the batch that this claim took."""
        return Offset(self.source, self.batch + 1, claim)


HOLDERS = "spark/"
"""Start of the names of the holders of all claims of queries."""


def holder_prefix(source: str) -> str:
    """Return the start of the names of the holders of all claims of a query."""
    return f"{HOLDERS}{source}/"


def holder_of(source: str, claim: str) -> str:
    """Return the holder of the jobs that one claim took."""
    return holder_prefix(source) + claim


def claim_of(holder: str) -> str:
    """Return the claim that took the jobs of a holder: see `holder_of`."""
    return holder.rpartition("/")[2]
