"""Addresses to listen on."""

from __future__ import annotations

from jqueue.domain.errors import InvalidJobError


def address_of(text: str) -> tuple[str, int]:
    """Return the host and the port of a text such as "127.0.0.1:8080".

    Raises:
        InvalidJobError: it is not an address.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidJobError(f"an address to listen on is HOST:PORT, such as 127.0.0.1:8080, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
