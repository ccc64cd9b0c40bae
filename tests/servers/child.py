"""A server as a child process that never outlives the test run, however that ends.

Between the two stands a supervisor: this file, run as a program in a session of its own, where no Ctrl-C reaches it.
It waits for the end of the server, or of its own standard input, which ends with the test run, even if that is killed.
Then it stops the server and removes the folder.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

PATIENCE = 5.0
"""Seconds in which a server may end by itself before it is killed."""

POLL = 0.1
_OUTPUT = "output"
_PID = "pid"


class ServerUnavailableError(Exception):
    """A server cannot be had here; the message says why."""


class Child:
    """One child process with a folder of its own, in which it runs, and which goes with it.

    Args:
        command: what to run; `{folder}` in it is replaced.
        environment: what it finds in its environment besides ours; `{folder}` is replaced.
        patience: seconds between asking it to end and killing it.
        leftovers: files elsewhere that it may leave behind.
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
        """The process id of the server itself, once it runs."""
        return int((self.folder / _PID).read_text())

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more, and all is tidy."""
        return self._supervisor.poll() is not None

    def output(self) -> str:
        """All that it has printed."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def wait(self, seconds: float) -> int:
        """Wait until it has ended by itself, and return its status.

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
        """Ask again and again until it is ready.

        Raises:
            ServerUnavailableError: it takes longer, or the process has ended.
        """
        give_up = time.monotonic() + seconds
        while not ready():
            if self.has_ended:
                self._expected = True
                raise ServerUnavailableError(self._told(f"ended with status {self._supervisor.returncode}"))
            if time.monotonic() > give_up:
                raise ServerUnavailableError(self._told(f"was not ready in {seconds:g} s"))
            time.sleep(POLL / 4)

    def stop(self) -> None:
        """Stop it and remove its folder. To stop again does nothing.

        Raises:
            RuntimeError: it had ended already, and nobody knew.
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


def supervise(command: Sequence[str], folder: str, patience: float, leftovers: Iterable[str]) -> int:
    """Run a command until it ends or nobody needs it any more. Returns its status."""
    status = 1
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            Path(folder, _PID).write_text(str(process.pid))
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
    """Ask its process group to end, and then kill it."""
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
