"""A process for handlers and every process that it starts: they are one process group and end together.

pebble makes its processes through a multiprocessing context. The context here makes each process lead its own group:

* processes started by a handler end with its process, whether it is killed, crashes, or ends by itself;
* Ctrl-C in a terminal reaches only the worker, which lets its handlers finish, also while the process starts;
* no process goes on after the worker itself was killed;
* the worker logs the records of the process, and knows when a handler begins: each process has a pipe for that.

Windows has no such groups: there the process ends, and the processes that it started go on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from jqueue.worker.job_log import forward_records, levels_of_loggers, log_forwarded

EXIT_STATUS_0 = -1000
"""Exit code reported for status 0. A process of handlers should not end by itself, and pebble overlooks a 0."""

LAST_REPORTS = 1.0
"""Seconds to wait for the last reports of a process that has ended. A process that it has left may hold its pipe."""

begun: set[int] = set()
"""Numbers of the calls whose handlers have begun. The caller removes its number in the end."""


class GroupLeader(SpawnProcess):
    """A process in a group of its own. Its parent ends the group, and reads its reports: numbers of calls, records."""

    _is_told_to_end = False
    _is_known_dead = False
    _reader: threading.Thread | None = None

    def start(self) -> None:
        """Start as in multiprocessing. Ctrl-C does not disturb the imports of the process."""
        reports, self._reports = multiprocessing.Pipe(duplex=False)
        self._levels = levels_of_loggers()
        try:
            with _sigint_blocked():
                super().start()
        finally:
            self._reports.close()
        self._reader = threading.Thread(target=_read_reports, args=[reports], name="jqueue-reports", daemon=True)
        self._reader.start()

    def run(self) -> None:
        """Run as in multiprocessing. Called in the process itself."""
        if hasattr(os, "setpgid"):
            os.setpgid(0, 0)
        _drop_sigint()
        _end_with_parent()
        self._report_lock = threading.Lock()
        forward_records(self._levels, self._report)
        super().run()

    def begin(self, call: int) -> None:
        """In the process: note that the handler of a call begins, as its module is imported."""
        for name in self._levels:
            logging.getLogger(name).disabled = False  # a setup of the log disables them unless it is told not to
        self._report(call)

    def _report(self, report: int | dict[str, Any]) -> None:
        with self._report_lock:
            self._reports.send_bytes(json.dumps(report, default=str).encode())

    def join(self, timeout: float | None = None) -> None:
        """Join as in multiprocessing, and wait until the last reports of the process are read."""
        super().join(timeout)
        if self._reader is not None and not super().is_alive():
            self._reader.join(LAST_REPORTS)

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


def _read_reports(reports: Connection) -> None:
    """Read the reports of a process until it ends."""
    with reports, contextlib.suppress(EOFError, OSError):  # a process that is killed may leave half a report
        while True:
            line = reports.recv_bytes()
            with contextlib.suppress(Exception):  # a filter of the program may raise anything
                report = json.loads(line)
                if isinstance(report, int):
                    begun.add(report)
                else:
                    log_forwarded(report)


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
