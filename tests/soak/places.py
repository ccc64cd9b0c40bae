"""Where a store is, as one process tells another; and the servers that are soaked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.object_stores import Store
from tests.servers.azurite import Azurite
from tests.servers.gcs_server import GCSServer
from tests.servers.seaweedfs import SeaweedFS

SERVERS: dict[str, Callable[[], Any]] = {"seaweedfs": SeaweedFS, "azurite": Azurite, "gcs_server": GCSServer}
_TOLD = (
    "endpoint_url",
    "access_key",
    "secret_key",
    "region",
    "account_name",
    "account_key",
    "account_url",
    "api_endpoint",
    "connection_string",
)


class Place(NamedTuple):
    """How to find a store.

    Attributes:
        name: which one.
        server: what its server says of itself.
        url: where to find it: a proxy's address.
    """

    name: str
    server: dict[str, str]
    url: str

    def store(self) -> Store:
        """The store, whose bucket is there already."""
        server = SimpleNamespace(**self.server, url=self.url, create_bucket=lambda bucket: None)
        return Store(self.name, server, self.url)


def place_of(store: Store, url: str) -> Place:
    """A store behind this address."""
    told = {name: getattr(store.server, name) for name in _TOLD if hasattr(store.server, name)}
    return Place(store.name, told, url)


@contextmanager
def running(name: str) -> Iterator[Store]:
    """The store with this name, on a server of its own."""
    server = SERVERS[name]()
    server.start()
    try:
        yield Store(name, server)
    finally:
        server.stop()
