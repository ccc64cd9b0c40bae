"""`SyncQueue`: every verb of a queue as a blocking method."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import os
import sys
import threading
import warnings
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from jqueue.connect import connect
from jqueue.core.broker import BrokerQueue
from jqueue.core.queue_base import QueueBase
from jqueue.core.verbs.groups import Group, member_of
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError, JQueueError, QueueClosedError, UnknownOutcomeError
from jqueue.domain.large_values import PayloadSource
from jqueue.domain.models import Job
from jqueue.domain.operations.call import NewJob
from jqueue.domain.operations.groups import GroupStatus
from jqueue.domain.operations.operator import Redriven
from jqueue.ports.queue import Capabilities, JobQueue, payload_of
from jqueue.ports.storage import ObjectStoragePort
from jqueue.runtime.queue_options import lists_queue_options, takes_queue_options
from jqueue.runtime.system import process_id
from jqueue.sync import background
from jqueue.sync.background import CallEnded
from jqueue.sync.open_queue import DEFAULT_DEADLINE, FindClaims, KeepAlive, Kept, OpenQueue, Work

ITEMS_AT_ONCE = 100
"""Number of jobs or events that one call brings from the event loop."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Item = TypeVar("Item")
Method = TypeVar("Method", bound=Callable[..., Any])


