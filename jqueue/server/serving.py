"""The dashboard as a server of its own, for one person at one machine, or for a team with a token file."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from jqueue.ports.clock import Entropy
from jqueue.ports.queue import JobQueue
from jqueue.runtime.system import SystemEntropy
from jqueue.server.access import Role, Tokens
from jqueue.server.app import dashboard
from jqueue.worker.signals import handle_signals

if TYPE_CHECKING:
    from starlette.types import ASGIApp

LAST_ANSWERS = 3
"""Seconds for requests under way when the server is stopped."""


@dataclass(frozen=True)
class Settings:
    """The settings of the server.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 for a free one.
        tokens: the role of each token; None for one random token, whose holder is an operator.
        certificate, key: files for TLS; None for none.
        names: names of this host that browsers may use, besides addresses and `localhost`.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tokens: Mapping[str, Role] | None = None
    certificate: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()


def is_own_address(host: str) -> bool:
    """Return True if only programs of this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
    queue: JobQueue, settings: Settings, show: Callable[[str], None], entropy: Entropy | None = None
) -> None:
    """Serve the dashboard of a queue until SIGINT or SIGTERM.

    Args:
        queue: the queue, which is open.
        settings: where and for whom.
        show: prints the link.
        entropy: draws the token.

    Raises:
        OSError: the address cannot be used.
    """
    drawn = (entropy or SystemEntropy()).new_id
    with _listening(settings.host, settings.port) as listener:
        port = listener.getsockname()[1]
        token = "".join(drawn() for _ in range(2)).replace("-", "")
        roles = settings.tokens if settings.tokens is not None else {token: Role.OPERATOR}
        app = dashboard(queue, authorize=Tokens(roles, f"jqueue-{port}"), hosts=settings.names)
        link = _link(settings, port, "" if settings.tokens is not None else f"#token={token}")
        server = _Server(_config(app, settings), lambda: show(link))
        stopped = asyncio.Event()
        with handle_signals(stopped.set):
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            stopping = asyncio.create_task(stopped.wait())
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            stopping.cancel()
            await serving


def _config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # addresses of requests name jobs
        log_level="warning",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=LAST_ANSWERS,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        yield listener
    finally:
        listener.close()


def _link(settings: Settings, port: int, token: str) -> str:
    scheme = "http" if settings.certificate is None else "https"
    name = settings.names[0] if settings.names else settings.host
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}/{token}"
