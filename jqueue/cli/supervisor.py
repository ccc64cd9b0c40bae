"""The parent of worker processes: of several on one queue, or of some that are started anew when the program changes.

It runs no event loop and imports no program. Its processes are spawned, and each leads a process group, so that Ctrl-C
in a terminal reaches the parent alone, which passes each signal on. A service manager may send one to all of them: what
the parent then passes on does not count again. A process that finds its parent gone stops.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import typer

from jqueue.cli.help import RefusedError
from jqueue.cli.printing import UNUSABLE, note
from jqueue.domain.printable import counted, printable
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.system import SystemClock
from jqueue.worker.processes import signals_blocked
from jqueue.worker.signals import SIGNALS, expect_passed_on

logger: Logger = logger_of("jqueue.worker")

RENEW = 75
"""Added to the exit status of a worker that has ended to be renewed: see `RunReport.worn`."""

TICK = 0.25
"""Seconds between two looks at the processes and at signals."""

QUICK = 30.0
"""A process that ends sooner after its start, in seconds, has ended at once."""

MOST = 5
"""Number of times in a row that a process may end at once."""

FIRST_PAUSE = 0.25
"""Seconds before a process that has ended at once is started again. They double each time."""


@dataclass
class _Place:
    """The place of one worker process.

    Attributes:
        number: its number, from 1 on.
        process: the process; None while there is none.
        began: time of its start.
        due: time at which to start a process; None: not at all.
        quick: number of processes in a row that have ended at once.
        status: the exit status of the last one.
        is_old: True if it is stopped to be started anew.
    """

    number: int
    process: SpawnProcess | None = None
    began: float = 0.0
    due: float | None = 0.0
    quick: int = 0
    status: int = 0
    is_old: bool = False


class Supervisor:
    """Keeps worker processes running until they end by themselves or a signal stops them.

    Args:
        run: runs the worker with this number in its process, and returns the exit status. It calls the function that
            it is given once the worker and its queue are there: a mistake is printed by one process, not by all.
        count: number of processes.
        final: exit statuses of processes that have ended as they should. All others are started again.
        changes: yields the changed files, none of them after a short time without changes. The workers are then
            started anew, and a worker that ends waits for the next change. None: the program is not watched.
    """

    def __init__(
        self,
        run: Callable[[int, Callable[[], object]], int],
        count: int,
        final: Collection[int],
        changes: Iterator[Collection[str]] | None = None,
    ) -> None:
        self._run = run
        self._final = final
        self._changes = changes
        self._places = [_Place(number) for number in range(1, count + 1)]
        self._clock = SystemClock()
        self._is_stopping = False
        self._worst = 0
        self._spawn = multiprocessing.get_context("spawn")
        self._usable = self._spawn.RawValue("b", False)  # without a lock, which a killed process might hold
        self._passed_on = self._spawn.RawValue("i", 0)
        self._signals: list[int] = []

    def supervise(self) -> int:
        """Run the processes, and return the worst exit status of the last ones."""
        if self._changes is not None:
            next(self._changes)  # from now on, no change is overlooked
        is_main = threading.current_thread() is threading.main_thread()  # no other thread can handle signals
        before = {number: signal.getsignal(number) for number in SIGNALS if is_main}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup
                signal.signal(number, lambda number, _: self._signals.append(number))
        try:
            while not self._is_over():
                if self._changes is None:
                    time.sleep(TICK)
                elif (files := next(self._changes)) and not self._is_stopping:
                    self._renew(files)
        except BaseException:  # the folder cannot be watched
            self._stop()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
        return max(self._worst, *(place.status for place in self._places))

    def _is_over(self) -> bool:
        """Handle what has happened since the last look. Return True if no process is left, or to come."""
        while self._signals:
            self._signals.pop()
            self._passed_on.value += 1
            self._stop()
        for place in self._places:
            self._look_at(place)
        if self._changes is not None and not self._is_stopping:
            return False
        return not any(place.process or place.due is not None for place in self._places)

    def _look_at(self, place: _Place) -> None:
        """Start a process that is due, and note the end of one."""
        now, process = self._clock.monotonic(), place.process
        if process is None and place.due is not None and now >= place.due:
            if not self._usable.value and any(each.process and not each.is_old for each in self._places):
                return  # a first process has yet to find the worker and its queue
            place.due, place.began = None, now
            args = self._run, place.number, self._usable, self._passed_on
            place.process = self._spawn.Process(target=_child, args=args, name="jqueue-worker")
            with signals_blocked(SIGNALS):
                place.process.start()
        elif process is not None and not process.is_alive():
            place.process = None
            self._note_end(place, process.pid, process.exitcode or 0, now)

    def _note_end(self, place: _Place, pid: int | None, code: int, now: float) -> None:
        place.status = code if code >= 0 else 128 - code
        if self._is_stopping:
            if -code in SIGNALS:  # it was stopped before it could handle that
                place.status = 0
            elif code - RENEW in self._final:
                place.status = code - RENEW
        elif place.is_old:
            place.is_old, place.status, place.due = False, 0, now
        elif code - RENEW in self._final:
            self._worst = max(self._worst, code - RENEW)
            place.status, place.quick, place.due = 0, 0, now
        elif self._changes is not None:
            logger.info("worker process %d has ended with status %d: waiting for a change", place.number, place.status)
            if not self._usable.value:
                for each in self._places:
                    each.due = None
        elif code == UNUSABLE:
            self._stop()
        elif code not in self._final:
            place.quick = place.quick + 1 if now - place.began < QUICK else 1
            how = f"by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"with status {place.status}"
            named = f"worker process {place.number} (pid {pid})"
            if place.quick >= MOST:
                logger.error("%s ended %s, the %dth time in a row at once: all are stopped", named, how, MOST)
                place.status = UNUSABLE
                self._stop()
            else:
                pause = FIRST_PAUSE * 2 ** (place.quick - 1)
                logger.warning("%s ended %s: another one is started in %g s", named, how, pause)
                place.status, place.due = 0, now + pause

    def _renew(self, files: Collection[str]) -> None:
        """Stop the workers in order, and start them anew."""
        name = printable(os.path.relpath(min(files)))
        more = f" and {counted(len(files) - 1, 'more file')}" if len(files) > 1 else ""
        logger.info("%s%s changed: the worker is started anew", name, more)
        self._usable.value = False
        for place in self._places:
            if place.process is None:
                place.due = self._clock.monotonic()
            elif not place.is_old:
                place.is_old = True
                place.process.terminate()

    def _stop(self) -> None:
        self._is_stopping = True
        for place in self._places:
            place.due = None
            if place.process is not None:
                place.process.terminate()


def _child(run: Callable[[int, Callable[[], object]], int], number: int, usable: Any, passed_on: Any) -> None:
    """In the process: run a worker, and exit with its status."""
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, lambda *_: os._exit(0))  # until the worker handles signals: it has no job yet
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    expect_passed_on(lambda: passed_on.value)
    threading.Thread(target=_stop_with_parent, name="jqueue-parent", daemon=True).start()
    try:
        status = run(number, lambda: setattr(usable, "value", True))
    except RefusedError as error:
        note(str(error))
        status = UNUSABLE
    except typer.Exit as error:  # it has printed why
        status = error.exit_code
    sys.exit(status)


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def changes_in(folder: Path) -> Iterator[Collection[str]]:
    """Yield the Python files that have changed below a folder; none of them after a moment without changes.

    Raises:
        RefusedError: watchfiles is missing, or the folder cannot be watched.
    """
    try:
        import watchfiles
    except ImportError:
        raise RefusedError('--reload needs watchfiles: pip install "jqueue[reload]"') from None
    options: dict[str, Any] = {"rust_timeout": int(TICK * 1000), "yield_on_timeout": True, "raise_interrupt": False}
    try:
        for files in watchfiles.watch(folder, watch_filter=watchfiles.PythonFilter(), **options):
            yield [path for _, path in files]
    except (OSError, RuntimeError) as error:
        polling = "with WATCHFILES_FORCE_POLLING=1 in the environment, its files are read again and again instead"
        raise RefusedError(f"--reload cannot watch this folder: {error}; {polling}") from None
