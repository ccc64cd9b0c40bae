"""A proxy between a real client and a real server on one machine, which applies planned faults.

It finds the end of each HTTP/1.1 request, and the start and end of each answer. So it can lose, delay, cut or replace
an answer *after the server has committed*, which a client has to survive. Requests and answers pass through it byte
for byte: the `Host` header is the proxy's, as the client wrote (and signed) it. Answers are passed on when they are
complete, interim answers (100 Continue) at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from random import Random
from typing import Self

from tests.servers.fault_http import (
    CONTINUE,
    END_OF_HEAD,
    LONGEST_HEAD,
    Answer,
    Line,
    parse_head,
    pieces_of,
    read_answer,
)
from tests.servers.fault_kinds import (
    BlackHole,
    DropAnswer,
    Fault,
    HangAnswer,
    Late,
    Refuse,
    ReplaceAnswer,
    ResetRequest,
    TruncateAnswer,
)


@dataclass(eq=False)
class Request:
    """The record of one request.

    Attributes:
        method: method of the request.
        path: target of the request, with the query.
        headers: headers by name in lower case.
        fault: fault applied to the request.
        status: status of the server's answer once it is complete; the client may have got another one.
    """

    method: str
    path: str
    headers: dict[str, str]
    fault: Fault | None = None
    status: int | None = None

    @property
    def expects_continue(self) -> bool:
        """True if the client sends the body only after 100 Continue."""
        return self.headers.get("expect", "").lower() == "100-continue"


@dataclass(eq=False)
class _Plan:
    """A fault for requests of a method: for one, after some others, or for each."""

    fault: Fault
    method: str | None
    others: int = 0

    def matches(self, method: str) -> bool:
        return self.method in (None, method)


class FaultProxy:
    """A proxy that listens on 127.0.0.1 and passes requests on to one server. Any thread may plan faults.

    A request meets at most one fault: one planned for it, or else for each request, or else a random one.

    Args:
        target_host: host of the server.
        target_port: port of the server.
        seed: seed of `random`. The same requests in the same order meet the same faults.

    Attributes:
        rate: probability that a request meets one of `kinds`.
        kinds: the random faults.
        random: source of randomness for these faults.
        requests: the requests read so far, in order of arrival.
        connections: number of accepted connections.
        fired: number of times that each type of fault was applied.
    """

    def __init__(self, target_host: str, target_port: int, *, seed: int = 0) -> None:
        self.target = (target_host, target_port)
        self.port = 0
        self.rate = 0.0
        self.kinds: Sequence[Fault] = ()
        self.random = Random(seed)
        self.requests: list[Request] = []
        self.connections = 0
        self.fired: Counter[type[Fault]] = Counter()
        self._next: list[_Plan] = []
        self._each: list[_Plan] = []
        self._lock = threading.Lock()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []

    @property
    def url(self) -> str:
        """The endpoint for the client."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, after a restart on the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=LONGEST_HEAD)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close everything. Until the next start, the operating system refuses connections.

        Raises:
            BaseExceptionGroup: the proxy itself failed, for example over a request that is not HTTP.
        """
        if self._server is not None:
            self._server.close()
            for _ in range(3):  # a connection that was accepted just now begins two turns of the loop later
                await asyncio.sleep(0)
            for task in (tasks := list(self._tasks)):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # lets transports close
            await self._server.wait_closed()
            self._server = None
        errors, self._errors = self._errors, []
        if errors:
            raise BaseExceptionGroup("the proxy failed", errors)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop()

    def next(self, fault: Fault, *, method: str | None = None, after: int = 0) -> None:
        """Plan a fault for the next request of this method, after a number of others of it."""
        with self._lock:
            self._next.append(_Plan(fault, method, after))

    def each(self, fault: Fault, *, method: str | None = None) -> None:
        """Plan a fault for each request of this method."""
        with self._lock:
            self._each.append(_Plan(fault, method))

    def clear(self) -> None:
        """Remove all plans and the rate. Records stay, and requests that hang already keep hanging."""
        with self._lock:
            self._next.clear()
            self._each.clear()
            self.rate = 0.0

    def count(self, method: str | None = None) -> int:
        """Number of requests so far, of one method if it is given."""
        return sum(method in (None, request.method) for request in list(self.requests))

    def arrived(self, head: bytes) -> Request:
        """Record a request and choose its fault."""
        first, headers = parse_head(head)
        method, path = first.split()[:2]
        with self._lock:
            request = Request(method, path, headers, self._decide(method))
            self.requests.append(request)
            if request.fault is not None:
                self.fired[type(request.fault)] += 1
        return request

    def _decide(self, method: str) -> Fault | None:
        by_chance = self.random.choice(self.kinds) if self.kinds and self.random.random() < self.rate else None
        for plan in [plan for plan in self._next if plan.matches(method)]:
            if not plan.others:
                self._next.remove(plan)
                return plan.fault
            plan.others -= 1
        return next((plan.fault for plan in self._each if plan.matches(method)), by_chance)

    def _refuses_at_once(self) -> bool:
        with self._lock:
            plan = self._next[0] if self._next else None
            if plan is None or not isinstance(plan.fault, Refuse) or plan.method:
                return False
            self._next.remove(plan)
            self.fired[Refuse] += 1
            return True

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(_Connection(self, Line(reader, writer)).run(self._refuses_at_once()))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: writer.close())  # the task may be cancelled before it begins

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._errors.append(error)


class _Connection:
    """One connection of a client, with its connection to the server."""

    def __init__(self, proxy: FaultProxy, client: Line) -> None:
        self._proxy = proxy
        self._client = client
        self._server: Line | None = None
        self._upload: asyncio.Task[None] | None = None

    async def run(self, refuse: bool) -> None:
        """Pass on requests until one side or a fault ends the connection."""
        try:
            while not refuse:
                head = await self._client.reader.readuntil(END_OF_HEAD)
                refuse = not await self._handle(self._proxy.arrived(head), head)
        except (EOFError, asyncio.LimitOverrunError, OSError):  # one side has closed its connection
            pass
        finally:
            await self._forget_server()
            await self._client.close()

    async def _handle(self, request: Request, head: bytes) -> bool:
        """Handle one request. Returns True if the client's connection stays open."""
        fault, client = request.fault, self._client
        source = client.reader
        match fault:
            case Refuse():
                return False
            case BlackHole():
                await client.swallow()
                return False
            case ReplaceAnswer(ask=False):
                return await self._answer_alone(request, fault)
            case Late(seconds):
                source = await self._take_in(request)
                await asyncio.sleep(seconds)
        answer = await self._ask(request, head, source)
        request.status = answer.status
        match fault:
            case ResetRequest() | DropAnswer(reset=True):
                client.reset()
                return False
            case DropAnswer():
                return False
            case HangAnswer():
                await client.swallow()
                return False
            case TruncateAnswer():
                return await self._truncate(answer, fault)
            case ReplaceAnswer():
                await client.send(fault.encode(request.method, close=not answer.keeps))
            case _:
                await client.send(answer.head + answer.body)
        return await self._settle(answer)

    async def _ask(self, request: Request, head: bytes, source: asyncio.StreamReader) -> Answer:
        """Send the request to the server and return its answer, which may come before the end of the body."""
        if self._server is None or self._server.closed:
            await self._forget_server()
            self._server = Line(*await asyncio.open_connection(*self._proxy.target, limit=LONGEST_HEAD))
        await self._server.send(head)
        self._upload = asyncio.create_task(self._pass_body(request, source, self._server))
        while True:
            answer = await read_answer(self._server.reader, request.method)
            if answer.status >= 200:
                return answer
            if source is self._client.reader:
                await self._client.send(answer.head)

    async def _pass_body(self, request: Request, source: asyncio.StreamReader, server: Line) -> None:
        left = None
        if isinstance(request.fault, ResetRequest):
            left = int(request.fault.body * int(request.headers.get("content-length", 0)))
        try:
            async with aclosing(pieces_of(source, request.headers)) as pieces:
                while left != 0 and (piece := await anext(pieces, b"")):
                    with suppress(OSError):  # the server may stop reading early; only its answer matters
                        await server.send(piece[:left])
                    left = left and max(0, left - len(piece))
        except Exception:
            await server.close()  # the client has left
            raise
        if left is not None:
            server.reset()
            self._client.reset()

    async def _take_in(self, request: Request) -> asyncio.StreamReader:
        """Read the body from the client without asking the server. Returns a reader of that body."""
        if request.expects_continue:
            await self._client.send(CONTINUE)
        source = asyncio.StreamReader(limit=LONGEST_HEAD)
        async for piece in pieces_of(self._client.reader, request.headers):
            source.feed_data(piece)
        source.feed_eof()
        return source

    async def _answer_alone(self, request: Request, fault: ReplaceAnswer) -> bool:
        if request.expects_continue:
            await self._client.send(fault.encode(request.method, close=True))
            self._client.end()
            await self._client.swallow()
            return False
        await self._take_in(request)
        await self._client.send(fault.encode(request.method, close=False))
        return True

    async def _truncate(self, answer: Answer, fault: TruncateAnswer) -> bool:
        body = answer.body[: int(fault.body * len(answer.body))]
        await self._client.send(answer.head + body if fault.head is None else answer.head[: fault.head])
        if fault.then == "hang":
            await self._client.swallow()
        return False

    async def _settle(self, answer: Answer) -> bool:
        """Pass on the rest of a body that was answered early. Returns True if the connection stays open."""
        assert self._upload is not None
        if not answer.keeps and not self._upload.done():
            self._client.end()
        await self._upload
        if not answer.keeps:
            await self._forget_server()
        return answer.keeps

    async def _forget_server(self) -> None:
        upload, server, self._upload, self._server = self._upload, self._server, None, None
        try:
            if upload is not None:
                upload.cancel()
                await asyncio.gather(upload, return_exceptions=True)
        finally:  # also if the proxy stops during the gather
            if server is not None:
                await server.close()
