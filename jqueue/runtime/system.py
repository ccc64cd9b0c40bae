"""The machine's clock and randomness. No other module of jqueue reads them."""

from __future__ import annotations

import math
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from jqueue.domain.durations import exact_time

IDS_DRAWN = 256
"""Number of ids drawn from the operating system at a time."""

HOST_LENGTH = 64
"""Largest number of characters of a host's name."""

_VERSION_4, _VARIANT_1 = (bytes(bits | byte & rest for byte in range(256)) for bits, rest in ((0x40, 15), (0x80, 63)))
_DASHES = (8, 13, 18, 23)
_LENGTH = 36
_jitter = random.Random()
"""A generator of its own: a program that seeds the shared one for its own purposes must not seed the jitter."""

_forks = 0
_process_name = ""


def _count_fork() -> None:
    global _forks, _process_name
    _forks += 1
    _process_name = ""
    _jitter.seed()  # the parent would draw the same numbers


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def forks() -> int:
    """Return the number of forks between this process and the first one. A changed number shows that this is a child.

    It is quicker than asking for the process id, which is a system call.
    """
    return _forks


def process_name() -> str:
    """Return the name of this process among all machines: `host:pid`."""
    global _process_name
    if not _process_name:
        host = "".join(sign for sign in socket.gethostname() if sign.isprintable())[:HOST_LENGTH] or "localhost"
        _process_name = f"{host}:{os.getpid()}"
    return _process_name


def usable_processors(system: Path = Path("/")) -> int:
    """Return the number of processors that this process may use: by its affinity, and by the quotas of its cgroups.

    A container sees all processors of its machine, and is slowed down when it uses more than its quota.

    Args:
        system: the root of the file system.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([count, *map(math.ceil, _quotas(system))])


def _quotas(system: Path) -> Iterator[float]:
    """Yield the quota of each cgroup around this process that has one, in processors. Only Linux has cgroups."""
    with suppress(OSError):
        for line in (system / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)  # version 2 has one hierarchy, which names no controllers
            if controllers and "cpu" not in controllers.split(","):
                continue
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            top = system / "sys/fs/cgroup" / ("cpu" if controllers else "")
            own = top / path.strip("/")  # a container may see only `top`, which is its own
            for group in (own, *own.parents[: len(own.parts) - len(top.parts)]):
                with suppress(OSError, ValueError):  # it is not there, or has no quota
                    quota, period = " ".join((group / name).read_text() for name in names).split()
                    if int(quota) > 0:
                        yield int(quota) / int(period)


def memory_in_use() -> int:
    """Return the bytes of memory that this process holds. Without Linux, the most that it has held, or 0 on Windows."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0


def _uuids(drawn: bytes) -> list[str]:
    """Return random bytes as UUIDs (version 4), in text: all letters of one place are set in one step."""
    marked = bytearray(drawn)
    marked[6::16] = marked[6::16].translate(_VERSION_4)
    marked[8::16] = marked[8::16].translate(_VARIANT_1)
    digits = marked.hex().encode()
    letters = bytearray(b"-" * (len(drawn) // 16 * _LENGTH))
    for number, place in enumerate(place for place in range(_LENGTH) if place not in _DASHES):
        letters[place::_LENGTH] = digits[number::32]
    text = letters.decode()
    return [text[start : start + _LENGTH] for start in range(0, len(text), _LENGTH)]


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the machine's wall clock time, UTC."""
        return exact_time(datetime.now(UTC))  # noqa: TID251 - this is the adapter

    monotonic: Callable[[], float] = staticmethod(time.monotonic)  # noqa: TID251 - this is the adapter
    """Returns the machine's monotonic clock, in seconds."""


class SystemEntropy:
    """Random ids from the operating system, and jitter from a pseudo-random generator."""

    def __init__(self) -> None:
        self._drawn: list[str] = []
        self._drawn_after = _forks

    def new_id(self) -> str:
        """Return a random UUID (version 4) as text, like `uuid.uuid4`, but drawn from the system many at a time."""
        if self._drawn_after != _forks:  # the parent process uses the drawn ids
            self._drawn, self._drawn_after = [], _forks
        try:
            return self._drawn.pop()
        except IndexError:
            self._drawn = _uuids(os.urandom(16 * IDS_DRAWN))  # noqa: TID251 - this is the adapter
            return self._drawn.pop()

    def __reduce__(self) -> tuple[type[SystemEntropy], tuple[()]]:
        return type(self), ()  # the drawn ids stay in this process

    def jitter(self, bound: float) -> float:
        """Return a random number of seconds, uniformly distributed over [0, bound]."""
        return _jitter.uniform(0.0, bound)
