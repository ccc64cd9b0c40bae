"""Wait for conditions on other programs instead of fixed times, because programs start slowly on slow machines."""

import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any

SECONDS = 60


def wait_until(what: str, is_so: Callable[[], object], processes: Iterable["subprocess.Popen[Any]"] = ()) -> None:
    """Wait until a condition is true.

    Args:
        what: description of the condition, for the error message.
        is_so: the condition, called repeatedly.
        processes: processes that must run meanwhile.
    """
    until = time.monotonic() + SECONDS
    while not is_so():
        for process in processes:
            assert process.poll() is None, f"{what}: not yet, and a process has ended"
        assert time.monotonic() < until, f"{what}: not within {SECONDS} s"
        time.sleep(0.01)
