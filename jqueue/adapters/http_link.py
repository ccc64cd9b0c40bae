"""A client's connection to a broker by HTTP, and the storage of a client that can reach nothing else.

A message is the body of a `POST`, and the answer is JSON. While the broker works, it sends a space every two seconds.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from jqueue._version import __version__
from jqueue.adapters.storage._lookups import LOOKUPS
from jqueue.domain.errors import InvalidJobError, StorageError, StorageFatalError
from jqueue.domain.operations.codec import Refused, error_of
from jqueue.domain.printable import printable
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.sharing import LARGEST_MESSAGE, LinkError, LinkRefusedError, NoBrokerError
from jqueue.runtime.addresses import host_of, is_own_address
from jqueue.runtime.threads import in_a_thread

logger: Logger = logger_of("jqueue")

SILENCE = 5.0
"""Seconds without a byte after which a client gives its broker up."""

READING = 20.0
"""The same while the broker reads the whole object, and sends nothing meanwhile."""

LARGEST_OBJECT = 1 << 30
"""Bytes of the largest object that is read through a broker."""

PIECE = 64 << 10
"""Bytes of a message that are sent at a time."""

ABSENT = "Jqueue-Absent"
"""The header that says that there is no object."""

LONGEST_PAUSE = 60
"""Seconds that a broker may ask for at most."""

TOKEN_VARIABLE = "JQUEUE_TOKEN"
"""The environment variable with the token."""


class BrokerDialer:
    """Makes connections to brokers: a `DialURL`. Its token is in no repr and no pickle.

    Args:
        token: for the broker at `origin`; or the address of a broker with its token, `https://host:8470/#token=TOKEN`;
            or several addresses with spaces between them. None: what `JQUEUE_TOKEN` has at the time.
        origin: the URL that the user has named; None if URLs come from the queue's object only.
        ca_file: file with the certificates to trust, in PEM; None: those of the system.
        insecure: True to send calls over HTTP without TLS to other machines, too.

    Raises:
        InvalidJobError: the token has characters that no token has. The message does not show it.
    """

    def __init__(
        self,
        token: str | None = None,
        *,
        origin: str | None = None,
        ca_file: str | None = None,
        insecure: bool = False,
    ) -> None:
        if token is not None and not _is_token(token):
            raise InvalidJobError("the token must have letters, digits and signs of ASCII only, and no spaces")
        self._token, self._origin, self._ca_file, self._insecure = token, origin, ca_file, insecure
        self._context: ssl.SSLContext | None = None
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_token": None, "_context": None}

    async def __call__(self, url: str) -> HTTPLink | None:
        """Return a connection to the broker with a URL; None if nothing may be sent there.

        Raises:
            StorageFatalError: the file of certificates or the token cannot be used.
        """
        if (reason := self.reason_against(url)) is not None:
            if url not in self._warned:
                self._warned.add(url)
                logger.warning("the broker at %s is not used: %s", printable(url), reason)
            return None
        tokens = self._token or os.environ.get(TOKEN_VARIABLE)
        if tokens and not _is_token(tokens):
            raise StorageFatalError(f"{TOKEN_VARIABLE} is no token: it has spaces, or characters that are not ASCII")
        if self._context is None and url.startswith("https"):
            try:
                self._context = await in_a_thread(lambda: ssl.create_default_context(cafile=self._ca_file))
            except OSError as error:
                raise StorageFatalError(f"the file of certificates cannot be used: {error.strerror}") from None
        return HTTPLink(url, self._token_for(url, tokens or ""), self._context)

    def _token_for(self, url: str, tokens: str) -> str | None:
        for each in tokens.split():
            place, _, token = each.rpartition("#token=")
            if _origin(url) == _origin(place or self._origin or ""):
                return token
        return None

    def reason_against(self, url: str) -> str | None:
        """Return the reason not to use a URL, which may stand in the queue's object; None if there is none."""
        if (host := host_of(url)) is None:
            return "this is not the URL of a broker"
        if not url.lower().startswith("https:") and not self._insecure and not is_own_address(host):
            return "its connections are not encrypted (insecure=True allows that)"
        return None


