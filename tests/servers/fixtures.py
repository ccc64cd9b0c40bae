"""The servers as fixtures of a test run: `seaweedfs`, `azurite`, `moto_s3`, `gcs_server`, `spark`, `spark_cluster`.

Each starts when a test first asks for it. If a server is unavailable, the test is skipped. It fails instead if the
environment has CI or JQUEUE_TEST_SERVERS=required.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.servers.child import ServerUnavailableError

if TYPE_CHECKING:
    from tests.servers.azurite import Azurite
    from tests.servers.gcs_server import GCSServer
    from tests.servers.moto_server import MotoS3
    from tests.servers.seaweedfs import SeaweedFS
    from tests.servers.spark_cluster import SparkCluster
    from tests.servers.spark_here import SparkHere

NAMES = frozenset({"seaweedfs", "azurite", "moto_s3", "gcs_server"})
SPARK = "spark"
ON_SPARK = frozenset({SPARK, "spark_cluster"})


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A Spark session on two cores of this machine. Its start takes several seconds."""

    def make() -> SparkHere:
        from tests.servers.spark_here import SparkHere

        return SparkHere()

    for here in _running(make):
        yield here.session


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """A Spark cluster of two workers, with the URL `master`, for tests that start their own drivers."""

    def make() -> SparkCluster:
        from tests.servers.spark_cluster import SparkCluster

        return SparkCluster()

    yield from _running(make)


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[SeaweedFS]:
    """A real S3 store, with `endpoint_url`, `access_key`, `secret_key`, `region`, and a shared `bucket`."""

    def make() -> SeaweedFS:
        from tests.servers.seaweedfs import SeaweedFS

        return SeaweedFS()

    yield from _running(make)


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """Blob Storage, with `account_url`, `account_name`, `account_key`, `connection_string` and `api_endpoint`."""

    def make() -> Azurite:
        from tests.servers.azurite import Azurite

        return Azurite()

    yield from _running(make)


@pytest.fixture(scope="session")
def moto_s3() -> Iterator[MotoS3]:
    """An imitation of S3, with `endpoint_url`, `access_key`, `secret_key` and `region`."""

    def make() -> MotoS3:
        from tests.servers.moto_server import MotoS3

        return MotoS3()

    yield from _running(make)


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GCSServer]:
    """Cloud Storage, with `url`."""

    def make() -> GCSServer:
        from tests.servers.gcs_server import GCSServer

        return GCSServer()

    yield from _running(make)


def _running(make: Callable[[], Any]) -> Iterator[Any]:
    server, reason = _started(make)
    if reason is not None:
        skip_or_fail(reason)
    try:
        yield server
    finally:
        server.stop()


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
