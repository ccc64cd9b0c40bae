"""The parent of a child process, which reads its messages until it has ended, by itself or by force."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jqueue.domain.printable import counted
from jqueue.ports.clock import Clock
from jqueue.ports.log import logger_of
from jqueue.runtime.system import SystemClock
from jqueue.spark.batch.child import LENGTH, WorkInstructions, run_as_child
from jqueue.spark.batch.outcomes import Outcome
from jqueue.spark.batch.partition_rows import BEGUN, NEW, PartitionRows

logger = logger_of("jqueue.spark")

CHECK_INTERVAL = 0.5
"""Seconds between two checks that a child still runs: processes that it has started may hold the pipe open."""

SHORT_PAUSE = 0.005
"""Seconds between two checks while the child should exit in a moment."""

CHUNK = 1 << 20
"""Bytes to read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTimeouts:
    """Seconds that a child may take for steps that its worker should take by itself.

    Attributes:
        late: to stop a handler after its timeout and its grace.
        end: to end after all jobs are done.
        exit: to exit after its last message.
    """

    late: float = 10.0
    end: float = 30.0
    exit: float = 5.0


@dataclass
class ChildReport:
    """Report of a child about its jobs, and how it ended.

    Attributes:
        outcomes: what became of jobs, by id.
        failure: why it does no more jobs.
        is_over: True if it has done all that it will do.
        is_stopped: True if it is over because a handler has stopped the worker.
        death: how its process ended, if it ended early.
        overdue: the ids of the jobs whose handlers did not stop in time, so that the process was killed.
        blocking: the id of the job whose handler blocks the event loop.
        is_sure: True if the overdue job alone is to blame: it was seen to block the event loop.
        limits: for each entrypoint, seconds after which its jobs must have ended.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failure: str | None = None
    is_over: bool = False
    is_stopped: bool = False
    death: str | None = None
    overdue: set[str] = field(default_factory=set)
    blocking: str | None = None
    is_sure: bool = False
    limits: dict[str, float | None] = field(default_factory=dict)

    @property
    def is_cut_short(self) -> bool:
        """True if it ended without saying so."""
        return not self.is_over and self.failure is None

    def receive(self, kind: Any, content: Any) -> None:
        """Take a message.

        Raises:
            ValueError: it is not a message.
        """
        if kind == "ready":
            self.limits = dict(content)
        elif kind == "ended":
            self.outcomes.update((outcome.job_id, outcome) for outcome in msgspec.convert(content, list[Outcome]))
        elif kind == "blocked":
            self.blocking = None if content is None else str(content)
        elif kind == "failed":
            self.failure = str(content)
        elif kind == "over":
            self.is_over, self.is_stopped = True, bool(content)
        else:
            raise ValueError("there is no such message")


def run_child(
    instructions: WorkInstructions,
    rows: PartitionRows,
    places: Sequence[int],
    timeouts: ChildTimeouts,
    clock: Clock | None = None,
) -> ChildReport:
    """Have a child process do the jobs in these places, wait until it has ended, and return its report."""
    rows.begin(places)
    pid, reader = _fork_child(instructions, rows)
    listener = _Listener(pid, reader, rows, timeouts, SystemClock() if clock is None else clock)
    try:
        listener.listen()
    finally:
        os.close(reader)
        code = listener.end()
    report = listener.report
    if report.is_cut_short:
        report.death = report.death or _describe_exit(code)
    return report


def _fork_child(instructions: WorkInstructions, rows: PartitionRows) -> tuple[int, int]:
    """Fork a child. Return its process id, and the end of the pipe to read from."""
    reader, writer = os.pipe()
    for stream in (sys.stdout, sys.stderr):  # or the child would write their buffers as well
        with suppress(Exception):
            stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: their locks are not used
        pid = os.fork()
    if pid == 0:
        run_as_child(reader, writer, instructions, rows)
    os.close(writer)
    with suppress(OSError):  # the child does the same; the first of the two wins
        os.setpgid(pid, pid)
    return pid, reader


class _Listener:
    """Listens to one child.

    Args:
        pid: the process id of the child, which leads its process group.
        reader: the end of the pipe to read from.
        rows: the jobs of the partition.
        timeouts: seconds that it may take.
        clock: measures the time.

    Attributes:
        report: everything received so far.
    """

    def __init__(self, pid: int, reader: int, rows: PartitionRows, timeouts: ChildTimeouts, clock: Clock) -> None:
        self.report = ChildReport()
        self._pid = pid
        self._reader = reader
        self._rows = rows
        self._timeouts = timeouts
        self._clock = clock
        self._buffer = bytearray()
        self._due: dict[int, float] = {}
        self._blocked_until: float | None = None
        self._end_by: float | None = None
        self._code: int | None = None
        self._is_there = True

    def listen(self) -> None:
        """Read messages until the last one has come, or the child has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            is_gone = False
            while not self.report.is_over:
                if selector.select(0 if is_gone else self._seconds_to_check()):
                    chunk = os.read(self._reader, CHUNK)
                    if not chunk or not self._receive(chunk):
                        break
                elif is_gone:
                    return
                else:
                    is_gone = self._has_exited()  # it may have sent something since the last read
                if self._is_too_late():
                    return
            self._await_exit(selector)

    def _await_exit(self, selector: selectors.BaseSelector) -> None:
        """Wait until the child exits. That closes its end of the pipe, unless a process that it started holds it."""
        until, is_open = self._clock.monotonic() + self._timeouts.exit, True
        while not self._has_exited() and self._clock.monotonic() < until:
            if not is_open:
                time.sleep(SHORT_PAUSE)
            elif selector.select(SHORT_PAUSE):
                is_open = bool(os.read(self._reader, CHUNK))

    def end(self) -> int | None:
        """Kill the child, if it still runs, and all that it has started. Return its exit code, or None if unknown."""
        for kill in (os.killpg, os.kill):
            if kill is os.killpg or self._is_there:
                with suppress(ProcessLookupError, PermissionError):
                    kill(self._pid, signal.SIGKILL)
        self._has_exited(0)
        return self._code

    def _receive(self, chunk: bytes) -> bool:
        """Take the complete messages. Return True if they could be read."""
        buffer = self._buffer
        buffer += chunk
        start = 0
        try:
            while (begin := start + LENGTH) <= len(buffer):
                end = begin + int.from_bytes(buffer[start:begin], "big")
                if end > len(buffer):
                    break
                kind, content = json.loads(buffer[begin:end])
                self.report.receive(kind, content)
                if kind == "blocked":
                    limit = None if content is None else self._limit_of(self._rows.place_of(content))
                    self._blocked_until = None if limit is None else self._clock.monotonic() + limit
                start = end
        except (LookupError, TypeError, ValueError):
            self.report.death = "the process of the handlers wrote to a pipe of jqueue"
            return False
        del buffer[:start]
        return True

    def _limit_of(self, place: int) -> float | None:
        """Return the seconds after which a job must have ended; None if there is no limit."""
        return self.report.limits.get(self._rows.names[place])

    def _note_begun(self, marks: bytes | bytearray, now: float) -> None:
        """Note the time by which each job that is marked as begun must have ended."""
        due, place = dict[int, float](), marks.find(BEGUN)
        while place >= 0:
            limit = self._limit_of(place)
            if limit is not None:
                due[place] = self._due.get(place, now + limit + self._timeouts.late)
            place = marks.find(BEGUN, place + 1)
        self._due = due

    def _seconds_to_check(self) -> float:
        """Return the seconds until the next check, if nothing is received."""
        moments = [*self._due.values(), *(each for each in (self._end_by, self._blocked_until) if each is not None)]
        return max(0.0, min([CHECK_INTERVAL, *(moment - self._clock.monotonic() for moment in moments)]))

    def _is_too_late(self) -> bool:
        """Return True if its jobs are done and it goes on. If handlers do not stop in time, kill it, and read on."""
        now, marks = self._clock.monotonic(), self._rows.marks[:]
        self._note_begun(marks, now)
        late = [self._rows.ids[place] for place, due in self._due.items() if now >= due]
        is_blocked = self._blocked_until is not None and now >= self._blocked_until
        if is_blocked and self.report.blocking is not None:
            late = [self.report.blocking]
        if late and not self.report.overdue:
            self.report.is_sure = is_blocked
            logger.warning("a process of handlers is ended: %s did not stop in time", counted(len(late), "handler"))
            self.report.overdue.update(late)
            os.killpg(self._pid, signal.SIGKILL)
        if self._end_by is None and NEW not in marks and BEGUN not in marks:
            self._end_by = now + self._timeouts.end
        if self._end_by is not None and now >= self._end_by:
            logger.warning("a process of handlers is ended: it still runs although all of its jobs are done")
            return True
        return False

    def _has_exited(self, how: int | None = None) -> bool:
        """Return True if it has exited. `how` is the option of `os.waitpid`, by default not to wait."""
        if self._is_there:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG if how is None else how)
            except ChildProcessError:  # the program lets the system reap its children
                self._is_there = False
            else:
                if pid:
                    self._is_there = False
                    self._code = os.waitstatus_to_exitcode(status)
        return not self._is_there


def _describe_exit(code: int | None) -> str:
    """Return a description of the end of a process, to be kept as the error of its job."""
    if code is None:
        return "the process of the handler ended"
    if code >= 0:
        return f"the process of the handler ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = ": it crashed" if name in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT") else ""
    return f"the process of the handler was ended by {name}{why or _LIKELY_CAUSES.get(name, '')}"


_LIKELY_CAUSES = {"SIGKILL": ", perhaps because the system was out of memory"}
"""Likely causes of a signal, which users ask about first."""
