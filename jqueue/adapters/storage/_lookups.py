"""Lookups of hosts for aiohttp, which the clients of S3 and Azure use.

By default, aiohttp looks up a host in a thread of the event loop's own, all of which job handlers may occupy.
"""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from jqueue.runtime.threads import in_a_network_thread

_OF_THIS_MACHINE = socket.AI_ADDRCONFIG & getattr(socket, "AI_MASK", ~0)  # on some systems, it has unknown bits
_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class Lookups(AbstractResolver):
    """Looks up hosts in our own threads. It has no state, so that all clients and event loops share `LOOKUPS`."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host.

        Raises:
            OSError: the lookup failed. For a name that no host can have, it is the error for an unknown host.
        """
        try:
            addresses = await in_a_network_thread(
                socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=_OF_THIS_MACHINE
            )
        except UnicodeError as error:  # such as an empty part between two dots
            raise socket.gaierror(socket.EAI_NONAME, "not the name of a host") from error
        return [
            ResolveResult(
                hostname=host,
                host=f"{address[0]}%{address[3]}" if len(address) == 4 and address[3] else str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=_NUMERIC,
            )
            for kind, _, protocol, _, address in addresses
        ]

    async def close(self) -> None:
        """Do nothing: the threads belong to the process."""


LOOKUPS = Lookups()
