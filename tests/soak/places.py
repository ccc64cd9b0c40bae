"""The stores of soaks, in a form that one process can send to another."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from jqueue import LocalFileSystemStorage
from jqueue.adapters.http_link import BrokerDialer
from tests.object_stores import Store
from tests.servers.azurite import Azurite
from tests.servers.gcs_server import GCSServer
from tests.servers.seaweedfs import SeaweedFS

FILE = "file"
SERVERS: dict[str, Callable[[], Any]] = {"seaweedfs": SeaweedFS, "azurite": Azurite, "gcs_server": GCSServer}


class Place(NamedTuple):
    """The data with which another process opens the queue's object.

    Attributes:
        name: name of the store.
        key: the object's key, or the file's path.
        server: keys, names and addresses of the server.
        url: the address of the proxy.
    """

    name: str
    key: str
    server: dict[str, str]
    url: str | None

    def open(self, **options: Any) -> Any:
        """Return a storage for the object, with a client of its own. The bucket exists already."""
        if self.name == FILE:
            return LocalFileSystemStorage(self.key)
        server = SimpleNamespace(**{**self.server, "url": self.url}, create_bucket=lambda bucket: None)
        storage = Store(self.name, server, self.url).open(self.key, **options)
        storage.dial_url = BrokerDialer()
        return storage


def place_of(store: Store) -> Place:
    """Return the place of a new object in a store."""
    fields = {name: getattr(store.server, name, None) for name in dir(store.server) if not name.startswith("_")}
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    return Place(store.name, store.new_key(), texts, store.url)


@contextmanager
def place_in(name: str) -> Iterator[Place]:
    """Make a folder, or run a server of its own, and return the place of a new object there."""
    if name == FILE:
        with tempfile.TemporaryDirectory(prefix="jqueue-soak-") as folder:
            yield Place(FILE, str(Path(folder) / "queue.json"), {}, None)
        return
    server = SERVERS[name]()
    server.start()
    try:
        yield place_of(Store(name, server))
    finally:
        server.stop()
