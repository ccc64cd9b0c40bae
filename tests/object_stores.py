"""Object stores for tests: a storage of ours on a server of tests/servers."""

from __future__ import annotations

import asyncio
import atexit
import copy
import functools
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import certifi
import pytest
from aiobotocore.session import AioSession
from azure.storage.blob import ContainerClient

from jqueue.adapters.storage.azure import AzureBlobStorage
from jqueue.adapters.storage.gcs import GCSStorage
from jqueue.adapters.storage.s3 import S3Storage
from tests.servers.fault_proxy import FaultProxy

BUCKET = "jqueue"
NAMES = {"moto_s3": S3Storage, "seaweedfs": S3Storage, "azurite": AzureBlobStorage, "gcs_server": GCSStorage}
_numbers = itertools.count(1)


@functools.cache
def _one_certificate() -> str:
    """Return a file with one certificate: each client reads the whole file, although it uses no TLS here."""
    first = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----")
    file = Path(tempfile.mkdtemp()) / "one.pem"
    atexit.register(shutil.rmtree, file.parent, ignore_errors=True)
    file.write_text("".join(first[:2]), encoding="utf-8")
    return str(file)


class Store:
    """One server, and a bucket in it.

    Args:
        name: the fixture that starts the server.
        server: the value of the fixture.
        url: the address of a proxy; None for the server's own address.
    """

    def __init__(self, name: str, server: Any, url: str | None = None) -> None:
        self.name = name
        self.server = server
        self.bucket = BUCKET
        self.url = url or (server.url if name == "gcs_server" else getattr(server, "endpoint_url", None))
        self._session = None if name in ("azurite", "gcs_server") else self._make_session()
        self._make_bucket()

    @property
    def address(self) -> str:
        """Address of the server itself."""
        return str(self.server.account_url if self.name == "azurite" else self.url)

    def environment(self, endpoint: str = "AWS_ENDPOINT_URL") -> dict[str, str]:
        """Return the environment variables with which a URL of S3 finds this store."""
        return {
            endpoint: self.address,
            "AWS_ACCESS_KEY_ID": self.server.access_key,
            "AWS_SECRET_ACCESS_KEY": self.server.secret_key,
            "AWS_REGION": self.server.region,
        }

    def new_key(self) -> str:
        """Return the name of an object that no test has used."""
        return f"tests/queue {next(_numbers)}.json"

    def open(self, key: str, **options: Any) -> Any:
        """Return a storage for an object, with a client of its own."""
        if self.name == "azurite":
            return AzureBlobStorage(self.bucket, key, connection_string=self._connection_string(), **options)
        if self.name == "gcs_server":
            return GCSStorage(self.bucket, key, endpoint_url=self.url, **options)
        return S3Storage(self.bucket, key, self._session, endpoint_url=self.url, **options)

    def _make_session(self) -> Any:
        """Return the session that makes all clients: it keeps the model of S3, which takes long to read."""
        session = AioSession()
        session.set_config_variable("ca_bundle", _one_certificate())
        session.set_config_variable("region", self.server.region)
        session.set_credentials(self.server.access_key, self.server.secret_key)
        return session

    def _connection_string(self) -> str:
        server, text = self.server, str(self.server.connection_string)
        return text if self.url is None else text.replace(server.account_url, f"{self.url}/{server.account_name}")

    def _make_bucket(self) -> None:
        if self.name == "azurite":
            with ContainerClient.from_connection_string(self.server.connection_string, BUCKET) as container:
                if not container.exists():
                    container.create_container()
        elif self.name == "gcs_server":
            self.server.create_bucket(BUCKET)
        elif self.name == "moto_s3":
            import boto3

            client = boto3.client(
                "s3",
                endpoint_url=self.server.endpoint_url,
                aws_access_key_id=self.server.access_key,
                aws_secret_access_key=self.server.secret_key,
                region_name=self.server.region,
            )
            client.create_bucket(Bucket=BUCKET)
            client.close()


def store_of(request: pytest.FixtureRequest, name: str) -> Store:
    """Return the store with this name, and start its server if it does not run yet."""
    server = request.getfixturevalue(name)
    if not hasattr(server, "store"):
        server.store = Store(name, server)
    store: Store = server.store
    return store


@asynccontextmanager
async def behind_a_proxy(store: Store) -> AsyncIterator[tuple[Store, FaultProxy]]:
    """Return the same store behind a proxy, and the proxy."""
    address = urlsplit(store.address)
    assert address.hostname is not None
    assert address.port is not None
    async with asyncio.timeout(60), FaultProxy(address.hostname, address.port) as proxy:
        proxied = copy.copy(store)
        proxied.url = proxy.url
        yield proxied, proxy
