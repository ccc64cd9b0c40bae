"""A process for handlers and every process that it starts: they are one process group and end together.

pebble makes its processes through a multiprocessing context. The context here makes each process lead its own group:

* processes started by a handler end with its process, whether it is killed, crashes, or ends by itself;
* Ctrl-C in a terminal reaches only the worker, which lets its handlers finish, also while the process starts;
* no process goes on after the worker itself was killed.

Windows has no such groups: there the process ends, and the processes that it started go on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.context import SpawnContext, SpawnProcess

EXIT_STATUS_0 = -1000
"""Exit code reported for status 0. A process of handlers should not end by itself, and pebble overlooks a 0."""


class GroupLeader(SpawnProcess):
    """A process in a group of its own. Its parent ends the group."""

    _is_told_to_end = False
    _is_known_dead = False

    def start(self) -> None:
        """Start as in multiprocessing. Ctrl-C does not disturb the imports of the process."""
        with _sigint_blocked():
            super().start()

    def run(self) -> None:
        """Run as in multiprocessing. Called in the process itself."""
        if hasattr(os, "setpgid"):
            os.setpgid(0, 0)
        _drop_sigint()
        _end_with_parent()
        super().run()

    def terminate(self) -> None:
        """Tell the process and all that it started to end. Processes still left once it has ended are killed."""
        self._is_told_to_end = True
        if not self._signal_group("SIGTERM"):
            super().terminate()

    def is_alive(self) -> bool:
        """True while the process runs. A process that ends unasked is reported alive once more.

        pebble forgets a process that it finds dead, and its job too if it has not heard yet that the job began.
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
        """Exit code as in multiprocessing, but `EXIT_STATUS_0` for a status of 0."""
        code = super().exitcode
        return EXIT_STATUS_0 if code == 0 else code

    def _signal_group(self, name: str) -> bool:
        """Send a signal to the group. Return False if there is no group."""
        if not hasattr(os, "killpg") or self.pid is None:
            return False
        try:
            os.killpg(self.pid, getattr(signal, name))
        except (ProcessLookupError, PermissionError):  # the group has not begun yet, or is gone
            return False
        return True


class GroupContext(SpawnContext):
    """Makes group leaders. They are spawned: a fork of a program with threads and an event loop may hang."""

    Process = GroupLeader


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this thread. A process that it starts inherits that, from its first instruction on.

    Until it leads its own group, Ctrl-C in a terminal reaches it too. It would end in a traceback, amid its imports.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # its own start would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _drop_sigint() -> None:
    """Ignore SIGINT from now on, and any that came while it was blocked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    """Kill this process and its group when the worker ends, however it ends: only the worker enforces timeouts."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="jqueue-parent", daemon=True).start()
