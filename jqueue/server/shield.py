"""Protection of the page against other sites: names of the host, origins, and headers of every answer."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jqueue.domain.printable import printable

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page runs only its own scripts, loads only its own files, and is shown in no frame."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""

PROOF = "X-Jqueue-Dashboard"
"""A header that every request for a change has. A page of another site cannot set it without asking us first."""

DEFAULT_PORTS = {"http": 80, "https": 443}

SAFE_METHODS = frozenset(("GET", "HEAD"))


class Shield:
    """Refuses requests for foreign host names, and changes that another site has sent. Adds the headers.

    Args:
        app: the application behind it.
        hosts: names of this host; None accepts every name, as a surrounding application has checked it. An address and
            `localhost` are accepted always: a foreign name that points here is the danger.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = None) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.casefold().rstrip(".") for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_shielded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(Headers(scope=scope), scope["method"])
        app: ASGIApp = self._app if refusal is None else JSONResponse({"error": refusal}, 403)
        await app(scope, receive, send_shielded)

    def _refusal(self, headers: Headers, method: str) -> str | None:
        host = headers.get("host", "")
        if self._hosts is not None and not is_ours(host, self._hosts):
            return f"the host name {shown(host)} is not allowed: start the dashboard with --allow-host NAME"
        if method in SAFE_METHODS:
            return None
        if (foreign := foreign_origin(headers, host, self._hosts or (), method)) is not None:
            return foreign
        if headers.get(PROOF) is None:
            return f"the request has no header {PROOF}"
        return None


def foreign_origin(headers: Headers, host: str, names: Collection[str], method: str) -> str | None:
    """Return why a request comes from another site; None if it does not.

    An origin with one of the names is ours: a proxy may send a `Host` of its own. A request for an address that a user
    has typed, or for a link that a user has followed, is none of another site: no page can read what the browser shows.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if origin is not None and not _is_origin_of(origin, host, names):
        return (
            f"the request comes from another site: its Origin is {shown(origin)}, and its Host is {shown(host)}. "
            "Behind a proxy, allow its name: dashboard --allow-host NAME, serve --host NAME, or hosts=[NAME]"
        )
    is_visit = method in SAFE_METHODS and (site == "none" or headers.get("sec-fetch-dest") == "document")
    if site != "same-origin" and not is_visit:
        return f"the request comes from another site: its Sec-Fetch-Site is {shown(site)}"
    return None


def _is_origin_of(origin: str, host: str, names: Collection[str]) -> bool:
    """Return True if an origin has one of the names, or is that of a `Host` header, which may leave out its port."""
    try:
        page, own = urlsplit(origin), urlsplit(f"//{host}")
        usual = DEFAULT_PORTS[page.scheme]
        same = bool(page.hostname) and (page.hostname, page.port or usual) == (own.hostname, own.port or usual)
    except (ValueError, KeyError):
        return False
    return same or (page.hostname or "").rstrip(".") in names


def shown(text: str) -> str:
    """Return the value of a header for a message."""
    return printable(text)[:100] or "empty"


def is_ours(host: str, names: Collection[str]) -> bool:
    """Return True if the `Host` header of a request is one of the names, an address, or `localhost`."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    name = name.rstrip(".")
    if name == "localhost" or name in names:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
