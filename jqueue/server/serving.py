"""The dashboard and the broker, each as a server of its own on one address, until a signal stops it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jqueue.core.blob_queue import BlobQueue
from jqueue.ports.queue import JobQueue
from jqueue.runtime.posix_files import third_of_descriptors
from jqueue.server.access import KnownTokens, Role, Tokens, random_text
from jqueue.server.api import Api
from jqueue.server.app import dashboard
from jqueue.server.calls import KEEP_ALIVE, Calls, WholeObject
from jqueue.server.intake import PATIENCE, Intake, TokenGate, has_caller
from jqueue.server.openapi import openapi
from jqueue.server.shield import HEADER_BYTES
from jqueue.worker.signals import handle_signals

NAMES = ("", "/{name}")
"""The beginnings of the paths for clients of jqueue: their URL may name the queue, `jqueue+https://host:8470/queue`."""

LAST_ANSWERS = 3
"""Seconds for requests under way when the dashboard is stopped."""

LAST_CALLS = 15
"""Seconds for the calls under way when the broker is stopped."""

MOST_CONNECTIONS = 4096
"""Largest number of connections, which take at most a third of the descriptors. On a further one, requests get a 503.

A quarter of them may be connections on which no request had a token. A further one ends the oldest of those.
"""


@dataclass(frozen=True)
class Settings:
    """The settings of the server.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 for a free one.
        tokens: the tokens. None: the dashboard draws one for an operator, and every caller of the broker is one.
        certificate, key: files for TLS; None for none.
        names: names of this host that browsers may use, besides addresses and `localhost`.
        patience: seconds in which a client must go on with its request, and with reading its answer.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tokens: KnownTokens | None = None
    certificate: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()
    patience: float = PATIENCE


def broker(
    queue: BlobQueue,
    tokens: KnownTokens | None = None,
    hosts: Collection[str] = (),
    patience: float = PATIENCE,
    cookie: str = "jqueue-broker",
) -> ASGIApp:
    """Return the broker of a queue as an ASGI application, with its dashboard beside it.

    Args:
        queue: the queue. The caller opens it before the first request, and closes it.
        tokens: the tokens; None if every caller is an operator.
        hosts: names of this host that clients may use, besides addresses and `localhost`.
        patience: seconds in which a client must go on with its request.
        cookie: name of the cookie of the dashboard.
    """
    intake = Intake(patience)
    calls, whole = Calls(queue, intake), WholeObject(queue)
    routes = [
        *(Route(f"{name}/v1/calls", calls, methods=["POST"]) for name in NAMES),
        *(Route(f"{name}/v1/object", whole, methods=["GET"]) for name in NAMES),
        Route("/v1/openapi.json", lambda _: Response(openapi(), media_type="application/json"), methods=["GET"]),
        *Api(queue, intake).routes(),
    ]
    gate = TokenGate(Router(routes, redirect_slashes=False), tokens, hosts)
    authorize = (lambda _: Role.OPERATOR) if tokens is None else Tokens(tokens, cookie, random_text())
    page = dashboard(queue, authorize=authorize, hosts=hosts)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_call = scope["type"] == "http" and "/v1/" in scope["path"]
        await (gate if is_call else page)(scope, receive, send)

    return app


