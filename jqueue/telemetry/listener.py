"""A small HTTP server for probes and metrics: a few pages, each made on the event loop of the program.

It runs in threads, so that a blocked event loop is answered with 503 and not with silence.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import TimeoutError as LoopIsBlocked
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from jqueue.domain.errors import InvalidJobError
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.threads import in_its_own_thread
from jqueue.telemetry.exporters import address_of

logger: Logger = logger_of("jqueue.telemetry")

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


class PageMaker(NamedTuple):
    """What makes the page at a path.

    Attributes:
        make: makes it on the event loop.
        seconds: time for that.
        late: makes it in any thread if the event loop took longer.
    """

    make: Callable[[], Coroutine[Any, Any, Page]]
    seconds: float = LOOP_TIMEOUT
    late: Callable[[], Page] = lambda: Page(b"the event loop does not answer\n", 503)


Pages = Mapping[str, PageMaker]
"""The makers of the pages, by path."""


@asynccontextmanager
async def listening(address: str, pages: Pages) -> AsyncIterator[str]:
    """Serve pages while the block runs. Yield the address with the port that is listened on.

    Args:
        address: such as "127.0.0.1:8080"; port 0 takes a free port.
        pages: the pages.

    Raises:
        InvalidJobError: the address cannot be listened on.
    """
    host, port = address_of(address)
    loop = asyncio.get_running_loop()

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

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Do nothing: the client has left."""

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise InvalidJobError(f"cannot listen on {address}: {error.strerror or error}") from error
    with server:
        threading.Thread(target=_serve, args=(server,), name="jqueue-http", daemon=True).start()
        try:
            yield f"{host}:{server.server_port}"
        finally:
            await in_its_own_thread(server.shutdown)


def _serve(server: ThreadingHTTPServer) -> None:
    """Serve until shut down. Signals go to the other threads: here, a signal would not wake the event loop."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))  # the threads of requests inherit it
    server.serve_forever(0.1)


def _page_at(pages: Pages, path: str, loop: asyncio.AbstractEventLoop) -> Page:
    if path not in pages:
        return Page(f"there is {', '.join(pages)}\n".encode(), 404)
    maker = pages[path]
    try:
        page = asyncio.run_coroutine_threadsafe(maker.make(), loop)
        try:
            return page.result(maker.seconds)
        except LoopIsBlocked:
            page.cancel()
            return maker.late()
    except Exception:
        logger.exception("the page %s failed", path)
        return Page(b"failed; see the log\n", 500)
