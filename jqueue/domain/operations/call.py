"""`Call`: the call of a handler as a value, which becomes a job when it is enqueued."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from msgspec.structs import replace

from jqueue.domain.job import Encoding
from jqueue.domain.models import Job
from jqueue.domain.operations.enqueue import Enqueue

R_co = TypeVar("R_co", covariant=True)
S_co = TypeVar("S_co", covariant=True)


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

    def then(self, handler: Follows[S_co], /, **arguments: Any) -> Chain:
        """Return a chain: this call, and then one of another handler, whose first argument is the result of this one.

        `await queue.enqueue_many(chain)` adds the jobs of a chain in one commit. Each waits for the one before it.

        Args:
            handler: of the following call.
            arguments: its other arguments, by name.

        Raises:
            InvalidJobError: the handler has no first argument, or does not take the others.
        """
        return Chain((self, handler.follow(arguments)))

    def operation(self) -> Enqueue:
        """Return the operation that adds the job."""
        return Enqueue(self.entrypoint, self.payload, encoding=self.encoding, **self.options)


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls that follow each other: an iterable of the operations that add their jobs.

    Attributes:
        calls: the calls, in order.
    """

    calls: tuple[Call[Any], ...]

    def then(self, handler: Follows[Any], /, **arguments: Any) -> Chain:
        """Return the chain with one more call: see `Call.then`."""
        return Chain((*self.calls, handler.follow(arguments)))

    def __iter__(self) -> Iterator[Enqueue]:
        """Yield the operation of each call, for new jobs in each iteration."""
        before: str | None = None
        for call in self.calls:
            operation = call.operation()
            job_id = operation.job_id or Job.new("").id
            after = operation.after if before is None else [before]
            yield replace(operation, job_id=job_id, after=after)
            before = job_id


class Follows(Protocol[S_co]):
    """A handler whose calls can follow others."""

    def follow(self, arguments: Mapping[str, Any]) -> Call[S_co]:
        """Return a call whose first argument is the result of another job, given the others."""


NewJob = Enqueue | Call[Any]
"""A job that is to be added."""

NewJobs = Iterable[NewJob] | AsyncIterable[NewJob]
"""Any number of them."""
