"""A time limit for every test. A test that hangs fails, the stacks of its threads and tasks are printed, and the run
goes on.

pytest-timeout interrupts the test by a signal and prints the stacks of the other threads. The stacks of asyncio's tasks
are added here, because the stack of a thread ends in the event loop. Should no signal get through, as in a lock of C
code, faulthandler prints all stacks and ends the process (`faulthandler_timeout` in pyproject.toml).
"""

import asyncio
import io
from collections.abc import Iterator

import pytest

SECONDS = 300
SECONDS_OF_FULL = 1800


def pytest_configure(config):
    config.addinivalue_line("markers", "timeout(seconds): known without pytest-timeout, too")


def limit(items):
    """Give each test a limit, unless it has one of its own."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            seconds = SECONDS if item.get_closest_marker("full") is None else SECONDS_OF_FULL
            item.add_marker(pytest.mark.timeout(seconds, method="signal"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    limit(items)


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