def blocking(
    verb: Callable[Concatenate[Any, Parameters], Awaitable[Result]],
    *,
    takes_many: bool = False,
    endless: bool = False,
    claims: FindClaims | None = None,
) -> Callable[[object], Callable[Concatenate[SyncQueue, Parameters], Result]]:
    """Return a decorator that gives the blocking method for a verb, with the same arguments, documentation and types.

    The decorated function is empty. A method that is assigned instead has no type for some type checkers.

    Args:
        verb: the method of the async queue.
        takes_many: True if its first argument, `jobs`, may be an iterator, which is consumed in the caller's thread.
        endless: True if it may wait for longer than any deadline.
        claims: finds the claimed jobs in its result. They are handed back if the caller no longer waits.
    """
    name = verb.__name__

    def call(self: SyncQueue, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        arguments: Sequence[Any] = [_as_list(each) for each in args] if takes_many else args
        named = {key: _as_list(each) for key, each in kwargs.items()} if takes_many else kwargs
        result: Result = self._run(
            lambda queue: _method_of(queue, name)(*arguments, **named), endless=endless, claims=claims
        )
        return result

    return lambda _: _like(verb, call)


def iterating(
    verb: Callable[Concatenate[Any, Parameters], AsyncIterator[Item]], *, endless: bool = False
) -> Callable[[object], Callable[Concatenate[SyncQueue, Parameters], Iterator[Item]]]:
    """Return such a decorator for a verb with an async iterator, whose method has an ordinary one.

    An `endless` one may wait for its next item for longer than any deadline.
    """

    def call(self: SyncQueue, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Iterator[Item]:
        items: AsyncIterator[Item] = _method_of(self._open().queue, verb.__name__)(*args, **kwargs)
        return self._pieces(items, 1 if endless else ITEMS_AT_ONCE, endless=endless)

    return lambda _: _like(verb, call)


def _like(verb: Callable[..., Any], call: Method) -> Method:
    """Return the method of a `SyncQueue` with the name, the arguments and the documentation of its verb."""
    functools.update_wrapper(call, verb)
    vars(call).pop("__signature__", None)  # found at the verb, which checks its options itself
    call.__doc__ = inspect.getdoc(verb)  # which may be inherited from the port
    call.__qualname__ = f"SyncQueue.{verb.__name__}"
    call.__module__ = __name__
    return call


def _method_of(queue: JobQueue, name: str) -> Callable[..., Any]:
    """Return a method that not every async queue has.

    Raises:
        InvalidJobError: this one has none.
    """
    method: Callable[..., Any] | None = getattr(queue, name, None)
    if method is None:
        raise InvalidJobError(f"{type(queue).__name__} has no {name}: use a queue on one object of a store")
    return method


def _claimed_among(results: list[Any]) -> list[Job]:
    """Return the jobs claimed by the dequeues among several operations. Only dequeues return lists of jobs."""
    return [job for result in results if isinstance(result, list) for job in result if isinstance(job, Job)]


class SyncGroup:
    """A group of jobs, as `SyncQueue.group()` returns it: see `JobGroup` of the async queues.

    Attributes:
        id: its id.
    """

    def __init__(self, queue: SyncQueue, group: Group) -> None:
        self.id: str = group.id
        self._queue = queue
        self._group = group

    def __enter__(self) -> Self:
        self._run(lambda group: group.__aenter__())
        return self

    def __exit__(self, *raised: Any) -> None:
        self._run(lambda group: group.__aexit__(*raised))

    def _run(self, call: Callable[[Group], Coroutine[Any, Any, Result]], *, endless: bool = False) -> Result:
        result: Result = self._queue._run(lambda queue: call(self._group.on(queue)), endless=endless)  # noqa: SLF001
        return result

    def enqueue(self, job: str | NewJob, payload: PayloadSource = b"", priority: int = 0, **options: Any) -> Job:
        """Add a job to the group: see `JobGroup.enqueue`."""
        return self._run(lambda group: group.enqueue(job, payload, priority, **options))

    def enqueue_many(self, jobs: Iterable[NewJob], *, deadline: Duration | None = None) -> Sequence[Job]:
        """Add many jobs to the group in one commit: see `JobGroup.enqueue_many`."""
        return self._queue.enqueue_many((member_of(self.id, job) for job in jobs), deadline=deadline)

    def status(self, *, deadline: Duration | None = None) -> GroupStatus:
        """Return the numbers of its jobs: see `JobGroup.status`."""
        return self._run(lambda group: group.status(deadline=deadline))

    def wait(self, timeout: Duration | None = None, *, deadline: Duration | None = None) -> GroupStatus:
        """Wait until no job of it waits or runs: see `JobGroup.wait`."""
        return self._run(lambda group: group.wait(timeout, deadline=deadline), endless=True)

    def cancel(self, *, deadline: Duration | None = None) -> GroupStatus:
        """Cancel it: see `JobGroup.cancel`."""
        return self._run(lambda group: group.cancel(deadline=deadline))

    def redrive(self, *, deadline: Duration | None = None) -> Redriven:
        """Queue its dead jobs again: see `JobGroup.redrive`."""
        return self._run(lambda group: group.redrive(deadline=deadline))

    def results(self, *, deadline: Duration | None = None) -> Iterator[Job]:
        """Iterate over its finished jobs whose results are kept: see `JobGroup.results`."""
        group: Group = self._group.on(self._queue._open().queue)  # noqa: SLF001
        return self._queue._pieces(group.results(deadline=deadline))  # noqa: SLF001


@lists_queue_options
class SyncQueue:
    """A queue whose verbs block: for programs without an event loop.

        queue = SyncQueue("queue.json")
        queue.enqueue("mail", b"hello")

    All threads may share it: calls that come at the same time share commits. It may be made when a module is imported,
    and used before a fork and after it. It needs no closing, since calls under way are finished at exit; `close()` or
    `with` releases its connections earlier. A pickled copy is the same queue elsewhere.

    The errors are the ones of the async queue. Ctrl-C, or another exception from a signal handler, ends a waiting call,
    and jobs that it claims are handed back. In a coroutine every call warns that it blocks the event loop, and `result`
    and `collect` raise JQueueError, as their job may need that loop: use `BrokerQueue` there. The cells of a notebook
    may block their loop.

    Args:
        target: the URL or the path of a queue, a storage, or an async queue that was not entered.
        settings: options of the `BrokerQueue`: see `QueueOptions`. An async queue has its own and takes none here.

    Raises:
        InvalidURLError: the URL is wrong.
        InvalidJobError: a setting is invalid, or the target is of another type.
        TypeError: a setting does not exist.

    Attributes:
        blocks: True, as its verbs return their results. `Handler.enqueue` asks for it.
    """

    blocks = True

    @takes_queue_options
    def __init__(self, target: str | os.PathLike[str] | ObjectStoragePort | JobQueue, **settings: Any) -> None:
        queue: Any = target
        if isinstance(target, str | os.PathLike):
            queue = connect(target, **settings)
        elif isinstance(target, ObjectStoragePort):
            queue = BrokerQueue(target, **settings)
        elif isinstance(queue, SyncQueue) or not hasattr(queue, "enqueue"):
            kind = type(target).__name__
            raise InvalidJobError(
                f"SyncQueue takes the URL or the path of a queue, a storage, or an async queue; got {kind}"
            )
        elif settings:
            raise TypeError(f"an async queue has settings of its own: give {', '.join(settings)} to the async queue")
        self._queue: JobQueue = queue
        self._closed = False
        self._process = process_id()
        self._open_queue: OpenQueue | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None

    # Jobs in and out

    @blocking(BrokerQueue.enqueue)
    def enqueue(self) -> None: ...
    @blocking(BrokerQueue.enqueue_many, takes_many=True)
    def enqueue_many(self) -> None: ...
    @blocking(BrokerQueue.staging_time)
    def staging_time(self) -> None: ...
    @blocking(BrokerQueue.enqueue_staged)
    def enqueue_staged(self) -> None: ...
    @blocking(BrokerQueue.dequeue, claims=list)
    def dequeue(self) -> None: ...

    def group(self, id: str | None = None, *, then: NewJob | None = None, on_end: NewJob | None = None) -> SyncGroup:
        """Return a group of jobs, for `with queue.group(then=...) as group:`. See `BrokerQueue.group`."""
        return SyncGroup(self, _method_of(self._open().queue, "group")(id, then=then, on_end=on_end))

    # Claims

    @blocking(BrokerQueue.ack)
    def ack(self) -> None: ...
    @blocking(BrokerQueue.ack_many, takes_many=True)
    def ack_many(self) -> None: ...
    @blocking(BrokerQueue.nack)
    def nack(self) -> None: ...
    @blocking(BrokerQueue.nack_many, takes_many=True)
    def nack_many(self) -> None: ...
    @blocking(BrokerQueue.claim_lease)
    def claim_lease(self) -> None: ...
    @iterating(BrokerQueue.read_lease)
    def read_lease(self) -> None: ...
    @blocking(BrokerQueue.end_lease)
    def end_lease(self) -> None: ...
    @blocking(BrokerQueue.heartbeat)
    def heartbeat(self) -> None: ...
    @blocking(BrokerQueue.heartbeat_many, takes_many=True)
    def heartbeat_many(self) -> None: ...

    # Several things at once

    @blocking(BrokerQueue.apply, claims=_claimed_among)
    def apply(self) -> None: ...
    @blocking(BrokerQueue.apply_each, claims=_claimed_among)
    def apply_each(self) -> None: ...

    # Operators

    @blocking(BrokerQueue.cancel)
    def cancel(self) -> None: ...
    @blocking(BrokerQueue.reschedule)
    def reschedule(self) -> None: ...
    @blocking(BrokerQueue.reprioritise)
    def reprioritise(self) -> None: ...
    @blocking(BrokerQueue.redrive)
    def redrive(self) -> None: ...
    @blocking(BrokerQueue.purge)
    def purge(self) -> None: ...
    @blocking(BrokerQueue.requeue_stale)
    def requeue_stale(self) -> None: ...

    # Pauses and limits

    @blocking(BrokerQueue.pause)
    def pause(self) -> None: ...
    @blocking(BrokerQueue.resume)
    def resume(self) -> None: ...
    @blocking(BrokerQueue.limit)
    def limit(self) -> None: ...
    @blocking(BrokerQueue.configure)
    def configure(self) -> None: ...

    # Cron

    @blocking(BrokerQueue.schedule)
    def schedule(self) -> None: ...
    @blocking(BrokerQueue.unschedule)
    def unschedule(self) -> None: ...
    @blocking(BrokerQueue.schedules)
    def schedules(self) -> None: ...
    @blocking(BrokerQueue.stop_worker)
    def stop_worker(self) -> None: ...

    # Looking

    @blocking(BrokerQueue.result, endless=True)
    def result(self) -> None: ...
    @blocking(BrokerQueue.peek)
    def peek(self) -> None: ...
    @blocking(BrokerQueue.until_ready)
    def until_ready(self) -> None: ...
    @blocking(BrokerQueue.find)
    def find(self) -> None: ...
    @iterating(BrokerQueue.watch, endless=True)
    def watch(self) -> None: ...
    @blocking(BrokerQueue.read_state)
    def read_state(self) -> None: ...
    @iterating(BrokerQueue.iterate_jobs)
    def iterate_jobs(self) -> None: ...
    @iterating(BrokerQueue.history)
    def history(self) -> None: ...
    @blocking(BrokerQueue.view)
    def view(self) -> None: ...
    @blocking(BrokerQueue.stats)
    def stats(self) -> None: ...

    # Large payloads and results

    @blocking(BrokerQueue.step_result)
    def step_result(self) -> None: ...
    @blocking(BrokerQueue.collect, endless=True)
    def collect(self) -> None: ...

    def open_payload(self, job: Job) -> Iterator[bytes]:
        """Yield the payload of a job in pieces, as `SupportsLargeValues.open_payload` does."""
        return self._pieces(payload_of(self._open().queue, job), 1)

    def _pieces(
        self, items: AsyncIterator[Item], at_once: int = ITEMS_AT_ONCE, *, endless: bool = False
    ) -> Iterator[Item]:
        """Yield what an async iterator yields, brought from its event loop `at_once` by `at_once`."""
        error: JQueueError | None = None
        ended = False
        while not ended:
            piece, ended, error = self._run(lambda _: _piece_of(items, at_once), endless=endless)
            try:
                yield from piece
            except GeneratorExit:
                if not ended and isinstance(items, AsyncGenerator):
                    with suppress(JQueueError):
                        self._run(lambda _: items.aclose())
                raise
        if error is not None:
            raise error.with_traceback(None) from error.__cause__

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of this queue."""
        return self._queue.capabilities

    def keep_alive(self, job_id: Kept, interval: Duration | None = None) -> KeepAlive:
        """Keep claims alive while a block of code works on their jobs: `with queue.keep_alive(job):`.

        Args:
            job_id: a job, a claim, a lease, an id, or several of them.
            interval: time between heartbeats; by default a third of the claim's timeout, and at most 60 seconds.

        Returns:
            A context manager. Its `lost` is True once a claim is lost, and leaving it then raises ClaimLostError.
        """
        return KeepAlive(self._open(), job_id, interval)

    def resolve(self, error: UnknownOutcomeError, timeout: Duration | None = None) -> Any:
        """Find out what a call with an unknown outcome did: `error.resolve`, blocking.

        Args:
            error: the error that the call raised.
            timeout: time to try for; by default, the deadline of the queue.

        Returns:
            The result that the call would have returned. For a dequeue it is an empty list, as its claims were handed
            back meanwhile.

        Raises:
            DeadlineExceededError: the call was certainly not done, and never will be.
            UnknownOutcomeError: the outcome is still unknown.
        """
        seconds = None if timeout is None else to_seconds("timeout", timeout)
        return self._run(lambda _: error.resolve(seconds))

    # Opening and closing

    def __enter__(self) -> Self:
        self._closed = False
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, deadline: Duration | None = None) -> None:
        """Take no more calls, finish those under way, and release the storage. A closed queue may be entered again.

        Args:
            deadline: time within which this ends; by default, that of the queue. Calls that could not be finished fail,
                and their errors say if they may have been done.
        """
        seconds = None if deadline is None else to_seconds("deadline", deadline)
        with background.starting:
            self._closed = True
            open_queue, self._open_queue = self._open_queue, None
        if open_queue is not None:
            open_queue.close(seconds)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._queue!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._queue,)

    # Underneath

    def _run(self, work: Work, *, endless: bool = False, claims: FindClaims | None = None) -> Any:
        """Do `work` on the background thread, and wait for it."""
        _check_coroutine(endless)
        try:
            return self._open().run(work, endless=endless, claims=claims)
        except CallEnded:
            if background.is_ending() and threading.current_thread().daemon:
                # The interpreter is about to stop this thread, so no error needs to be raised before.
                threading.Event().wait(DEFAULT_DEADLINE)
            raise
        except JQueueError as error:
            # An error of ours needs only the caller's frames. In any other error, the background's frames are the clue.
            raise error.with_traceback(None) from error.__cause__

    def _open(self) -> OpenQueue:
        """Return the queue that is open on the thread of this process. It is opened if it is not."""
        if self._closed:
            raise QueueClosedError("this SyncQueue is closed: make a new one, or enter it again")
        open_queue = self._open_queue
        if open_queue is not None and open_queue.takes_calls:
            return open_queue
        with background.starting:
            if self._open_queue is None or not self._open_queue.takes_calls:
                if self._process != process_id():
                    self._process = process_id()
                    if isinstance(self._queue, QueueBase):  # the fork may have come in the middle of a call
                        self._queue = copy.copy(self._queue)
                self._open_queue = OpenQueue(background.background(), self._queue)
                if self._finalizer is not None:
                    self._finalizer.detach()
                self._finalizer = weakref.finalize(self, self._open_queue.close_soon)
                self._finalizer.atexit = False
            return self._open_queue


async def _piece_of(items: AsyncIterator[Item], at_once: int) -> tuple[list[Item], bool, JQueueError | None]:
    """Return the next items, True if they are the last, and the error that came after them."""
    piece: list[Item] = []
    try:
        while len(piece) < at_once:
            piece.append(await anext(items))
    except StopAsyncIteration:
        return piece, True, None
    except JQueueError as error:
        return piece, True, error
    return piece, False, None


def _as_list(jobs: Any) -> Any:
    """Return the jobs as a list. Their iterator may belong to the caller's thread, as a database cursor does."""
    return list(jobs) if isinstance(jobs, Iterable) and not isinstance(jobs, str | bytes) else jobs


def _check_coroutine(endless: bool) -> None:
    """Warn of a call in a coroutine, except in the cells of a notebook, which may block their event loop.

    Code that a loop calls outside of its tasks, as below Playwright's blocking API, has nothing that it could await.

    Raises:
        JQueueError: the call is endless, and the work that it waits for may be on the blocked loop.
    """
    with suppress(RuntimeError):  # no event loop runs in this thread
        ipython = sys.modules.get("IPython")
        if asyncio.current_task() is None or getattr(ipython and ipython.get_ipython(), "kernel", None) is not None:
            return
        advice = "use BrokerQueue and await its calls, or call from another thread, for example with asyncio.to_thread"
        if endless:
            raise JQueueError(f"this coroutine would wait for a job that may need the same event loop: {advice}")
        warnings.warn(f"a SyncQueue blocks the event loop of this coroutine: {advice}", RuntimeWarning, stacklevel=4)
