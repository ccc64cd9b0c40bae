import pytest

from jqueue import BrokerQueue, DirectQueue
from tests.safety.world import World


@pytest.fixture(params=[DirectQueue, BrokerQueue], ids=["direct", "broker"])
def kind(request):
    return request.param


@pytest.fixture
def world():
    return World()
