"""One Spark session for all tests of a process. Without Java they are skipped, with the reason; in CI they fail."""

import os

import pytest

from jqueue.spark.session import java_problem, local_session


def pytest_collection_modifyitems(items):
    """Have all tests that need Spark run in one process of `--dist=loadgroup`: a session takes long to start."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark():
    problem = java_problem()
    if problem is not None:
        if os.environ.get("JQUEUE_TEST_SERVERS") == "required":
            pytest.fail(problem)
        pytest.skip(problem)
    session = local_session("jqueue tests", "local[2]")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
