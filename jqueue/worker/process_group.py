"""A process for handlers, together with every process that it starts: they are one group, and end together.

pebble makes its processes through a multiprocessing context. The one here makes leaders of groups of their own, so that

* what a handler has started ends with its process, however that ends: killed, crashed, or by itself;
* Ctrl-C in a terminal reaches the worker alone, which lets its handlers finish;
* nothing goes on when the worker itself was killed.

Windows has no such groups: there the process ends, and what it has started goes on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from multiprocessing.context import SpawnContext, SpawnProcess

EXIT_STATUS_0 = -1000
"""Exit code that a process reports for status 0. No process of handlers should end, and pebble overlooks a 0."""


class GroupLeader(SpawnProcess):
    """A process in a group of its own. Its parent ends the group."""

    _is_told_to_end = False
    _is_known_dead = False

    def run(self) -> None:
        """As in multiprocessing; called in the process itself."""
        if hasattr(os, "setpgid"):
            os.setpgid(0, 0)
        _end_with_parent()
        super().run()

    def terminate(self) -> None:
        """Tell the process, and all that it has started, to end. What is left is killed as soon as it has ended."""
        self._is_told_to_end = True
        if not self._signal_group("SIGTERM"):
            super().terminate()

    def is_alive(self) -> bool:
        """True while the process runs. A process that ends unasked is called alive once more.

        pebble forgets a process that it finds dead, and with it the job whose beginning it has not heard of yet.
        """
        if super().is_alive():
            return True
        if self._is_known_dead:
            return False
        self._is_known_dead = True
        self._signal_group("SIGKILL")
        return not self._is_told_to_end

    @property
    def exitcode(self) -> int | None:
        """As in multiprocessing, but for a status of 0."""
        code = super().exitcode
        return EXIT_STATUS_0 if code == 0 else code

    def _signal_group(self, name: str) -> bool:
        """Send a signal to the group; returns False if there is none."""
        if not hasattr(os, "killpg") or self.pid is None:
            return False
        try:
            os.killpg(self.pid, getattr(signal, name))
        except (ProcessLookupError, PermissionError):  # it has not begun yet, or is gone
            return False
        return True


class GroupContext(SpawnContext):
    """Makes processes that lead groups. They are spawned: a fork of a program with threads and a loop may hang."""

    Process = GroupLeader


def _end_with_parent() -> None:
    """Have this process and its group end when its worker does, however that ends: nobody else keeps their time."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="jqueue-parent", daemon=True).start()
