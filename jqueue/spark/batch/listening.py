"""What the parent of a child process hears of it, until it has ended, by itself or by force."""

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

from jqueue.domain.models import Job
from jqueue.ports.clock import Clock
from jqueue.ports.log import logger_of
from jqueue.runtime.system import SystemClock
from jqueue.spark.batch.child import LENGTH, Errand, be_child
from jqueue.spark.batch.outcomes import Outcome

logger = logger_of("jqueue.spark")

LOOK_EVERY = 0.5
"""Seconds between two looks whether a child is there: what it has started may hold the pipe open."""

SHORT_PAUSE = 0.005
"""Seconds between two looks while it should be gone in a moment."""

CHUNK = 1 << 20
"""Bytes that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a child may take for what its worker should see to. In seconds.

    Attributes:
        late: to stop a handler that has had its timeout and its grace.
        end: to end when all jobs are done.
        exit: to exit when it has ended.
    """

    late: float = 10.0
    end: float = 30.0
    exit: float = 5.0


@dataclass
class Told:
    """What a child has told.

    Attributes:
        begun: the ids of the jobs begun.
        outcomes: what became of jobs, by id.
        failure: why it does no more.
        is_over: whether it has done all that it will do.
        is_stopped: whether that is for a handler that has stopped the worker.
        death: how its process ended, if before that.
        overdue: the ids of the jobs whose handlers did not stop, for which it was ended.
        blocking: the id of the job whose handler blocks the event loop.
        is_sure: whether the job that is overdue is to blame, and no other: it was seen to block the event loop.
        limits: seconds after which jobs of an entrypoint must have ended.
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
        """Whether it ended before it could say so."""
        return not self.is_over and self.failure is None

    def hear(self, word: Any, about: Any) -> None:
        """Take a message.

        Raises:
            ValueError: it is none.
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
    """Have jobs done by a child process, and return what it told, when it has ended."""
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
    """A child, and the end of the pipe at which it is heard."""
    reader, writer = os.pipe()
    for stream in (sys.stdout, sys.stderr):  # or the child would write what is left in them as well
        with suppress(Exception):
            stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: no lock of theirs is used
        pid = os.fork()
    if pid == 0:
        be_child(reader, writer, errand, jobs)
    os.close(writer)
    with suppress(OSError):  # whoever of the two comes first
        os.setpgid(pid, pid)
    return pid, reader


class _Listener:
    """Listens to one child.

    Args:
        pid: the child, which is the leader of its group.
        reader: where it is heard.
        jobs: what it does.
        patience: how long it may take.
        clock: tells how long it takes.

    Attributes:
        told: what was heard.
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
        """Hear it until it has no more to say, or has ended."""
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
                    is_gone = self._has_exited()  # it may have told something since it was listened to
                if self._is_too_late():
                    return
        until = self._clock.monotonic() + self._patience.exit
        while not self._has_exited() and self._clock.monotonic() < until:
            time.sleep(SHORT_PAUSE)

    def end(self) -> int | None:
        """Have it end, if it has not, with all that it has started. Returns its exit code, if that can be known."""
        for kill in (os.killpg, os.kill):
            if kill is os.killpg or self._is_there:
                with suppress(ProcessLookupError, PermissionError):
                    kill(self._pid, signal.SIGKILL)
        self._has_exited(0)
        return self._code

    def _hear(self, chunk: bytes) -> bool:
        """Take the messages that are complete; returns whether they could be read."""
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
            self.told.death = "the process of the handlers wrote where only jqueue does"
            return False
        del heard[:start]
        return True

    def _note(self, word: str, about: Any) -> None:
        """Note by when what has begun must have ended."""
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
        """Seconds until there is something to see to, if nothing is heard."""
        moments = [*self._due.values(), *(each for each in (self._end_by, self._blocked_until) if each is not None)]
        return max(0.0, min([LOOK_EVERY, *(moment - self._clock.monotonic() for moment in moments)]))

    def _is_too_late(self) -> bool:
        """Whether it had all the time that there is. For handlers that do not stop it is ended, and heard out."""
        now = self._clock.monotonic()
        late = [job_id for job_id, due in self._due.items() if now >= due]
        if self._blocked_until is not None and now >= self._blocked_until and self.told.blocking is not None:
            late, self.told.is_sure, self._blocked_until = [self.told.blocking], True, None
        if late:
            logger.warning("a process of handlers is ended: %d of them did not stop in time", len(late))
            self.told.overdue.update(late)
            self._due.clear()
            os.killpg(self._pid, signal.SIGKILL)
        if self._end_by is not None and now >= self._end_by:
            logger.warning("a process of handlers is ended: all of its jobs are done, and it goes on")
            return True
        return False

    def _has_exited(self, how: int | None = None) -> bool:
        """Whether it has; `how` is what `os.waitpid` takes, by default not to wait."""
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
    """The end of a process, as it is kept with the job that it was for."""
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


_PERHAPS = {"SIGKILL": ", as a system does that is out of memory"}
"""What people ask first."""
