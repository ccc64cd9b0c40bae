"""A Redis server for the peers that need one.

It keeps nothing on disk, neither snapshots nor a log: fast, and all is lost when it ends. That is how task queues on
Redis are mostly run, and it has to be said beside their figures.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.child import Child, in_some_attempts
from tests.servers.child import ServerUnavailableError as Unavailable

__all__ = ["Unavailable", "redis_server"]

STARTING_SECONDS = 30
LISTENS = "Ready to accept connections"


@contextmanager
def redis_server() -> Iterator[str]:
    """Start a server on 127.0.0.1, yield its URL, and stop it.

    Raises:
        Unavailable: it is not installed, or does not start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise Unavailable("Redis is not installed: there is no redis-server on the PATH")
    child, port = in_some_attempts(lambda: _start(program))
    try:
        yield f"redis://127.0.0.1:{port}"
    finally:
        child.stop()


def _start(program: str) -> tuple[Child, int]:
    port = free_port()
    settings = {"bind": "127.0.0.1", "port": str(port), "dir": "{folder}", "save": "", "appendonly": "no"}
    child = Child([program, *(part for name, value in settings.items() for part in (f"--{name}", value))])
    child.wait_for(LISTENS, STARTING_SECONDS)
    return child, port


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
