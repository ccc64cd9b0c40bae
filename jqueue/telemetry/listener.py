"""A small HTTP server for probes and metrics: a few pages, each made on the event loop of the program.

It runs in threads, so that a blocked event loop is answered with 503 and not with silence.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import TimeoutError as LoopIsBlocked
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from jqueue.domain.errors import InvalidJobError
from jqueue.ports.log import logger_of
from jqueue.telemetry.exporters import address_of

logger = logger_of("jqueue.telemetry")

LOOP_TIMEOUT = 10.0
"""Seconds for the event loop to make a page."""

REQUEST_TIMEOUT = 5.0
"""Seconds for a client to send its request."""


class Page(NamedTuple):
    """An answer.

    Attributes:
        content: the body.
        status: the HTTP status.
        kind: the content type.
    """

    content: bytes
    status: int = 200
    kind: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Awaitable[Page]]]
"""A function for each path, which makes the page."""


class Listener:
    """The server, as an async context manager.

    Args:
        address: such as "127.0.0.1:8080"; port 0 takes a free port.
        pages: the pages.

    Attributes:
        address: as given; once entered, with the port that it listens on.
    """

    def __init__(self, address: str, pages: Pages) -> None:
        self.address = address
        self._host, self._port = address_of(address)
        self._pages = pages
        self._server: ThreadingHTTPServer | None = None

    async def __aenter__(self) -> Self:
        """Begin to listen.

        Raises:
            InvalidJobError: the address cannot be listened on.
        """
        handler = _handler_of(self._pages, asyncio.get_running_loop())
        try:
            server = _Server((self._host, self._port), handler)
        except OSError as error:
            raise InvalidJobError(f"cannot listen on {self.address}: {error.strerror or error}") from error
        self._server = server
        self.address = f"{self._host}:{server.server_port}"
        threading.Thread(target=_serve, args=(server,), name="jqueue-http", daemon=True).start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        server = self._server
        if server is not None:
            self._server = None
            await asyncio.to_thread(server.shutdown)
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: the client has left."""


def _serve(server: ThreadingHTTPServer) -> None:
    """Serve until shut down. Signals go to the other threads: here, a signal would not wake the event loop."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))  # the threads of requests inherit it
    server.serve_forever(0.1)


def _handler_of(pages: Pages, loop: asyncio.AbstractEventLoop) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT
        server_version = "jqueue"
        sys_version = ""

        def do_GET(self) -> None:
            page = _page_at(pages, self.path.partition("?")[0], loop)
            self.send_response(page.status)
            self.send_header("Content-Type", page.kind)
            self.send_header("Content-Length", str(len(page.content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(page.content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: a probe comes every few seconds."""

    return Handler


def _page_at(pages: Pages, path: str, loop: asyncio.AbstractEventLoop) -> Page:
    make = pages.get(path)
    if make is None:
        return Page(f"there is {', '.join(pages)}\n".encode(), 404)

    async def made() -> Page:
        return await make()

    coroutine = made()
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(LOOP_TIMEOUT)
    except LoopIsBlocked:
        return Page(b"the event loop does not answer\n", 503)
    except RuntimeError:  # the loop is closed
        coroutine.close()
        return Page(b"the program ends\n", 503)
    except Exception:
        logger.exception("the page %s failed", path)
        return Page(b"failed; see the log\n", 500)
