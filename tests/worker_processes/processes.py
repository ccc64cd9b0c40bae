"""Start, stop and kill worker processes as users run them: `python -m jqueue worker`."""

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
"""Seconds to wait for any condition here. A correct program needs much less."""

LOOK_EVERY = 0.01
PROGRAMS = "tests.worker_processes.programs"


class Fate(NamedTuple):
    """The end of a worker process.

    Attributes:
        killed_at: time of SIGKILL in seconds since 1970; None if the process ended otherwise.
        hurried: True if SIGTERM was sent twice.
        started: True if the worker had logged its start.
        stopped: True if the worker logged its stop.
        exit_code: exit code as `subprocess` gives it: negative for a signal.
        told_at: time of the first SIGTERM in seconds since 1970; None if none was sent.
    """

    killed_at: float | None
    hurried: bool
    started: bool
    stopped: bool
    exit_code: int
    told_at: float | None = None


class WorkerProcess:
    """One worker process.

    Args:
        folder: the working directory, which gets its journal, its versions and its log.
        name: name of the process, used in its files.
        program: the module below `programs` that defines the worker.
        url: URL of the queue.
        options: further options of the command.
        environment: additional environment variables.
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
        """True if the worker has logged its start; from then on it handles signals."""
        return b" started: " in self.log.read_bytes()

    @property
    def has_ended(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if not self.has_ended:
            self._killed_at = time.time()
            self._process.kill()

    def stop(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        if not self.has_ended:
            self._hurried = self._told_at is not None
            self._told_at = self._told_at or time.time()
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> Fate:
        """Wait for the end of the process."""
        code = self._process.wait(LONGEST)
        killed_at = self._killed_at if code == -signal.SIGKILL else None
        stopped = b" stopped: " in self.log.read_bytes()
        return Fate(killed_at, self._hurried, self.has_started, stopped, code, self._told_at)

    def end(self) -> None:
        """Kill the process unless it has ended, and wait for it."""
        if not self.has_ended:
            self._process.kill()
        self._process.wait(LONGEST)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition is true.

    Raises:
        AssertionError: the condition is still false after `LONGEST` seconds.
    """
    give_up = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < give_up, f"still not true after {LONGEST:g} s: {what}"
        time.sleep(LOOK_EVERY)
