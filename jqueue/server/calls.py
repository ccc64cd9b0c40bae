"""`POST /v1/calls`: takes the calls of jqueue's own clients, as a broker does on a Unix socket.

The request has one message of `jqueue.core.messages` as JSON, with `Content-Type: application/json` and, if the broker
has tokens, `Authorization: Bearer TOKEN`. The message may have 64 MiB.

The answer has the status 200 and one `Answer` as JSON, whose `error` refuses the whole message. While the broker works,
it sends a space every two seconds: JSON ignores white space before a value. A client that hears nothing for five can
give the broker up. An answer that ends early, or a connection that breaks, leaves open what was done.

Every other status is that of a problem document (`jqueue.server.problems`), and nothing was done:

- 400, 408, 413, 415, 422: the request cannot be read, and will not be the next time.
- 401, 403, 421: the token, the role of the token, or the name of the host is wrong.
- 429, 503: the broker has too much to do, or no connection free; `Retry-After` has the seconds.

If a client goes away, its call is cancelled, as in its own process. There are no redirects. One connection carries one
call at a time: a client needs a second one beside that of a dequeue that waits. An idle connection is closed after
`KEEP_ALIVE` seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, MutableMapping
from typing import Any, NoReturn

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jqueue.core.blob.codec import encode as encode_blob
from jqueue.core.blob.codec import parse_blob
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.messages import Answer, Batch, Claim, Stop, encode
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import OBJECTS
from jqueue.domain.limits import Limits, check_name
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.codec import asked_by, held_by
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import HandBackCalls
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.segments import SEGMENTS
from jqueue.ports.sharing import LARGEST_MESSAGE
from jqueue.ports.storage import time_of
from jqueue.runtime.threads import in_a_thread
from jqueue.server.access import HIDDEN, Caller, Role, check, check_operation, not_allowed
from jqueue.server.intake import Intake, caller_of
from jqueue.server.payloads import without_payloads
from jqueue.server.problems import Problem

BEAT = 2.0
"""Seconds between the spaces. At half a second, they would cost four times as much: most of it is the kernel's work."""

AT_ONCE = 4
"""Number of clients that the whole object is read for at a time: each has a copy of it."""

MOST_ROWS = 50_000
"""Largest number of jobs in segments that are sent with the object. They take about 150 MB meanwhile."""

KEEP_ALIVE = 60
"""Seconds after which a connection without a request is closed."""

_BESIDE = frozenset((OBJECTS, SEGMENTS))
"""What a client cannot have that reaches no objects beside the queue's. It does not need them to look."""


def _no_claim(reference: JobReference) -> NoReturn:
    raise InvalidJobError("an enqueue names no claim")


def _check(caller: Caller, operation: Operation, limits: Limits) -> None:
    """Check an operation that a client sends, with all that it holds.

    Raises:
        Problem: the client's role does not allow it, or it names another client's call.
        InvalidJobError: a job is larger than the limits, or its values are wrong.
    """
    check_operation(caller.role, operation)
    calls = operation.calls if isinstance(operation, HandBackCalls) else ()
    for call in (operation.call or "",) if isinstance(operation, Dequeue) else calls:
        caller.check_client(call.rpartition("/")[0])
    for each in held_by(operation):
        _check(caller, each, limits)
    if isinstance(operation, Enqueue) and caller.role is Role.PRODUCER:
        if operation.payload_object is not None:
            raise not_allowed("a producer may not name an object that has a payload: it might be another job's")
        check_name("id", operation.id, limits)
        operation.prepared(Preparation(limits, 0.0, str, _no_claim))


