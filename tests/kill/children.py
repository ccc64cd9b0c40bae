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
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

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
