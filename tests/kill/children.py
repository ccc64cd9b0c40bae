"""Child processes that are forked, listened to and killed. The parent has imported everything, so a child is cheap.

A process that forks here has one thread and no running event loop.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from tests.kill.journal import Line, decode

LONGEST_LIFE = 300
"""Seconds after which a forgotten child ends by itself."""

NICENESS = 5
"""Niceness of the children, so that the process that kills and audits them gets its turn in time."""


def warm_up() -> None:
    """Make forked children share the memory of the parent's objects."""
    warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)  # threads of the last event loop just ended
    gc.collect()
    gc.freeze()


@contextmanager
def at_most(seconds: float, doing: str) -> Iterator[None]:
    """Raise TimeoutError inside the block if it takes more than `seconds`."""

    def ring(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"{doing} took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    limit_of_the_test, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, limit_of_the_test)


def fork(run: Callable[[], Any]) -> int:
    """Fork a child that runs this and ends. Return its process id."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which kills us
        signal.alarm(LONGEST_LIFE)
        os.nice(NICENESS)
        run()
        status = 0
    except BrokenPipeError:
        pass  # the parent is gone
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class Child:
    """One worker process, and the pipe for its lines.

    Args:
        name: name of the worker.
        work: function that the child runs, given the descriptor of its pipe.
        others: living siblings, whose pipes the child closes.
    """

    def __init__(self, name: str, work: Callable[[int], Any], others: list[Child]) -> None:
        self.name = name
        self._rest = b""
        self._pipe, write = os.pipe()
        inherited = [self._pipe, *(child._pipe for child in others)]

        def run() -> None:
            for descriptor in inherited:
                os.close(descriptor)
            work(write)

        try:
            self.process = fork(run)
        finally:
            os.close(write)
        os.set_blocking(self._pipe, False)

    def lines(self) -> list[Line]:
        """Return the whole lines that have arrived since the last call."""
        with suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 1 << 16):
                self._rest += chunk
        *whole, self._rest = self._rest.split(b"\n")
        return [decode(line) for line in whole]

    def lines_to_the_end(self) -> list[Line]:
        """Return all lines until the child has ended."""
        os.set_blocking(self._pipe, True)
        return self.lines()

    def kill(self) -> int | None:
        """Kill it and wait for its end. Return None if it was alive, and its exit code if it had ended before."""
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        _, status = os.waitpid(self.process, 0)
        code = os.waitstatus_to_exitcode(status)
        return None if code == -signal.SIGKILL else code

    def close(self) -> None:
        """Close the pipe, after its last line was read."""
        os.close(self._pipe)
