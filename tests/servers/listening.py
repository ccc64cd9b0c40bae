"""The addresses at which a process listens, read from /proc. Tests check that no server listens to other machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

needs_linux = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="listening sockets are read from /proc")

HERE = "0100007F"
HERE_IN_SIX = "0000000000000000FFFF00000100007F"
"""127.0.0.1 as Linux writes it, and the IPv6 address that Java uses for it."""


def listening(pid: int) -> Iterator[str]:
    """The addresses at which a process listens, as Linux writes them."""
    descriptors = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    sockets = {link[len("socket:[") : -1] for link in descriptors if link.startswith("socket:[")}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if inode in sockets and state == "0A":
                yield local.partition(":")[0]