def _is_token(text: str) -> bool:
    """Return True if this is a token, or addresses of brokers, each with a token."""
    parts = text.split(" ")
    has_addresses = len(parts) == 1 or all("#token=" in part for part in parts)
    return has_addresses and all(part and all("!" <= letter <= "~" for letter in part) for part in parts)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return the scheme, host and port of a URL. Nothing is at those of text that is no URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", None, None


class HTTPLink:
    """A client's connection to a broker, or several at a time: each exchange under way has its own.

    Args:
        url: of the broker, without the path of an endpoint.
        token: sent with each request; None: none.
        context: checks certificates.
        silence: seconds without a byte after which an exchange fails.
    """

    def __init__(
        self, url: str, token: str | None = None, context: ssl.SSLContext | None = None, silence: float = SILENCE
    ) -> None:
        self.closed: bool = False
        self._silence = silence
        self._url = url.rstrip("/")
        headers = {"Accept-Encoding": "identity", "User-Agent": f"jqueue/{__version__}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self.token_hash: str = "" if token is None else sha256(token.encode()).hexdigest()
        self._under_way: set[asyncio.Timeout] = set()
        self._session = ClientSession(
            connector=TCPConnector(limit=0, resolver=LOOKUPS, ssl=context or True),
            headers=headers,
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            auto_decompress=False,
            trust_env=False,  # a proxy would see the token
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    async def exchange(self, message: bytes) -> bytes:
        """Send a message and return the answer: see `Link`."""
        return (await self._request("POST", "/v1/calls", message, LARGEST_MESSAGE, self._silence))[0]

    async def read_object(self) -> tuple[bytes, str | None]:
        """Return the queue's object and its etag; (b"", None) if there is none.

        Raises:
            LinkError: there is no answer.
        """
        content, headers = await self._request("GET", "/v1/object", b"", LARGEST_OBJECT, READING)
        if headers.get(ABSENT) == "yes":
            return b"", None
        if not (etag := headers.get("ETag")):
            raise LinkError(f"the answer of the broker at {self._url} lacks its ETag: a proxy drops it", sent=False)
        return content, etag

    def close(self) -> None:
        """End the connection: see `Link`."""
        if not self.closed:
            self.closed = True
            for patience in self._under_way:
                with suppress(RuntimeError):  # it expires just now
                    patience.reschedule(0.0)
            closing = self._session.close()
            with suppress(StopIteration):
                closing.send(None)  # now: a task may not begin before the event loop ends, which may have ended already
            closing.close()  # nobody waits until each socket is closed

    async def _request(
        self, method: str, path: str, message: bytes, largest: int, silence: float
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return the body of an answer, and its headers.

        Raises:
            LinkError: there is no answer.
        """
        if self.closed:
            raise LinkError(f"the connection to the broker at {self._url} has ended", sent=False)
        loop, sent = asyncio.get_running_loop(), False

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal sent
            sent = True  # there is a connection
            for start in range(0, len(message), PIECE):
                yield message[start : start + PIECE]
                patience.reschedule(loop.time() + silence)

        headers = {"Content-Type": "application/json", "Content-Length": str(len(message))} if message else {}
        patience = asyncio.timeout(silence)
        self._under_way.add(patience)
        try:
            async with (
                patience,
                self._session.request(
                    method, self._url + path, data=pieces() if message else None, headers=headers, allow_redirects=False
                ) as response,
            ):
                content = bytearray()
                async for piece in response.content.iter_any():
                    patience.reschedule(loop.time() + silence)
                    content += piece
                    if len(content) > largest:
                        raise LinkError(f"the answer of the broker at {self._url} is too large", sent=sent)
                if response.status != 200:
                    raise self._refusal(response.status, response.headers, bytes(content), sent=sent)
                return bytes(content), response.headers
        except TimeoutError:
            silent = f"was silent for {silence:.0f} s, or a proxy holds back its answers"
            what = "has no connection any more" if self._session.closed else silent
            raise LinkError(f"the broker at {self._url} {what}", sent=sent) from None
        except (ClientError, OSError, ValueError) as error:
            what = "sent no whole answer" if sent else "cannot be reached"
            raise LinkError(f"the broker at {self._url} {what}: {_shown(error)}", sent=sent) from None
        finally:
            self._under_way.discard(patience)

    def _refusal(self, status: int, headers: Mapping[str, str], content: bytes, *, sent: bool) -> LinkError:
        """Return the error for another status than 200. Only a problem of the broker says that nothing was done."""
        problem = None
        if headers.get("Content-Type", "").startswith("application/problem+json"):
            try:
                problem = msgspec.json.decode(content, type=Problem)
            except (msgspec.DecodeError, RecursionError):
                problem = None
        what = f"the broker at {self._url}"
        detail = f": {printable(problem.detail)}" if problem is not None else f" with the status {status}"
        if status in (429, 503):
            pause = headers.get("Retry-After", "")
            seconds = min(LONGEST_PAUSE, int(pause)) if pause.isascii() and pause.isdigit() and len(pause) < 9 else 1
            return LinkError(f"{what} has too much to do{detail}", sent=sent and problem is None, pause=seconds)
        if status == 401:
            how = f'if it is yours, connect(..., token="{self._url}/#token=TOKEN"), or the same in {TOKEN_VARIABLE}'
            hint = "refuses the token" if self.token_hash else f"needs a token: {how}"
            return LinkRefusedError(StorageFatalError(f"{what} {hint}"), everything=True)
        if problem is not None and status == 422:
            return LinkRefusedError(error_of(Refused(problem.title, problem.detail)))
        if status == 403 or (problem is not None and status < 500 and status != 408):
            return LinkRefusedError(StorageFatalError(f"{what} refuses{detail}"))
        if 300 <= status < 500 and problem is None:
            missing = f"there is no broker at {self._url}: it answers{detail}"
            return NoBrokerError(StorageFatalError(missing), everything=True)
        return LinkError(f"{what} failed{detail}", sent=sent and status != 408)


class Problem(msgspec.Struct, frozen=True):
    """The part of a problem document that is shown."""

    title: str = ""
    detail: str = ""


def _shown(error: Exception) -> str:
    """Return the text of an error of the network."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return printable(str(reason))[:200]


class BrokerStorage:
    """A queue behind a broker, for a process that cannot reach its store: nothing is read or written but by the broker.

    Args:
        url: of the broker.
        dial: makes connections.
    """

    def __init__(self, url: str, dial: BrokerDialer) -> None:
        self.url: str = url
        self.name: str = url
        self._dial = dial

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def dial(self) -> HTTPLink:
        """Return a connection to the broker: see `SupportsDialing`."""
        link = await self._dial(self.url)
        if link is None:
            raise StorageFatalError(f"{self.url} cannot be used: see the log")
        return link

    def broker_epoch(self) -> object:
        """Return the same always: nothing shows that the broker is back but its answer."""
        return None

    async def read(self) -> tuple[bytes, str | None]:
        """Return the queue's object, as the broker reads it.

        Raises:
            StorageError: there is no answer.
            StorageFatalError: the broker refuses this client.
        """
        link = await self.dial()
        try:
            return await link.read_object()
        except LinkRefusedError as error:
            if isinstance(error.error, StorageError):
                raise error.error from None
            raise
        finally:
            link.close()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Refuse: only the broker writes.

        Raises:
            StorageFatalError: always.
        """
        raise StorageFatalError(f"{self.url}: only the broker writes the queue's object")
