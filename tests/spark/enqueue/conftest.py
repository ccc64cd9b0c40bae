"""URLs of queues for tests of bulk enqueue."""

import pytest

from tests.spark.enqueue.bulk import STORES, url_on


@pytest.fixture(params=STORES)
def url(request, tmp_path):
    return url_on(request, tmp_path, request.param)


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "queue.json")
