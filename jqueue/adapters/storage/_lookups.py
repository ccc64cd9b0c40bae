"""Lookups of hosts for aiohttp, which the clients of S3 and Azure use.

By default, aiohttp looks up a host in a thread of the event loop's own, all of which job handlers may occupy.
"""

from __future__ import annotations

import socket
from typing import Any

from aiohttp import ThreadedResolver

from jqueue.runtime.threads import in_a_network_thread


class _OurThreads:
    """The part of an event loop that aiohttp's resolver uses."""

    async def getaddrinfo(self, host: str, port: int, **options: Any) -> Any:
        try:
            return await in_a_network_thread(socket.getaddrinfo, host, port, **options)
        except UnicodeError as error:  # such as an empty part between two dots
            raise socket.gaierror(socket.EAI_NONAME, "not the name of a host") from error

    async def getnameinfo(self, address: Any, flags: int = 0) -> Any:
        return await in_a_network_thread(socket.getnameinfo, address, flags)


LOOKUPS = ThreadedResolver(_OurThreads())  # type: ignore[arg-type]
"""It has no state, so that all clients and event loops share it."""
