"""The servers as fixtures of a test run: `seaweedfs`, `azurite`, `moto_s3`, `gcs_server`, `spark`, `spark_cluster`.

Each starts when a test first asks for it. If a server is unavailable, the test is skipped. It fails instead if the
environment has CI or JQUEUE_TEST_SERVERS=required.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import pytest

from tests.servers.child import ServerUnavailableError

NAMES = frozenset({"seaweedfs", "azurite", "moto_s3", "gcs_server"})
SPARK = "spark"
ON_SPARK = frozenset({SPARK, "spark_cluster"})


def _server(module: str, name: str, part: str | None = None) -> Callable[[], Iterator[Any]]:
    """A fixture: a server of this class, or a part of it. The class is imported only by a run that needs it."""

    @pytest.fixture(scope="session")
    def running() -> Iterator[Any]:
        server, reason = _started(lambda: getattr(importlib.import_module(f"tests.servers.{module}"), name)())
        if reason is not None:
            skip_or_fail(reason)
        try:
            yield server if part is None else getattr(server, part)
        finally:
            server.stop()

    return running


seaweedfs = _server("seaweedfs", "SeaweedFS")
"""A real S3 store, with `endpoint_url`, `access_key`, `secret_key`, `region`, and a shared `bucket`."""

azurite = _server("azurite", "Azurite")
"""Blob Storage, with `account_url`, `account_name`, `account_key`, `connection_string` and `api_endpoint`."""

moto_s3 = _server("moto_server", "MotoS3")
"""An imitation of S3, with `endpoint_url`, `access_key`, `secret_key` and `region`."""

gcs_server = _server("gcs_server", "GCSServer")
"""Cloud Storage, with `url`."""

spark_cluster = _server("spark_cluster", "SparkCluster")
"""A Spark cluster of two workers, with the URL `master`, for tests that start their own drivers."""

spark = _server("spark_here", "SparkHere", "session")
"""A Spark session on two cores of this machine. Its start takes several seconds."""


def _started(make: Callable[[], Any]) -> tuple[Any, str | None]:
    """A started server and None, or None and the reason why it is unavailable."""
    try:
        server = make()
        server.start()
    except (ServerUnavailableError, ImportError) as error:
        return None, str(error)
    return server, None


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test, or fail it where servers are required."""
    if os.environ.get("CI") or os.environ.get("JQUEUE_TEST_SERVERS") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def servers_of(item: pytest.Item) -> frozenset[str]:
    """The servers that a test uses, as fixtures or as parameters that name fixtures."""
    if ON_SPARK & {*getattr(item, "fixturenames", ())}:  # one test process for Java, which starts its own servers
        return frozenset({SPARK})
    callspec = getattr(item, "callspec", None)
    parameters = {value for value in callspec.params.values() if isinstance(value, str)} if callspec else set()
    return NAMES & {*getattr(item, "fixturenames", ()), *parameters}


def groups(uses: Iterable[frozenset[str]]) -> dict[str, str]:
    """The group of tests of each server, such that no server is used by two groups."""
    together = {name: {name} for name in (*NAMES, SPARK)}
    for used in uses:
        joined = set(used).union(*(together[name] for name in used))
        together.update(dict.fromkeys(joined, joined))
    return {name: "+".join(sorted(members)) for name, members in together.items()}
