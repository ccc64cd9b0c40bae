"""The Spark cluster listens only to this machine, and its tests are in the group of all tests that start Java."""

import pytest

from tests.servers.listening import HERE, HERE_IN_SIX, listening, needs_linux

pytestmark = pytest.mark.full


@needs_linux
def test_master_and_workers_listen_only_to_this_machine(spark_cluster):
    found = [set(listening(process.pid)) for process in spark_cluster.processes]
    assert 3 == len(found)
    assert all(found)
    assert set().union(*found) <= {HERE, HERE_IN_SIX}


def test_a_test_with_the_cluster_is_in_the_group_of_spark(request, spark_cluster):
    assert spark_cluster.master.startswith("spark://127.0.0.1:")
    assert "spark" == request.node.get_closest_marker("xdist_group").args[0]
