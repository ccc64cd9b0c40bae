"""Handlers in separate processes. A process that dies, or is killed as its job must end, costs only that job or batch.

Each process leads a process group: see `in_process`. Two threads belong to it. One starts it and waits for its end; the
other one reads what it reports.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import math
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from jqueue.domain.job import Progress
from jqueue.domain.models import Job
from jqueue.runtime.system import usable_processors
from jqueue.runtime.threads import in_its_own_thread
from jqueue.worker.handler_errors import rebuilt
from jqueue.worker.handler_options import MIB
from jqueue.worker.handlers import Handler
from jqueue.worker.in_process import later, serve
from jqueue.worker.job_log import levels_of_loggers, log_forwarded
from jqueue.worker.signals import SIGNALS

IMPORT_TIMEOUT = 300.0
"""Seconds that a process gets to start and to import the module of its handler, before the handler's timeout begins."""

TERMINATION = 3.0
"""Seconds between the order to end and its enforcement."""

LEAVING = 5.0
"""Seconds that an idle process gets to end by itself, before the order to end."""

JOIN_TIMEOUT = 10.0
"""Seconds that all processes get to end when the worker does."""

LAST_REPORTS = 1.0
"""Seconds to wait for the last reports of a process that has ended. A process that it has left may hold its pipe."""

Running = Callable[[bool], None]
"""Called with False while the job waits for a process and its imports, and with True once its handler has begun."""

Reporting = Callable[[Progress], None]
"""Called with the progress that a handler reports."""


class ProcessDied(Exception):
    """The process of a handler ended before the handler did."""


class Processes:
    """Processes that are started when they are needed, and used again.

    Args:
        max_processes: the largest number of processes; there are never more than processors to use.
        max_memory: memory in MiB above which a process is not used again; None for no limit.

    Attributes:
        turn: semaphore with one place per process. A caller acquires it before `call`.
    """

    def __init__(self, max_processes: int, max_memory: int | None = None) -> None:
        self._max_memory = math.inf if max_memory is None else max_memory * MIB
        self.turn: asyncio.Semaphore = asyncio.Semaphore(min(max_processes, usable_processors()))
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()

    async def call(
        self, handler: Handler[..., Any], jobs: Sequence[Job], running: Running, reporting: Reporting
    ) -> Any:
        """Do a job or a batch in a process. Cancelling this kills the process. A batch gives one result for each job.

        Raises:
            ProcessDied: the process could not be started, or ended before the handler did, or could not import its
                module in time.
            BaseException: the error of the handler, in a class of the same name.
        """
        running(False)
        while True:
            is_used = bool(self._idle)
            process = self._idle.pop() if is_used else _Process(self._all)
            try:
                answer = await process.do(handler, jobs, running, reporting)
                break
            except _EndedEarly as error:
                if not is_used:  # anything may have killed an idle process
                    raise ProcessDied(str(error)) from None
            except BaseException:
                process.end()
                raise
        if answer["memory"] <= self._max_memory:
            self._idle.append(process)
        else:
            process.leave()
        if "raised" in answer:
            raise rebuilt(answer["raised"])
        results = [value if error is None else rebuilt(error) for value, error in answer["results"]]
        return results[0] if handler.options.batch is None else results

    async def close(self) -> None:
        """Let idle processes end by themselves, with what they do at their exit, and end the others."""
        for process in self._all:
            if process.is_idle:
                process.leave()
            else:
                process.end()
        if self._all:
            await asyncio.wait([process.gone for process in self._all], timeout=JOIN_TIMEOUT)


class _EndedEarly(ProcessDied):
    """A process ended before its handler began."""