class Calls:
    """The endpoint.

    Args:
        queue: the queue, which is open.
        intake: reads the messages.
    """

    def __init__(self, queue: BlobQueue, intake: Intake) -> None:
        self._queue, self._intake = queue, intake
        self._service = queue.service()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a message, as an ASGI application."""
        caller = caller_of(scope)
        check(caller.role, "POST /v1/calls")
        async with self._intake.body(scope, receive, LARGEST_MESSAGE) as data:
            message = self._service.read(data)
            caller.check_client(message.client)
            if isinstance(message, Stop):
                _check(caller, Dequeue(call=message.call), self._queue.options.limits)
            else:
                if isinstance(message, Batch):
                    operations = tuple(asked_by(caller.name, each) for each in message.operations)
                    message = msgspec.structs.replace(message, operations=operations)
                for operation in message.operations if isinstance(message, Batch) else (message.operation,):
                    _check(caller, operation, self._queue.options.limits)
            work = asyncio.ensure_future(self._service.answer(message, hidden=bool(HIDDEN[caller.role])))
            gone = asyncio.ensure_future(is_gone(receive))
            headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
            start: list[MutableMapping[str, Any]] = [{"type": "http.response.start", "status": 200, "headers": headers}]

            async def say(body: bytes, *, more: bool) -> None:
                if start:
                    await send(start.pop())
                await send({"type": "http.response.body", "body": body, "more_body": more})

            async def ended() -> bool:
                return bool((await asyncio.wait({work, gone}, timeout=BEAT, return_when=asyncio.FIRST_COMPLETED))[0])

            claim = message.operation if isinstance(message, Claim) else None
            call = claim.call if isinstance(claim, Dequeue) else None

            def is_revoked() -> bool:
                return call is not None and not caller.is_known()

            try:
                while not await ended() and not is_revoked():
                    await say(b" ", more=True)
                content = encode(Answer(leaving=True)) if is_revoked() else work.result() if work.done() else b""
                if call is not None and work.done() and (gone.done() or is_revoked()):
                    await self._queue.apply(HandBackCalls((call,)))  # nobody reads the answer, or may read it
                if not gone.done():
                    await say(content, more=False)
            finally:
                await end(work, gone)


class WholeObject:
    """`GET /v1/object`: the queue's object, for clients of jqueue that list jobs or look at figures.

    The answer has its `ETag`; or no content and the header `Jqueue-Absent: yes`, if there is no queue yet. The jobs of
    segments, which the clients cannot reach, stand in it among the others. A viewer gets it without payloads and
    results, and a producer not at all.

    Args:
        queue: the queue, which is open.
        most_rows: largest number of jobs in segments that are sent.
    """

    def __init__(self, queue: BlobQueue, most_rows: int = MOST_ROWS) -> None:
        self._queue, self._most_rows = queue, most_rows
        self._free = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the object, as an ASGI application."""
        role = caller_of(scope).role
        check(role, "GET /v1/object")
        async with self._free:
            content, etag = await unless_gone(receive, self._content(role))
            headers = {"Jqueue-Absent": "yes"} if etag is None else {"ETag": json.dumps(etag)}
            response = Response(content, 200, {**headers, "Cache-Control": "no-store"}, "application/json")
            await response(scope, receive, send)

    async def _content(self, role: Role) -> tuple[bytes, str | None]:
        queue, hidden = self._queue, HIDDEN[role]
        content, etag = await queue.storage.read()
        if etag is None or (not hidden and _BESIDE.isdisjoint(parse_blob(content).header.critical)):
            return content, etag
        view = await queue.view()
        rows = sum(segment.rows for segment in view.header.segments.values())
        if rows > self._most_rows:
            raise Problem(
                413,
                "TooLarge",
                f"the queue has {rows} jobs in segments, and at most {self._most_rows} are sent: look at it where its "
                "store can be reached, on the broker's dashboard, or at its /v1/stats",
            )
        state = await view.state(time_of(queue, queue.options.clock))
        needed = tuple(each for each in state.critical if each not in _BESIDE)
        state = state.model_copy(update={"critical": needed})
        return await in_a_thread(lambda: (without_payloads if hidden else encode_blob)(state)), view.etag


async def is_gone(receive: Receive) -> None:
    """Wait until the client of a request, whose body was read, is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def unless_gone(receive: Receive, work: Awaitable[Any]) -> Any:
    """Return the result of some work. It is cancelled if the client goes away.

    Raises:
        Problem: the client is gone.
    """
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(is_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Problem(400, "Disconnected", "the client is gone")
        return working.result()
    finally:
        await end(working, gone)
