"""Every object store keeps the storage contract and carries both queues, each on a real server."""

import pytest

from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.testing.objects_contract import ObjectsContract
from jqueue.testing.queue_contract import QueueContract
from jqueue.testing.storage_contract import StorageContract
from tests.contract.places import OnAServer, on
from tests.object_stores import store_of


@on("moto_s3")
@pytest.mark.full
class TestS3OnMoto(OnAServer, StorageContract):
    etag_names_the_write = False


@on("seaweedfs")
class TestS3OnSeaweedFS(OnAServer, StorageContract):
    etag_names_the_write = False


@on("azurite")
@pytest.mark.wide
class TestAzureOnAzurite(OnAServer, StorageContract):
    pass


@on("gcs_server")
@pytest.mark.wide
class TestGCS(OnAServer, StorageContract):
    large_body = 9 * 1024 * 1024  # from 8 MiB on, Google's client uploads in several requests


@on("moto_s3")
@pytest.mark.full
class TestObjectsOnMoto(OnAServer, ObjectsContract):
    pass


@on("seaweedfs")
class TestObjectsOnSeaweedFS(OnAServer, ObjectsContract):
    pass


@on("azurite")
@pytest.mark.wide
class TestObjectsOnAzurite(OnAServer, ObjectsContract):
    failed_names_are_free = False


@on("gcs_server")
@pytest.mark.wide
class TestObjectsOnGCS(OnAServer, ObjectsContract):
    pass


@pytest.mark.full
@pytest.mark.parametrize("server", ["seaweedfs", "azurite", "gcs_server"])
async def test_four_hundred_increments_of_twenty_writers_are_all_counted(request, server):
    store = store_of(request, server)
    key = store.new_key()
    await StorageContract().test_racing_increments_are_all_counted(lambda: store.open(key, timeout=60))


class QueueOnAServer(OnAServer, QueueContract):
    moment = 0.5


@on("seaweedfs")
@pytest.mark.wide
class TestBrokerQueueOnSeaweedFS(QueueOnAServer):
    kind = BrokerQueue


@on("azurite")
@pytest.mark.full
class TestDirectQueueOnAzurite(QueueOnAServer):
    kind = DirectQueue


@on("gcs_server")
@pytest.mark.wide
class TestBrokerQueueOnGCS(QueueOnAServer):
    kind = BrokerQueue