class _Protocol(H11Protocol):
    """Ends connections of clients that send requests, or read answers, too slowly, or of too many without a token."""

    def __init__(
        self, *args: Any, patience: float, strangers: dict[_Protocol, None], most_strangers: int, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._patience, self._strangers, self._most_strangers = patience, strangers, most_strangers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As in uvicorn."""
        super().connection_made(transport)
        self._make_room()
        self._strangers[self] = None
        self._paused = self._was_paused = self._was_waiting = False
        self._last: tuple[object, int] = (None, 0)
        self._timer = self.loop.call_later(self._patience, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """As in uvicorn."""
        self._timer.cancel()
        self._strangers.pop(self, None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """As in uvicorn."""
        self._paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """As in uvicorn."""
        self._paused = self._was_paused = False
        super().resume_writing()

    def _make_room(self) -> None:
        """End the oldest connection without a token if there are many: one without a request under way if possible."""
        strangers = self._strangers
        if len(strangers) >= self._most_strangers:
            for each in [each for each in strangers if has_caller(each.scope)]:
                del strangers[each]
        if len(strangers) >= self._most_strangers:
            oldest = next((each for each in strangers if each.is_idle), next(iter(strangers)))
            del strangers[oldest]
            oldest.transport.abort()

    @property
    def is_idle(self) -> bool:
        """True if no request is under way."""
        return not self.cycle or self.cycle.response_complete

    def _look(self) -> None:
        """End the connection if nothing has gone on since the last look."""
        waiting = self.is_idle and self.timeout_keep_alive_task is None  # a part of a request's head is here
        (cycle, unsent), now = self._last, (self.cycle, self.transport.get_write_buffer_size())
        stuck = self._was_paused and now[1] >= unsent
        if stuck or (waiting and self._was_waiting and cycle is now[0]) or (self.transport.is_closing() and now[1]):
            self.transport.abort()
            return
        self._was_paused, self._was_waiting, self._last = self._paused, waiting, now
        self._timer = self.loop.call_later(self._patience, self._look)


class _Server(uvicorn.Server):
    """A server that leaves signals to its caller, and calls `ready` when it can be reached."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn."""
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As in uvicorn, without signals."""
        yield


async def serve_until_stopped(
    queue: JobQueue, settings: Settings, show: Callable[[str], None], others: Sequence[JobQueue] = ()
) -> None:
    """Serve the dashboard of a queue until SIGINT or SIGTERM.

    Args:
        queue: the queue, which is open.
        settings: where and for whom.
        show: prints the link.
        others: further queues for the same page, which are open.

    Raises:
        OSError: the address cannot be used.
    """
    token = "" if settings.tokens else random_text()
    token_set = settings.tokens or KnownTokens({token: Role.OPERATOR})

    def page(cookie: str) -> ASGIApp:
        return dashboard(queue, authorize=Tokens(token_set, cookie, random_text()), hosts=settings.names, others=others)

    await _serve(page, settings, LAST_ANSWERS, lambda link: show(f"{link}#token={token}" if token else link))


async def broker_until_stopped(
    queue: BlobQueue, settings: Settings, show: Callable[[str], None], leave: Callable[[], Awaitable[None]]
) -> None:
    """Serve the broker of a queue until SIGINT or SIGTERM.

    Args:
        queue: the queue, which is open.
        settings: where and for whom.
        show: prints the address.
        leave: closes the queue: it answers the calls that wait, and ends those under way.

    Raises:
        OSError: the address cannot be used.
    """
    app = partial(broker, queue, settings.tokens, settings.names, settings.patience)
    await _serve(app, settings, LAST_CALLS, show, leave)


async def _serve(
    app: Callable[[str], ASGIApp],
    settings: Settings,
    last_answers: int,
    show: Callable[[str], None],
    leave: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve an application, given the name of its cookie, until a signal comes.

    Then no connection is accepted, and the answers under way are sent.
    """
    with _listening(settings.host, settings.port) as listener, handle_signals((stopped := asyncio.Event()).set):
        port, started = listener.getsockname()[1], asyncio.Event()
        server = _Server(_config(app(f"jqueue-{port}"), settings, last_answers), started.set)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        starting, stopping = asyncio.create_task(started.wait()), asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait([serving, starting], return_when=asyncio.FIRST_COMPLETED)
            if started.is_set():
                show(_link(settings, port))  # if it cannot be printed, the server ends
                await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.should_exit = True
            starting.cancel()
            stopping.cancel()
            if leave is not None:
                await leave()
            await serving


def _config(app: ASGIApp, settings: Settings, last_answers: int) -> uvicorn.Config:
    most = third_of_descriptors(MOST_CONNECTIONS)
    protocol = partial(_Protocol, patience=settings.patience, strangers={}, most_strangers=most // 4)
    return uvicorn.Config(
        app,
        http=cast(Any, protocol),
        ws="none",
        log_config=None,
        access_log=False,  # addresses of requests name jobs
        log_level="warning",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        limit_concurrency=most,
        backlog=min(2048, most // 2),  # as many are accepted at once
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=last_answers,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = socket.SOCK_STREAM, socket.IPPROTO_TCP  # the protocol is given, so that asyncio sends small answers at once
    with socket.socket(family, *kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        yield listener


def _link(settings: Settings, port: int) -> str:
    scheme = "http" if settings.certificate is None else "https"
    name = settings.names[0] if settings.names else settings.host
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}/"
