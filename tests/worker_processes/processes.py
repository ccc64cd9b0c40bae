"""Worker processes as users run them, `python -m jqueue worker`, that are started, stopped and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LONGEST = 120.0
"""Seconds that anything here may take. Nothing is waited for longer, and nothing takes so long if it works."""

LOOK_EVERY = 0.01
PROGRAMS = "tests.worker_processes.programs"


class Fate(NamedTuple):
    """How a worker process ended.

    Attributes:
        killed_at: when SIGKILL was sent, in seconds since 1970; None if it ended otherwise.
        hurried: whether SIGTERM was sent twice.
        started: whether it had begun to work.
        stopped: whether it said that it stopped.
        exit_code: as `subprocess` has it: negative for a signal.
        told_at: when SIGTERM was sent first, in seconds since 1970; None if it never was.
    """

    killed_at: float | None
    hurried: bool
    started: bool
    stopped: bool
    exit_code: int
    told_at: float | None = None


class WorkerProcess:
    """One of them.

    Args:
        folder: in which it runs, and leaves its journal, its versions and its log.
        name: what to call it.
        program: the module below `programs` that has the worker.
        url: the queue's.
        options: of the command.
        environment: besides the one that is there.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        program: str,
        url: str = "queue.json",
        *options: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._killed_at: float | None = None
        self._told_at: float | None = None
        self._hurried = False
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(paths), "JQUEUE_TEST_WORKER": name, **(environment or {})}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jqueue", "worker", f"{PROGRAMS}.{program}:worker", url, *options],
                cwd=folder,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def has_started(self) -> bool:
        """Whether it works, so that it heeds signals."""
        return b" started: " in self.log.read_bytes()

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL, if it is still there."""
        if not self.has_ended:
            self._killed_at = time.time()
            self._process.kill()

    def stop(self) -> None:
        """SIGTERM, if it is still there."""
        if not self.has_ended:
            self._hurried = self._told_at is not None
            self._told_at = self._told_at or time.time()
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> Fate:
        """Wait for its end."""
        code = self._process.wait(LONGEST)
        killed_at = self._killed_at if code == -signal.SIGKILL else None
        stopped = b" stopped: " in self.log.read_bytes()
        return Fate(killed_at, self._hurried, self.has_started, stopped, code, self._told_at)

    def end(self) -> None:
        """Kill it if it is still there, and wait for it."""
        if not self.has_ended:
            self._process.kill()
        self._process.wait(LONGEST)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something is so.

    Raises:
        AssertionError: it never came to be.
    """
    give_up = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < give_up, f"after {LONGEST:g} s: {what} did not come to be"
        time.sleep(LOOK_EVERY)
