"""Protection of the page against other sites: names of the host, origins, and headers of every answer."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
            return "this name of the host is not allowed: start the dashboard with --allow-host NAME"
        if method in SAFE_METHODS:
            return None
        if (foreign := foreign_origin(headers, host)) is not None:
            return foreign
        if headers.get(PROOF) is None:
            return f"the request has no header {PROOF}"
        return None


def foreign_origin(headers: Headers, host: str) -> str | None:
    """Return why a request comes from another site; None if it does not."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.casefold() != host.casefold():
        return "the request comes from another site"
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "the request comes from another site"
    return None


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
