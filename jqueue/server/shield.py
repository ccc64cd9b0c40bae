"""Protection of the page and the broker against other sites: names of the host, origins, and headers of answers."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jqueue.domain.printable import printable
from jqueue.ports.log import Logger, logger_of
from jqueue.server.problems import Problem, problem_of

logger: Logger = logger_of("jqueue.server")

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

ALLOW = "Allow a name of this host: dashboard --allow-host NAME, serve --host NAME, or hosts=[NAME]"

DEFAULT_PORTS = {"http": 80, "https": 443}

HEADER_BYTES = 32 << 10
"""Bytes of the largest head of a request."""

SAFE_METHODS = frozenset(("GET", "HEAD"))


class Gate:
    """Lets a request in if its host and its origin are right, and makes a problem document of every error.

    Args:
        app: the application behind it.
        hosts: names of this host; None accepts every name, as a surrounding application has checked it. An address and
            `localhost` are accepted always: a foreign name that points here is the danger.
    """

    headers: Mapping[str, str] = {}
    """Headers of every answer."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.casefold().rstrip(".") for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_noting(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            started = True
            await send(message)

        scope.setdefault("app", self)  # with an app, a route raises its HTTPException
        scope.pop("starlette.exception_handlers", None)  # of a surrounding application
        try:
            self.check(scope, Headers(scope=scope))
            await self._app(scope, receive, send_noting)
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:  # no text of an error, which may quote a payload
                frames = "".join(traceback.format_tb(error.__traceback__))
                logger.error("a request failed: %s\n%s", type(error).__name__, frames)
            if started:
                raise ConnectionAbortedError("the answer could not be completed") from None
            await problem.response()(scope, receive, send_noting)

    def check(self, scope: Scope, headers: Headers) -> None:
        """Check a request before the application gets it.

        Raises:
            Problem: it is refused.
        """
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["query_string"])
        if size + len(scope.get("raw_path", b"")) > HEADER_BYTES:  # h11 bounds heads that come in several pieces only
            raise _bad_head(f"the head of a request may have at most {HEADER_BYTES} bytes")
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may believe the other one
            raise _bad_head("the request has both a Content-Length and a Transfer-Encoding")
        host, names = headers.get("host", ""), self._hosts or ()
        if self._hosts is not None and not is_ours(host, names):
            raise Problem(421, "HostNotAllowed", f"the host name {shown(host)} is not allowed. {ALLOW}")
        if (foreign := foreign_origin(headers, host, names, scope["method"])) is not None:
            raise Problem(403, "ForeignOrigin", foreign)


class Shield(Gate):
    """The gate of the page. A request for a change needs a header that no other site can set."""

    headers: Mapping[str, str] = HEADERS

    def check(self, scope: Scope, headers: Headers) -> None:
        """Check a request: see `Gate`."""
        super().check(scope, headers)
        if scope["method"] not in SAFE_METHODS and headers.get(PROOF) is None:
            raise Problem(403, "ForeignOrigin", f"the request has no header {PROOF}")


def _bad_head(detail: str) -> Problem:
    return Problem(400, "BadHead", detail, {"Connection": "close"})


def foreign_origin(headers: Headers, host: str, names: Collection[str], method: str) -> str | None:
    """Return why a request comes from another site; None if it does not.

    An origin with one of the names is ours: a proxy may send a `Host` of its own. A request for an address that a user
    has typed, or for a link that a user has followed, is none of another site: no page can read what the browser shows.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if origin is not None and not _is_origin_of(origin, host, names):
        return (
            f"the request comes from another site: its Origin is {shown(origin)}, and its Host is {shown(host)}. "
            f"{ALLOW}, also that of a proxy"
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
