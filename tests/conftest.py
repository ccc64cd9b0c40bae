"""What all tests share: a time limit, and servers, each of which runs once for the whole test run."""

import gc
import signal

import pytest

from tests import time_limits
from tests.servers.fixtures import azurite, gcs_server, groups, moto_s3, seaweedfs, servers_of, spark, spark_cluster
from tests.time_limits import pytest_runtest_makereport

__all__ = ["azurite", "gcs_server", "moto_s3", "pytest_runtest_makereport", "seaweedfs", "spark", "spark_cluster"]


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # or no program under test would get Ctrl-C
    time_limits.pytest_configure(config)
    config.addinivalue_line("markers", "xdist_group(name): known without pytest-xdist, too")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Have all tests of one server run in the same process of `--dist=loadgroup`."""
    time_limits.limit(items)
    uses = [servers_of(item) for item in items]
    group_of = groups(uses)
    for item, used in zip(items, uses, strict=True):
        for name in sorted(used)[:1]:
            item.add_marker(pytest.mark.xdist_group(group_of[name]))
    result = yield
    if config.getoption("loadgroup", False):
        _tell_groups(items)
    return result


def pytest_collection_finish():
    """Keep the garbage collector from looking through all tests again and again: each time takes it half a second."""
    gc.collect()
    gc.freeze()


def _tell_groups(items):
    """Do what pytest-xdist 3.8 means to do, and since pytest 9.2 does not (pytest-dev/pytest-xdist issue 1386).

    The process that hands out the tests sees only their ids.
    """
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and hasattr(item, "id") and not item.nodeid.endswith(f"@{group.args[0]}"):
            item._id = type(item.id).parse(f"{item.nodeid}@{group.args[0]}")
