"""Waiting for what other programs do, and not for a time: how long they take to begin is the machine's affair."""

import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any

SECONDS = 60


def wait_until(what: str, is_so: Callable[[], object], processes: Iterable["subprocess.Popen[Any]"] = ()) -> None:
    """Wait until something is so.

    Args:
        what: to be said if it never is.
        is_so: asked now and then.
        processes: that must go on meanwhile.
    """
    until = time.monotonic() + SECONDS
    while not is_so():
        for process in processes:
            assert process.poll() is None, f"{what}: not yet, and a process has ended"
        assert time.monotonic() < until, f"{what}: not within {SECONDS} s"
        time.sleep(0.01)
