"""The parent of a child process, which listens to it until it has ended, by itself or by force."""

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

from jqueue.domain.counting import counted
from jqueue.domain.models import Job
from jqueue.ports.clock import Clock
from jqueue.ports.log import logger_of
from jqueue.runtime.system import SystemClock
from jqueue.spark.batch.child import LENGTH, Errand, be_child
from jqueue.spark.batch.outcomes import Outcome

logger = logger_of("jqueue.spark")

LOOK_EVERY = 0.5
"""Seconds between two checks that a child still runs: processes that it has started may hold the pipe open."""

SHORT_PAUSE = 0.005
"""Seconds between two checks while the child should exit in a moment."""

CHUNK = 1 << 20
"""Bytes to read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
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
class Told:
    """Everything that a child has told, and how it ended.

    Attributes:
        begun: the ids of the jobs begun.
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

    begun: set[str] = field(default_factory=set)
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

    def hear(self, word: Any, about: Any) -> None:
        """Take a message.

        Raises:
            ValueError: it is not a message.
        """
        if word == "ready":
            self.limits = dict(about)
        elif word == "begun":
            self.begun.update(about)
        elif word == "ended":
            self.outcomes.update((outcome.job_id, outcome) for outcome in map(Outcome.of_plain, about))
        elif word == "blocked":
            self.blocking = None if about is None else str(about)
        elif word == "failed":
            self.failure = str(about)
        elif word == "over":
            self.is_over, self.is_stopped = True, bool(about)
        else:
            raise ValueError("there is no such message")


def told_by_child(errand: Errand, jobs: Sequence[Job], patience: Patience, clock: Clock | None = None) -> Told:
    """Have a child process do jobs, wait until it has ended, and return everything that it told."""
    pid, reader = _forked(errand, jobs)
    listener = _Listener(pid, reader, jobs, patience, SystemClock() if clock is None else clock)
    try:
        listener.listen()
    finally:
        os.close(reader)
        code = listener.end()
    told = listener.told
    if told.is_cut_short:
        told.death = told.death or _how_it_ended(code)
    return told


def _forked(errand: Errand, jobs: Sequence[Job]) -> tuple[int, int]:
    """Fork a child. Return its process id, and the end of the pipe from which it is heard."""
    reader, writer = os.pipe()
    for stream in (sys.stdout, sys.stderr):  # or the child would write their buffers as well
        with suppress(Exception):
            stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: their locks are not used
        pid = os.fork()
    if pid == 0:
        be_child(reader, writer, errand, jobs)
    os.close(writer)
    with suppress(OSError):  # the child does the same; the first of the two wins
        os.setpgid(pid, pid)
    return pid, reader


class _Listener:
    """Listens to one child.

    Args:
        pid: the process id of the child, which leads its process group.
        reader: the end of the pipe from which it is heard.
        jobs: the jobs that it does.
        patience: seconds that it may take.
        clock: measures the time.

    Attributes:
        told: everything heard so far.
    """

    def __init__(self, pid: int, reader: int, jobs: Sequence[Job], patience: Patience, clock: Clock) -> None:
        self.told = Told()
        self._pid = pid
        self._reader = reader
        self._entrypoints = {job.id: job.entrypoint for job in jobs}
        self._patience = patience
        self._clock = clock
        self._heard = bytearray()
        self._due: dict[str, float] = {}
        self._blocked_until: float | None = None
        self._end_by: float | None = None
        self._code: int | None = None
        self._is_there = True

    def listen(self) -> None:
        """Read messages until the last one has come, or the child has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            is_gone = False
            while not self.told.is_over:
                if selector.select(0 if is_gone else self._next_look()):
                    chunk = os.read(self._reader, CHUNK)
                    if not chunk or not self._hear(chunk):
                        break
                elif is_gone:
                    return
                else:
                    is_gone = self._has_exited()  # it may have told something since the last read
                if self._is_too_late():
                    return
        until = self._clock.monotonic() + self._patience.exit
        while not self._has_exited() and self._clock.monotonic() < until:
            time.sleep(SHORT_PAUSE)

    def end(self) -> int | None:
        """Kill the child, if it still runs, and all that it has started. Return its exit code, or None if unknown."""
        for kill in (os.killpg, os.kill):
            if kill is os.killpg or self._is_there:
                with suppress(ProcessLookupError, PermissionError):
                    kill(self._pid, signal.SIGKILL)
        self._has_exited(0)
        return self._code

    def _hear(self, chunk: bytes) -> bool:
        """Take the complete messages. Return True if they could be read."""
        heard = self._heard
        heard += chunk
        start = 0
        try:
            while (begin := start + LENGTH) <= len(heard):
                end = begin + int.from_bytes(heard[start:begin], "big")
                if end > len(heard):
                    break
                word, about = json.loads(heard[begin:end])
                self.told.hear(word, about)
                self._note(word, about)
                start = end
        except (LookupError, TypeError, ValueError):
            self.told.death = "the process of the handlers wrote to a pipe of jqueue"
            return False
        del heard[:start]
        return True

    def _note(self, word: str, about: Any) -> None:
        """Note the time by which a job that has begun must have ended."""
        told = self.told
        if word == "blocked":
            limit = None if about is None else told.limits.get(self._entrypoints[about])
            self._blocked_until = None if limit is None else self._clock.monotonic() + limit
        if word == "begun" and told.limits:
            now = self._clock.monotonic()
            for job_id in about:
                limit = told.limits.get(self._entrypoints[job_id])
                if limit is not None:
                    self._due[job_id] = now + limit + self._patience.late
        elif word == "ended":
            for outcome in about:
                self._due.pop(outcome[0], None)
        if len(told.outcomes) >= len(self._entrypoints) and self._end_by is None:
            self._end_by = self._clock.monotonic() + self._patience.end

    def _next_look(self) -> float:
        """Return the seconds until the next check, if nothing is heard."""
        moments = [*self._due.values(), *(each for each in (self._end_by, self._blocked_until) if each is not None)]
        return max(0.0, min([LOOK_EVERY, *(moment - self._clock.monotonic() for moment in moments)]))

    def _is_too_late(self) -> bool:
        """Return True if its jobs are done and it goes on. If handlers do not stop in time, kill it, and read on."""
        now = self._clock.monotonic()
        late = [job_id for job_id, due in self._due.items() if now >= due]
        if self._blocked_until is not None and now >= self._blocked_until and self.told.blocking is not None:
            late, self.told.is_sure, self._blocked_until = [self.told.blocking], True, None
        if late:
            logger.warning("a process of handlers is ended: %s did not stop in time", counted(len(late), "handler"))
            self.told.overdue.update(late)
            self._due.clear()
            os.killpg(self._pid, signal.SIGKILL)
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


def _how_it_ended(code: int | None) -> str:
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
    return f"the process of the handler was ended by {name}{why or _PERHAPS.get(name, '')}"


_PERHAPS = {"SIGKILL": ", perhaps because the system was out of memory"}
"""Likely causes of a signal, which users ask about first."""
