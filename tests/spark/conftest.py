"""Queues for the tests of Spark."""

import pytest


@pytest.fixture
def url(tmp_path):
    """The URL of a new queue in a file."""
    return str(tmp_path / "queue.json")


@pytest.fixture
def steps(tmp_path):
    """The URL of the same queue, as a store that tells its requests: see `step_stores`."""
    import tests.spark.step_stores  # noqa: F401 # makes the URL known

    return f"steps://{tmp_path}/queue.json"
