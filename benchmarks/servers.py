"""The servers that contestants need: each starts when it is first needed, and stops with the row."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks.contest import Need
from benchmarks.latency_proxy import LatencyProxy


class ServerMissingError(Exception):
    """Raised if a server is not available here; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Access:
    """Access of a program to a server.

    Attributes:
        arguments: arguments of the program.
        environment: environment variables of the program.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


class Servers:
    """The servers of a row, as a context manager. Leaving it stops them, the last one first."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[Need, Access] = {}
        self._missing: dict[Need, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def access(self, need: Need | None) -> Access:
        """Return the access to a server, and start it if necessary. Each call gets a new key in an object store.

        Raises:
            ServerMissingError: the server is not available.
        """
        if need is None:
            return Access()
        if need in self._missing:
            raise ServerMissingError(self._missing[need])
        if need not in self._running:
            start: dict[Need, Callable[[], Access]] = {
                "s3": self._seaweedfs,
                "far s3": self._far_seaweedfs,
                "redis": self._redis,
                "postgres": self._postgres,
            }
            try:
                self._running[need] = start[need]()
            except Exception as error:
                self._missing[need] = f"{need}: {str(error) or type(error).__name__}"
                raise ServerMissingError(self._missing[need]) from error
        found = self._running[need]
        if need in ("s3", "far s3"):
            return Access({**found.arguments, "key": f"queue-{uuid.uuid4().hex}"}, found.environment)
        return found

    def _seaweedfs(self) -> Access:
        from tests.servers.seaweedfs import SeaweedFS

        server = SeaweedFS()
        server.start()
        self._stack.callback(server.stop)
        return Access(
            {
                "url": server.endpoint_url,
                "bucket": server.bucket,
                "region": server.region,
                "access_key": server.access_key,
                "secret_key": server.secret_key,
            },
            {
                "AWS_ACCESS_KEY_ID": server.access_key,
                "AWS_SECRET_ACCESS_KEY": server.secret_key,
                "AWS_DEFAULT_REGION": server.region,
                "AWS_REGION": server.region,
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "AWS_EC2_METADATA_DISABLED": "true",
                "NO_PROXY": "127.0.0.1",
            },
        )

    def _far_seaweedfs(self) -> Access:
        near = self.access("s3")
        address = urlsplit(near.arguments["url"])
        assert address.hostname is not None
        assert address.port is not None
        proxy = self._stack.enter_context(LatencyProxy(address.hostname, address.port))
        return Access({**near.arguments, "url": f"http://127.0.0.1:{proxy.port}"}, near.environment)

    def _redis(self) -> Access:
        from benchmarks.redis_server import redis_server

        return Access({"url": self._stack.enter_context(redis_server())})

    def _postgres(self) -> Access:
        from benchmarks.postgres_server import postgres_server

        return Access({"url": self._stack.enter_context(postgres_server())})
