"""Hooks and fixtures of all tests: a time limit, and servers that each start once for the whole test run.

A test that hangs fails, the stacks of its threads and tasks are printed, and the run goes on. pytest-timeout interrupts
the test by a signal and prints the stacks of the other threads. The stacks of asyncio's tasks are added here, because
the stack of a thread ends in the event loop. Should no signal get through, as in a lock of C code, faulthandler prints
all stacks and ends the process (`faulthandler_timeout` in pyproject.toml).
"""

import asyncio
import gc
import inspect
import io
import os
import re
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.fixtures import azurite, gcs_server, groups, moto_s3, seaweedfs, servers_of, spark, spark_cluster
from tests.virtual_world import in_virtual_time

__all__ = ["azurite", "gcs_server", "moto_s3", "seaweedfs", "spark", "spark_cluster"]

pytest.register_assert_rewrite("tests.contract.queue", "tests.contract.worker_contract")


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for a process that a shell runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # otherwise no program under test would get Ctrl-C
    config.addinivalue_line("markers", "timeout(seconds): known without pytest-timeout, too")
    # No test may fail because the machine is slow.
    settings.register_profile("jqueue", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("jqueue")
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # halves the start of Spark
    config.addinivalue_line("markers", "xdist_group(name): known without pytest-xdist, too")


LEFT_OUT: pytest.StashKey[set[str]] = pytest.StashKey()
"""Marks of tests that the mark expression leaves out wherever they stand."""


def pytest_sessionstart(session):
    chosen = session.config.option.markexpr
    session.config.stash[LEFT_OUT] = {mark for mark in ("wide", "full", "system") if f"not {mark}" in chosen}


def pytest_ignore_collect(collection_path, config):
    """Don't import modules that are marked as a whole: it takes as long as running the tests of many others."""
    if collection_path.suffix != ".py":
        return None
    found = re.search(r"^pytestmark = .*$", collection_path.read_text(encoding="utf-8"), re.MULTILINE)
    left_out = config.stash[LEFT_OUT]
    return True if found and any(f"pytest.mark.{mark}" in found.group() for mark in left_out) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name, obj):
    """Make no items of marked functions and classes: there are thousands, which take long to make and to deselect.

    The async tests of a module marked `virtual_time` run in virtual time.
    """
    marks = _marks_of(obj) if inspect.isfunction(obj) or inspect.isclass(obj) else set()
    if marks & collector.config.stash[LEFT_OUT]:
        return []
    if inspect.iscoroutinefunction(obj) and name.startswith("test_") and "virtual_time" in _marks_of(collector.obj):
        setattr(collector.obj, name, test := in_virtual_time(obj))
        return list(collector._genfunctions(name, test))  # noqa: SLF001 - pytest has no other way
    return None


def _marks_of(obj):
    marks = getattr(obj, "pytestmark", ())
    return {mark.name for mark in (marks if isinstance(marks, list | tuple) else [marks])}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Make all tests of one server run in the same process of `--dist=loadgroup`."""
    _limit(items)
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
    """Keep the garbage collector from visiting all tests repeatedly: each visit takes half a second."""
    gc.collect()
    gc.freeze()


def _tell_groups(items):
    """Do what pytest-xdist 3.8 means to do, and since pytest 9.2 does not (pytest-dev/pytest-xdist issue 1386).

    The process that hands out the tests sees only their ids.
    """
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and hasattr(item, "id") and not item.nodeid.endswith(f"@{group.args[0]}"):
            item._id = type(item.id).parse(f"{item.nodeid}@{group.args[0]}")  # noqa: SLF001 - as xdist does


SECONDS, SECONDS_OF_FULL = 300, 1800
"""Seconds that a test may take, and a test that is marked `full`."""


def _limit(items):
    """Give each test a limit, unless it has one of its own."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            seconds = SECONDS if item.get_closest_marker("full") is None else SECONDS_OF_FULL
            item.add_marker(pytest.mark.timeout(seconds, method="signal"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the stacks of all tasks to the report of a test that took too long."""
    report = yield
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        report.sections += [("Task that was waiting", stack) for stack in _stacks(item)]
    return report


def _stacks(item) -> Iterator[str]:
    for runner in getattr(item, "funcargs", {}).values():
        if isinstance(runner, asyncio.Runner):
            for task in asyncio.all_tasks(runner.get_loop()):
                text = io.StringIO()
                task.print_stack(file=text)
                yield text.getvalue()
