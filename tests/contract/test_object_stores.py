"""Every object store keeps the storage contract, and carries both queues, on a real server."""

import pytest

from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.testing.queue_contract import QueueContract
from jqueue.testing.storage_contract import StorageContract
from tests.object_stores import store_of

moto = pytest.mark.usefixtures("moto_s3")
seaweedfs = pytest.mark.usefixtures("seaweedfs")
azurite = pytest.mark.usefixtures("azurite")
gcs = pytest.mark.usefixtures("gcs_server")


class OnAServer:
    """Each test has an object of its own, and each handle a client."""

    server: str

    @pytest.fixture
    def make_storage(self, request):
        store = store_of(request, self.server)
        key = store.new_key()

        def open_one():
            storage = store.open(key, timeout=60)
            storage.listed_at_once = 2  # so that a listing takes several answers
            return storage

        return open_one


@moto
class TestS3OnMoto(OnAServer, StorageContract):
    server = "moto_s3"
    etag_names_the_write = False
    increments = 3  # it runs in this very process, and answers one request after the other


@seaweedfs
class TestS3OnSeaweedFS(OnAServer, StorageContract):
    server = "seaweedfs"
    etag_names_the_write = False


@azurite
class TestAzureOnAzurite(OnAServer, StorageContract):
    server = "azurite"


@gcs
class TestGCS(OnAServer, StorageContract):
    server = "gcs_server"
    large_body = 9 * 1024 * 1024  # from 8 MiB on, Google's client uploads in several requests


class QueueOnAServer(OnAServer, QueueContract):
    moment = 0.5


@moto
class TestDirectQueueOnMoto(QueueOnAServer):
    kind, server = DirectQueue, "moto_s3"


@moto
class TestBrokerQueueOnMoto(QueueOnAServer):
    kind, server = BrokerQueue, "moto_s3"


@seaweedfs
class TestDirectQueueOnSeaweedFS(QueueOnAServer):
    kind, server = DirectQueue, "seaweedfs"


@seaweedfs
class TestBrokerQueueOnSeaweedFS(QueueOnAServer):
    kind, server = BrokerQueue, "seaweedfs"


@azurite
class TestDirectQueueOnAzurite(QueueOnAServer):
    kind, server = DirectQueue, "azurite"


@azurite
class TestBrokerQueueOnAzurite(QueueOnAServer):
    kind, server = BrokerQueue, "azurite"


@gcs
class TestDirectQueueOnGCS(QueueOnAServer):
    kind, server = DirectQueue, "gcs_server"


@gcs
class TestBrokerQueueOnGCS(QueueOnAServer):
    kind, server = BrokerQueue, "gcs_server"
