"""`Call`: the call of a handler as a value, which becomes a job when it is enqueued."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from jqueue.domain.job import Encoding
from jqueue.domain.operations.enqueue import Enqueue

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """The call of a handler, made by `handler.call(...)`. Its type parameter is what the handler's function returns.

    Attributes:
        entrypoint: the entrypoint of the handler.
        payload: the arguments, encoded.
        encoding: how they are encoded: see `Job`.
        options: options of `Enqueue`, by name.
    """

    entrypoint: str
    payload: bytes = field(repr=False)
    encoding: Encoding | None
    options: Mapping[str, Any]

    def operation(self) -> Enqueue:
        """Return the operation that adds the job."""
        return Enqueue(self.entrypoint, self.payload, encoding=self.encoding, **self.options)


NewJob = Enqueue | Call[Any]
"""A job that is to be added."""

NewJobs = Iterable[NewJob] | AsyncIterable[NewJob]
"""Any number of them."""
