"""A child under ptrace, stopped at each of its system calls, and killed at a given one.

All its threads are followed, since the file adapter works in threads. A system call has a name and an ordinal among
the calls with that name in all threads. So "the second fsync" is the same one in every run, however often the threads
waited for each other in between.

Tracing needs Linux 5.3 or newer, the permission to trace one's own children, and the package python-ptrace. Its
bindings and names are used, and not its debugger, which polls for events of several threads only now and then.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.kill.children import at_most, fork

try:
    from ptrace import PtraceError
    from ptrace.binding import func as binding
    from ptrace.syscall import SYSCALL_NAMES
except (ImportError, NotImplementedError) as _error:  # not installed, or an unsupported system or processor
    MISSING: str | None = f"python-ptrace cannot be used here: {_error}"
else:
    MISSING = None


class ViolationError(AssertionError):
    """A promise that was not kept."""


START = signal.SIGUSR1
"""Signal that the child sends to itself when counting must begin."""

SECONDS = 30.0

_EXIT_KILL = 1 << 20  # PTRACE_O_EXITKILL: no traced child outlives us
_GET_SYSCALL_INFO = 0x420E
_WALL = 0x40000000
_SYSTEM_CALL_STOP = signal.SIGTRAP | 0x80
_ENTRY, _EXIT = 1, 2


class Point(NamedTuple):
    """A moment in the life of a process."""

    name: str
    ordinal: int
    at_exit: bool

    def __str__(self) -> str:
        return f"the {'exit' if self.at_exit else 'entry'} of {self.name} number {self.ordinal}"


@dataclass
class Trace:
    """Record of a traced child.

    Attributes:
        points: points at which it can be killed, in order.
        killed: True if it reached the target.
        code: its exit code, if it was not killed.
    """

    points: list[Point] = field(default_factory=list)
    killed: bool = False
    code: int | None = None


class _SystemCallInfo(ctypes.Structure):
    """The needed part of the kernel's struct ptrace_syscall_info."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction_pointer", ctypes.c_uint64),
        ("stack_pointer", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
        ("more", ctypes.c_uint64 * 2),
    )


def why_not() -> str | None:
    """Return the reason why system calls cannot be traced here, or None if they can."""
    if not sys.platform.startswith("linux"):
        return f"tracing system calls needs Linux, and this is {sys.platform}"
    if MISSING is not None:
        return MISSING
    read, write = os.pipe()

    def make_a_call() -> None:
        signal.raise_signal(START)
        os.write(write, b"!")

    try:
        with at_most(SECONDS, "a first try of ptrace"):
            trace = trace_child(make_a_call, write, None)
    except (OSError, PtraceError) as error:
        return f"tracing one's own children is not permitted here: {error}"
    finally:
        os.close(read)
        os.close(write)
    return None if Point("write", 1, False) in trace.points else "tracing does not show system calls here"


def trace_child(run: Callable[[], Any], last: int, target: Point | None) -> Trace:
    """Fork a child that runs this, and kill it at a point.

    System calls after the signal START are counted, up to and including the first write into the descriptor `last`.

    Args:
        run: function that the child runs.
        last: the descriptor whose write ends the counting.
        target: the point at which to kill it; None lets it live.

    Raises:
        OSError: the child cannot be traced.
    """

    def traced() -> None:
        os.setpgid(0, 0)
        try:
            binding.ptrace_traceme()
        except PtraceError as error:
            os._exit(error.errno or 1)
        os.kill(os.getpid(), signal.SIGSTOP)
        run()

    child = fork(traced)
    try:
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            code = os.waitstatus_to_exitcode(status)
            raise OSError(code, f"the child asked to be traced: {os.strerror(abs(code))}")
        options = binding.PTRACE_O_TRACESYSGOOD | binding.PTRACE_O_TRACECLONE | _EXIT_KILL
        binding.ptrace_setoptions(child, options)
        return _Tracer(child, last, target).follow()
    finally:
        _kill(child)


def trace_call(run: Callable[[int], Any], target: Point | None, seconds: float, doing: str) -> tuple[Trace, bool]:
    """Trace a child, and return the trace, and True if it acknowledged its work.

    Args:
        run: function that the child runs, given the descriptor into which it writes a byte once its work is done.
        target: the point at which to kill it; None lets it live.
        seconds: time that it may take.
        doing: its work, for the error if it takes longer.
    """
    read, write = os.pipe()
    try:
        with at_most(seconds, f"{doing} under ptrace"):
            trace = trace_child(lambda: run(write), write, target)
        os.set_blocking(read, False)
        os.close(write)
        write = -1
        return trace, os.read(read, 1) != b""
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


class _Tracer:
    """The events of one child and its threads."""

    def __init__(self, child: int, last: int, target: Point | None) -> None:
        self._child = child
        self._last = last
        self._target = target
        self._counting = False
        self._ordinals: Counter[str] = Counter()
        self._inside: dict[int, Point] = {}
        self._ending: int | None = None
        self._threads = {child}
        self._trace = Trace()

    def follow(self) -> Trace:
        """Follow the child until it has ended, or leave it stopped at the target."""
        thread, forward = self._child, 0
        while True:
            _resume(thread, forward)
            thread, status = os.waitpid(-self._child, _WALL)
            forward = 0
            if not os.WIFSTOPPED(status):
                if thread == self._child:
                    self._trace.code = os.waitstatus_to_exitcode(status)
                    return self._trace
                continue
            stop = os.WSTOPSIG(status)
            if stop == _SYSTEM_CALL_STOP:
                point = self._at_system_call(thread)
                if point is not None:
                    self._trace.points.append(point)
                    if point == self._target:
                        self._trace.killed = True
                        return self._trace
            elif stop == START and thread == self._child:
                self._counting = True
            elif stop == signal.SIGSTOP and thread not in self._threads:
                self._threads.add(thread)  # the first stop of a new thread
            elif not status >> 16:
                forward = stop

    def _at_system_call(self, thread: int) -> Point | None:
        """Return the point at which a thread has stopped, if it is counted."""
        info = _SystemCallInfo()
        try:
            binding.ptrace(_GET_SYSCALL_INFO, thread, ctypes.sizeof(info), ctypes.addressof(info))
        except PtraceError as error:
            if error.errno == errno.ESRCH:  # the process ends, and with it this thread
                return None
            raise OSError(error.errno, f"the system does not tell which system call it is: {error}") from None
        if info.op == _ENTRY and self._counting:
            name = SYSCALL_NAMES.get(info.number, f"number {info.number}")
            self._ordinals[name] += 1
            point = Point(name, self._ordinals[name], False)
            self._inside[thread] = point
            if name == "write" and info.arguments[0] == self._last:
                self._ending = thread
            return point
        entered = self._inside.pop(thread, None)
        if info.op != _EXIT or entered is None or not self._counting:
            return None
        if self._ending == thread:
            self._counting = False
        return entered._replace(at_exit=True)


def _resume(thread: int, forward: int) -> None:
    try:
        binding.ptrace_syscall(thread, forward)
    except PtraceError as error:
        if error.errno != errno.ESRCH:  # it has just ended
            raise


def _kill(child: int) -> None:
    """Kill the child with all its threads, and wait for each."""
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-child, _WALL)