class _Process:
    """One process for handlers. It starts at once.

    Args:
        everyone: has this object until the process is gone.

    Attributes:
        gone: is done when the process has ended.
        is_idle: True between two jobs.
    """

    def __init__(self, everyone: set[_Process]) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._must_end = self.is_idle = False
        self._pipe, *theirs = multiprocessing.Pipe()
        orders, self._orders = multiprocessing.Pipe(duplex=False)
        theirs.append(orders)
        spawn = multiprocessing.get_context("spawn")  # a fork of a program with threads and an event loop may hang
        self._process = spawn.Process(target=serve, args=(*theirs, levels_of_loggers()), name="jqueue-handler")
        threading.Thread(target=self._run, args=[theirs], name="jqueue-process", daemon=True).start()
        everyone.add(self)
        self.gone = self._loop.create_future()
        self.gone.add_done_callback(lambda _: everyone.discard(self))
        self.gone.add_done_callback(lambda _: atexit.unregister(self.end))
        atexit.register(self.end)  # a loop that is left without its end closes nothing, and multiprocessing would wait

    async def do(
        self, handler: Handler[..., Any], jobs: Sequence[Job], running: Running, reporting: Reporting
    ) -> dict[str, Any]:
        """Do a job or a batch. Return the answer of `in_process`."""
        self.is_idle = False
        function = handler.function
        request = function.__module__, function.__qualname__, jobs, handler.options.seconds
        sending = asyncio.create_task(in_its_own_thread(self._pipe.send, request))
        sending.add_done_callback(lambda _: sending.cancelled() or sending.exception())  # its end is told below
        try:
            kind, content = await asyncio.wait_for(self._messages.get(), IMPORT_TIMEOUT)
        except TimeoutError:
            raise ProcessDied(f"the process of the handler had not begun with it after {IMPORT_TIMEOUT:g} s") from None
        if kind == "gone":
            raise _EndedEarly(content)
        if kind == "begun":
            running(True)
            while (message := await self._messages.get())[0] == "progress":
                reporting(Progress(*message[1]))
            kind, content = message
            if kind == "gone":
                raise ProcessDied(content)
        answer: dict[str, Any] = content
        self.is_idle = True
        return answer

    def leave(self) -> None:
        """Let the process, which is idle, end by itself."""
        with contextlib.suppress(OSError):  # it is gone
            self._pipe.send(None)
        later(LEAVING, self.end)

    def end(self) -> None:
        """Tell the process and its children to end. Processes left after some seconds are killed."""
        if not self._must_end:
            self._must_end = True
            with contextlib.suppress(OSError):  # it is gone
                self._orders.send(None)
            self._signal("SIGTERM")
            later(TERMINATION, self._signal, "SIGKILL")

    def _run(self, theirs: list[Connection]) -> None:
        """Start the process, wait for its end, and kill all that it has left. It runs in a thread."""
        try:
            with theirs[0], theirs[1], signals_blocked(SIGNALS):
                self._process.start()
        except Exception as error:
            self._tell("gone", f"no process could be started for the handler: {error}")
            return
        if self._must_end:
            self._signal("SIGTERM")
        reader = threading.Thread(target=self._read, name="jqueue-reports", daemon=True)
        reader.start()
        self._process.join()
        self._signal("SIGKILL", gone=True)
        reader.join(LAST_REPORTS)  # it may have ended amid a report, and a child of it may keep the pipe open
        code = self._process.exitcode
        early = " before the handler returned" if code == 0 else ""
        self._tell("gone", f"the process of the handler ended with exit code {code}{early}")

    def _read(self) -> None:
        """Read what the process reports, until nothing more can be read. It runs in a thread."""
        with self._pipe, contextlib.suppress(Exception):  # a handler may have written to the pipe, or closed it
            while True:
                kind, content = json.loads(self._pipe.recv_bytes())
                if kind == "log":
                    with contextlib.suppress(Exception):  # a filter of the program may raise anything
                        log_forwarded(content)
                else:
                    self._tell(kind, content)
        self.end()

    def _tell(self, kind: str, content: Any) -> None:
        def tell() -> None:
            self._messages.put_nowait((kind, content))
            if kind == "gone":
                self.gone.set_result(None)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(tell)

    def _signal(self, name: str, *, gone: bool = False) -> None:
        """Send a signal to the group of the process, or to the process if it has none yet."""
        pid = self._process.pid
        if pid is None or (not gone and self._process.exitcode is not None):
            return
        try:
            os.killpg(pid, getattr(signal, name))
        except (AttributeError, ProcessLookupError, PermissionError):  # Windows; the group has not begun, or is gone
            if not gone:
                self._process.terminate()


@contextlib.contextmanager
def signals_blocked(numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Block signals in this thread. A process that it starts inherits that, from its first instruction on.

    Until it leads its own group, Ctrl-C in a terminal reaches it too. It would end in a traceback, amid its imports. A
    service manager's SIGTERM reaches it always.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # its own start would unblock signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
