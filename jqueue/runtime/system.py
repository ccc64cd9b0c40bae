"""The machine's clock and randomness, and the identity of this process. No other module of jqueue reads them.

A process may be copied with its memory: by a fork, with or without Python's knowledge, or by a snapshot that runs
twice. So ids and jitter are drawn from the operating system when they are needed, never in advance. A fork is told by
its process id. A second run of a snapshot has the same process id, and is told by the tokens of its commits.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import random
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from jqueue.domain.durations import exact_time
from jqueue.ports.clock import Clock, SupportsSuspension
from jqueue.ports.log import Logger, logger_of

logger: Logger = logger_of("jqueue")

HOST_LENGTH = 64
"""Largest number of characters of a host's name."""

REST = 5.0
"""Longest sleep in a rest, in seconds."""

TICK = 1.0
"""Seconds between two ticks, by which a process knows that it runs."""

LATE = 0.5
"""Seconds by which a tick is late if the process stood still."""

WATCHED = 3600.0
"""Seconds after its last look at the queue for which a process watches."""

_CLOCK_OF_ALL_TIME = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""The clock that goes on while the machine is suspended: by its second name on macOS, and None on Windows."""

_jitter = random.SystemRandom()  # noqa: TID251 - this is the adapter
_process_id = os.getpid()
_forgetting: list[Callable[[], object]] = []
_beginning = threading.RLock()


def at_fork(forget: Callable[[], object]) -> None:
    """Have a function called in each child of a fork before jqueue does anything there.

    Python calls it after `os.fork`. `process_id` calls it after a fork in C, as by uWSGI with its default options.

    Args:
        forget: forgets what belongs to the parent: threads, sockets, locks.
    """
    _forgetting.append(forget)


def process_id() -> int:
    """Return the id of this process. In the child of a fork, what belongs to the parent is forgotten first."""
    if (own := os.getpid()) != _process_id:
        with _beginning:
            if own != _process_id:
                if any(thread.name.startswith("jqueue-") for thread in threading.enumerate()):
                    logger.warning(
                        "process %d was forked without Python's knowledge after its parent had used a queue, so it may "
                        "hang when it ends: with uWSGI, set py-call-osafterfork or lazy-apps",
                        own,
                    )
                _begin_as(own)
    return own


def _begin_as(own: int) -> None:
    global _process_id
    for forget in _forgetting:
        forget()
    _process_id = own


def _begin_in_child() -> None:
    global _beginning
    _beginning = threading.RLock()  # another thread of the parent may hold it
    _begin_as(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def process_name() -> str:
    """Return the name of this process among all machines: `host:pid`."""
    return _name_of(process_id())


@cache
def _name_of(process: int) -> str:
    host = "".join(sign for sign in socket.gethostname() if sign.isprintable())[:HOST_LENGTH] or "localhost"
    return f"{host}:{process}"


@cache
def process_mark(pid: int) -> str:
    """Return what tells a process of this machine from all others that ever had its id; empty if that is not known.

    It is a digest of the host's name, the machine's boot and the namespace of process ids, and the time of its start.
    Containers may share a host's name, and machines made of one snapshot share a boot.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # another namespace's
            return ""
        boot, space = Path("/proc/sys/kernel/random/boot_id").read_text(), os.stat("/proc/self/ns/pid").st_ino
        place = f"{socket.gethostname()} {boot} {space}".encode()
        return f"{hashlib.blake2b(place, digest_size=8).hexdigest()}/{_status_of(pid)[19]}"
    except (OSError, IndexError):
        return ""


def _status_of(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` from the state on: the twentieth is the time of the start."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


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


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the machine's wall clock time, UTC."""
        return exact_time(datetime.now(UTC))  # noqa: TID251 - this is the adapter

    monotonic: Callable[[], float] = staticmethod(time.monotonic)  # noqa: TID251 - this is the adapter
    """Returns the machine's monotonic clock, in seconds."""

    def suspended(self) -> float:
        """Return the seconds for which the machine has been suspended: 0 where its monotonic clock goes on then."""
        if _CLOCK_OF_ALL_TIME is None:
            return 0.0
        now = time.monotonic()  # noqa: TID251 - this is the adapter
        return round(time.clock_gettime(_CLOCK_OF_ALL_TIME) - now, 1)  # the same at each call, but for a suspension


def suspended_by(clock: Clock) -> Callable[[], float]:
    """Return what tells the seconds for which the machine has been suspended; always 0 if the clock does not know."""
    return clock.suspended if isinstance(clock, SupportsSuspension) else float


class Presence:
    """Measures the time for which this process stood still: stopped, or frozen together with others, or suspended.

    A timer ticks while the process watches. The time by which a tick is late does not count as watched.

    Args:
        clock: may know the time for which the machine was suspended.
    """

    def __init__(self, clock: Clock) -> None:
        self._suspended = suspended_by(clock)
        self._due: float | None = None  # time of the next tick, where time goes on in a suspended machine
        self._watched_until = self._stood_still = 0.0
        self._ticking = False

    def stood_still(self) -> float:
        """Return the seconds for which this process has stood still since the first call, and watch on from now."""
        now = self._look()
        self._watched_until = now + WATCHED
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK, _tick, weakref.ref(self))
        return self._stood_still

    def _look(self) -> float:
        now = asyncio.get_running_loop().time() + self._suspended()
        if self._due is not None and (late := now - self._due) > LATE:
            self._stood_still += late
        self._due = now + TICK
        return now

    def lived(self) -> float:
        """Return a time in seconds that goes on only while this process runs."""
        still = self.stood_still()
        return asyncio.get_running_loop().time() + self._suspended() - still

    def tick(self) -> None:
        """Note that the process runs."""
        self._ticking = self._look() < self._watched_until
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK, _tick, weakref.ref(self))


def _tick(reference: weakref.ref[Presence]) -> None:
    if (presence := reference()) is not None:
        presence.tick()


async def rest(seconds: float, clock: Clock) -> None:
    """Wait. The time for which the machine is suspended counts, although the timers of an event loop stand still."""
    loop, suspended, left = asyncio.get_running_loop(), suspended_by(clock), seconds
    until = loop.time() + suspended() + seconds
    while left > 0:
        await asyncio.sleep(min(REST, left))
        left = until - loop.time() - suspended()


class SystemEntropy:
    """Random ids and jitter from the operating system, each drawn when it is needed; and what it knows of processes."""

    def is_gone(self, pid: int, mark: str) -> bool:
        """Return True if a process of this machine has certainly ended."""
        here, _, started = mark.rpartition("/")
        if not here or here != process_mark(os.getpid()).rpartition("/")[0]:
            return False
        try:
            os.kill(pid, 0)  # nothing is sent; /proc may hide the processes of other users
            status = _status_of(pid)
            is_zombie = status[0] == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1  # its threads have ended, too
            return status[19] != started or is_zombie
        except ProcessLookupError:
            return True
        except (OSError, IndexError):
            return False

    def new_id(self) -> str:
        """Return a random UUID (version 4) as text, like `uuid.uuid4` in half the time."""
        drawn = os.urandom(16).hex()  # noqa: TID251 - this is the adapter
        variant = "89ab"[int(drawn[16], 16) & 3]
        return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"

    def jitter(self, bound: float) -> float:
        """Return a random number of seconds, uniformly distributed over [0, bound]."""
        return _jitter.uniform(0.0, bound)
