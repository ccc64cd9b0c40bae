"""A server as a child process that never outlives the test run, even if the run is killed.

A supervisor stands between the test run and the server: this file, run as a program in its own session, where no
Ctrl-C reaches it. It waits for the end of the server or of its own standard input, which ends with the test run. Then
it stops the server and removes the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

PATIENCE = 5.0
"""Seconds for a server to end after SIGTERM before it is killed."""

POLL = 0.1
ATTEMPTS = 3
Started = TypeVar("Started")
_OUTPUT = "output"
_PID = "pid"


class ServerUnavailableError(Exception):
    """A server is unavailable here. The message gives the reason."""


class Child:
    """One child process with its own working directory, which is removed when the process ends.

    Args:
        command: command to run, in which `{folder}` is replaced by the working directory.
        environment: additional environment variables, in which `{folder}` is replaced, too.
        patience: seconds between SIGTERM and SIGKILL.
        leftovers: files elsewhere that the process may leave behind; they are removed.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
        leftovers: Iterable[str] = (),
    ) -> None:
        self._patience = patience
        self._name = Path(command[0]).name
        self._expected = False
        self.folder = Path(tempfile.mkdtemp(prefix="jqueue-test-server-"))
        plan = {
            "command": [part.replace("{folder}", str(self.folder)) for part in command],
            "folder": str(self.folder),
            "patience": patience,
            "leftovers": list(leftovers),
        }
        added = {name: value.replace("{folder}", str(self.folder)) for name, value in (environment or {}).items()}
        with (self.folder / _OUTPUT).open("ab") as output:
            self._output = (self.folder / _OUTPUT).open("rb")
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, json.dumps(plan)],
                cwd=self.folder,
                env={**os.environ, **added},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the server itself, once it runs."""
        return int((self.folder / _PID).read_text())

    @property
    def has_ended(self) -> bool:
        """True if the server has ended and its folder is removed."""
        return self._supervisor.poll() is not None

    def output(self) -> str:
        """The output of the server so far."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def wait(self, seconds: float) -> int:
        """Wait until the process ends by itself, and return its exit status.

        Raises:
            ServerUnavailableError: it takes longer.
        """
        try:
            status = self._supervisor.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ServerUnavailableError(self._told(f"has not ended in {seconds:g} s")) from None
        self._expected = True
        return status

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Call `ready` repeatedly until it returns True. If it never does, stop the process.

        Raises:
            ServerUnavailableError: it takes longer, or the process has ended.
        """
        give_up = time.monotonic() + seconds
        try:
            while not ready():
                if self.has_ended:
                    self._expected = True
                    raise ServerUnavailableError(self._told(f"ended with status {self._supervisor.returncode}"))
                if time.monotonic() > give_up:
                    raise ServerUnavailableError(self._told(f"was not ready in {seconds:g} s"))
                time.sleep(POLL / 4)
        except BaseException:
            self.stop()
            raise

    def wait_for(self, sign: str, seconds: float) -> str:
        """Wait until the output has this pattern, and return the first text that it matches, or its group.

        Raises:
            ServerUnavailableError: it takes longer, or the process has ended.
        """
        self.wait_until(lambda: re.search(sign, self.output()) is not None, seconds)
        first: str = re.findall(sign, self.output())[0]
        return first

    def stop(self) -> None:
        """Stop the process and remove its folder. A second call does nothing.

        Raises:
            RuntimeError: the process had ended before, unnoticed.
        """
        if self._output.closed:
            return
        assert self._supervisor.stdin is not None
        early = self._supervisor.poll()
        self._supervisor.stdin.close()
        try:
            self._supervisor.wait(self._patience + PATIENCE)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        surprise = None if early is None or self._expected else self._told(f"ended by itself, with status {early}")
        self._output.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if surprise is not None:
            raise RuntimeError(surprise)

    def _told(self, what: str) -> str:
        return f"{self._name} {what}; it printed:\n{self.output()[-2000:]}"


def in_some_attempts(start: Callable[[], Started]) -> Started:
    """Start a server, which may fail, because another process may take a free port first."""
    for _ in range(ATTEMPTS - 1):
        with suppress(ServerUnavailableError):
            return start()
    return start()


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process at a time do something, by a lock on a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def supervise(command: Sequence[str], folder: str, patience: float, leftovers: Iterable[str]) -> int:
    """Run a command until it ends or standard input ends. Returns its exit status."""
    status = 1
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            started = Path(folder, f"{_PID}.new")
            started.write_text(str(process.pid))
            started.replace(Path(folder, _PID))  # whole, or not there
            while process.poll() is None and not select.select([sys.stdin], [], [], POLL)[0]:
                pass
        finally:
            status = _end(process, patience)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for path in leftovers:
            Path(path).unlink(missing_ok=True)
    return status


def _end(process: subprocess.Popen[bytes], patience: float) -> int:
    """Send SIGTERM to the process group, then SIGKILL after `patience` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
    return process.wait()


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    sys.exit(supervise(**json.loads(sys.argv[1])))
