"""The place of a store in a form that one process can send to another, and the servers of soaks."""

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
_SERVER_FIELDS = (
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
    """The data with which another process finds a store.

    Attributes:
        name: name of the store.
        server: keys, names and addresses of its server.
        url: the address of the proxy.
    """

    name: str
    server: dict[str, str]
    url: str

    def store(self) -> Store:
        """Return the store, whose bucket exists already."""
        server = SimpleNamespace(**self.server, url=self.url, create_bucket=lambda bucket: None)
        return Store(self.name, server, self.url)


def place_of(store: Store, url: str) -> Place:
    """Return the place of a store behind this address."""
    fields = {name: getattr(store.server, name) for name in _SERVER_FIELDS if hasattr(store.server, name)}
    return Place(store.name, fields, url)


@contextmanager
def running(name: str) -> Iterator[Store]:
    """Run a server of its own for the store with this name, and return the store."""
    server = SERVERS[name]()
    server.start()
    try:
        yield Store(name, server)
    finally:
        server.stop()
