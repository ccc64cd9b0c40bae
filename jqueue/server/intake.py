"""The gate of the broker, which also checks the token of a request, and the bounds of bodies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope

from jqueue.domain.errors import InvalidJobError
from jqueue.ports.sharing import LARGE_BYTES, SMALL_BYTES, SMALL_MESSAGE
from jqueue.server.access import Caller, KnownTokens, Role, hash_of, not_signed_in
from jqueue.server.problems import Problem
from jqueue.server.shield import Gate, logger

KEPT_FREE = 4
"""A caller gets all but one part in this number of the room that the others have left, so that no one is locked out."""

SLOWEST = 256 << 10
"""Bytes of a body that must arrive in a second, after the first seconds."""

PATIENCE = 20.0
"""Seconds in which a client must go on with its request, and with reading its answer."""

_CALLER = "jqueue.caller"
_CLOSE = {"Connection": "close"}  # the rest of the body is not read


def caller_of(scope: Scope) -> Caller:
    """Return the caller whom the gate has let in."""
    caller: Caller = scope[_CALLER]
    return caller


def has_caller(scope: object) -> bool:
    """Return True if this is the scope of a request that the gate has let in."""
    return isinstance(scope, dict) and _CALLER in scope


class TokenGate(Gate):
    """The gate of the broker, which also checks the token.

    Args:
        app: the application behind it.
        tokens: the tokens; None if every caller is an operator.
        hosts: see `Gate`.
    """

    def __init__(self, app: ASGIApp, tokens: KnownTokens | None, hosts: Collection[str]) -> None:
        super().__init__(app, hosts)
        self._tokens = tokens

    def check(self, scope: Scope, headers: Headers) -> None:
        """Check a request: see `Gate`. Its caller is noted."""
        super().check(scope, headers)
        if self._tokens is None:
            client = scope.get("client")
            scope[_CALLER] = Caller(Role.OPERATOR, client[0] if client else "")
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        try:
            caller = self._tokens.caller(hash_of(token.strip())) if scheme.lower() == "bearer" else None
        except InvalidJobError as error:
            logger.error("%s", error)
            detail = "the broker cannot read its token file now"
            raise Problem(503, "TokensUnreadable", detail, {"Retry-After": "5"}) from None
        if caller is None:
            raise not_signed_in()
        scope[_CALLER] = caller


class _Room:
    """Bounds the bytes of bodies that are read or worked on, and the part of each caller."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken: Counter[str] = Counter()

    def check(self, name: str, size: int) -> None:
        """Check that a caller may take so many bytes more.

        Raises:
            Problem: it may not now.
        """
        own = self._taken[name]
        left = self._size - self._taken.total() + own
        if size and own + size > left - left // KEPT_FREE:
            detail = "the broker has too many requests at work"
            raise Problem(429, "TooMuchAtOnce", detail, _CLOSE | {"Retry-After": "1"})

    def take(self, name: str, size: int) -> None:
        """Count bytes as taken by a caller, or as given back if `size` is negative."""
        self._taken[name] += size
        if not self._taken[name]:
            del self._taken[name]


class Intake:
    """Reads the bodies of requests within bounds. Bytes count when they have arrived, whatever was declared.

    Args:
        patience: seconds that every body may take.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._small, self._large = _Room(SMALL_BYTES), _Room(LARGE_BYTES)

    @asynccontextmanager
    async def body(self, scope: Scope, receive: Receive, most: int) -> AsyncIterator[bytearray]:
        """Read a body. Its bytes count as work until the block ends.

        Args:
            scope: of the request.
            receive: of the request.
            most: bytes of the largest body.

        Raises:
            Problem: the body is too large, too slow, or no JSON; or the broker has too much to do.
        """
        headers, name = Headers(scope=scope), caller_of(scope).name
        length = headers.get("content-length", "")
        declared = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else 0
        if declared > most:
            raise _too_large(most)
        self._room(declared).check(name, declared)  # so that nothing is sent in vain
        data, more, room = bytearray(), True, self._small
        try:
            until = asyncio.get_running_loop().time() + self._patience
            while more:
                try:
                    async with asyncio.timeout_at(until + len(data) / SLOWEST):
                        message = await receive()
                except TimeoutError:
                    raise Problem(408, "TooSlow", "the body did not arrive in time", _CLOSE) from None
                if message["type"] == "http.disconnect":
                    raise Problem(400, "Disconnected", "the body is not complete")
                piece = message.get("body", b"")
                more = message.get("more_body", False)
                if len(data) + len(piece) > most:
                    raise _too_large(most)
                if (before := room) is not (room := self._room(len(data) + len(piece))):
                    before.take(name, -len(data))
                    room.take(name, len(data))
                room.check(name, len(piece))
                room.take(name, len(piece))
                data += piece
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if data and kind != "application/json":
                raise Problem(415, "NotJSON", "the body must be JSON, with the header Content-Type: application/json")
            yield data
        finally:
            room.take(name, -len(data))

    def _room(self, size: int) -> _Room:
        return self._small if size <= SMALL_MESSAGE else self._large


def _too_large(most: int) -> Problem:
    return Problem(413, "TooLarge", f"the body of a request may have at most {most} bytes", _CLOSE)
