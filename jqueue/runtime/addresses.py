"""URLs of servers, and the addresses of this machine."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")


def host_of(url: str) -> str | None:
    """Return the host in the URL of an http or https server, without user, query and fragment; None of other text."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    is_plain = url.isprintable() and not any(sign in url for sign in " @?#")
    return host if is_plain and parts.scheme in ("http", "https") and port != 0 and _HOST.fullmatch(host) else None


def is_own_address(host: str) -> bool:
    """Return True if only programs of this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
