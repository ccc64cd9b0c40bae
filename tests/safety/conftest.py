import pytest

from jqueue import BrokerQueue, DirectQueue


@pytest.fixture(params=[DirectQueue, BrokerQueue], ids=["direct", "broker"])
def kind(request):
    return request.param
