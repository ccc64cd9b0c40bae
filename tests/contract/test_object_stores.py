"""Every object store keeps the storage contract and carries both queues, each on a real server."""

import pytest
from google.cloud.storage import Client

from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.testing.objects_contract import ObjectsContract
from jqueue.testing.queue_contract import QueueContract
from jqueue.testing.storage_contract import StorageContract
from tests.contract.sample import sampled, sampled_at_first
from tests.object_stores import store_of
from tests.servers.gcs_signed_urls import SigningCredentials

moto = pytest.mark.usefixtures("moto_s3")
seaweedfs = pytest.mark.usefixtures("seaweedfs")
azurite = pytest.mark.usefixtures("azurite")
gcs = pytest.mark.usefixtures("gcs_server")


class OnAServer:
    """Each test has an object of its own, and each handle a client."""

    server: str
    increments = 4  # by each of the twenty writers; a longer race is marked `full`

    @pytest.fixture
    def make_storage(self, request):
        store = store_of(request, self.server)
        key = store.new_key()

        def open_one():
            storage = store.open(key, timeout=60, **self.options(store))
            storage.listed_at_once = 2  # so that a listing takes several answers
            return storage

        return open_one

    def options(self, store):
        return {}


@moto
@pytest.mark.wide
class TestS3OnMoto(OnAServer, StorageContract):
    server = "moto_s3"
    etag_names_the_write = False
    increments = 3  # it runs in this very process, and answers one request after the other


@seaweedfs
class TestS3OnSeaweedFS(OnAServer, StorageContract):
    server = "seaweedfs"
    etag_names_the_write = False


@azurite
@pytest.mark.wide
class TestAzureOnAzurite(OnAServer, StorageContract):
    server = "azurite"


@gcs
@pytest.mark.wide
class TestGCS(OnAServer, StorageContract):
    server = "gcs_server"
    large_body = 9 * 1024 * 1024  # from 8 MiB on, Google's client uploads in several requests


@moto
@pytest.mark.wide
class TestObjectsOnMoto(OnAServer, ObjectsContract):
    server = "moto_s3"
    urls_are_checked = False


@seaweedfs
class TestObjectsOnSeaweedFS(OnAServer, ObjectsContract):
    server = "seaweedfs"


@azurite
@pytest.mark.wide
class TestObjectsOnAzurite(OnAServer, ObjectsContract):
    server = "azurite"
    failed_names_are_free = False


@gcs
@pytest.mark.wide
class TestObjectsOnGCS(OnAServer, ObjectsContract):
    server = "gcs_server"

    def options(self, store):
        return {"client": Client("none", SigningCredentials(), client_options={"api_endpoint": store.url})}


@pytest.mark.full
@pytest.mark.parametrize("server", ["seaweedfs", "azurite", "gcs_server"])
async def test_four_hundred_increments_of_twenty_writers_are_all_counted(request, server):
    store = store_of(request, server)
    key = store.new_key()
    await StorageContract().test_racing_increments_are_all_counted(lambda: store.open(key, timeout=60))


class QueueOnAServer(OnAServer, QueueContract):
    moment = 0.5


@sampled
class SampleOnAServer(QueueOnAServer):
    """The sample that shows that the store carries the queue; `make test-full` runs the whole contract."""


@moto
@pytest.mark.full
class TestDirectQueueOnMoto(SampleOnAServer):
    kind, server = DirectQueue, "moto_s3"


@moto
@pytest.mark.full
class TestBrokerQueueOnMoto(SampleOnAServer):
    kind, server = BrokerQueue, "moto_s3"


@seaweedfs
@pytest.mark.wide
class TestDirectQueueOnSeaweedFS(SampleOnAServer):
    kind, server = DirectQueue, "seaweedfs"


@seaweedfs
@sampled_at_first
class TestBrokerQueueOnSeaweedFS(QueueOnAServer):
    kind, server = BrokerQueue, "seaweedfs"


@azurite
@pytest.mark.full
class TestDirectQueueOnAzurite(SampleOnAServer):
    kind, server = DirectQueue, "azurite"


@azurite
@pytest.mark.wide
class TestBrokerQueueOnAzurite(SampleOnAServer):
    kind, server = BrokerQueue, "azurite"


@gcs
@pytest.mark.full
class TestDirectQueueOnGCS(SampleOnAServer):
    kind, server = DirectQueue, "gcs_server"


@gcs
@pytest.mark.wide
class TestBrokerQueueOnGCS(SampleOnAServer):
    kind, server = BrokerQueue, "gcs_server"
