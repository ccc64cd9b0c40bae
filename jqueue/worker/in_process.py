"""A process of handlers: it does one job or batch after the other, and reports in JSON, which anything can read.

It leads a process group, so that it and every process that it starts end together:

* processes started by a handler end with its process, whether it is killed, crashes, or ends by itself;
* Ctrl-C in a terminal reaches only the worker, which lets its handlers finish, also while the process starts;
* a signal that a service manager sends to all processes ends none of these: the worker gets it too;
* no process goes on after the worker itself was killed.

Windows has no such groups: there the process ends, and the processes that it started go on. The process finds a handler
by its module and its name, and parses the payloads. It reports `begun`, once that module is imported; records of its
`log`, which the worker logs as its own; the `progress` of the job; and the `answer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import logging
import multiprocessing
import multiprocessing.connection
import operator
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from jqueue.domain.job import Progress
from jqueue.domain.models import Job
from jqueue.runtime.system import SystemClock, memory_in_use
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.dependencies import here
from jqueue.worker.handler_errors import check_awaited, error_in, portable, results_of
from jqueue.worker.handlers import Handler
from jqueue.worker.job_log import forward_records
from jqueue.worker.signals import SIGNALS

REPORTS_EVERY = 0.5
"""Seconds that a report of progress waits for a later one in its place."""

End = tuple[Any, dict[str, Any] | None]
"""The result of a job and its error, one of them None."""


def serve(pipe: Connection, orders: Connection, levels: dict[str, int]) -> None:
    """Do what the worker asks for, until it asks for nothing more, orders the end, or ends itself.

    Args:
        pipe: brings the module and the name of a handler, the jobs, and their timeout, and takes the reports.
        orders: brings the order to end, also amid a job.
        levels: the levels of the worker's loggers.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    _survive_signals()
    threading.Thread(target=end_with_parent, args=[orders], name="jqueue-parent", daemon=True).start()
    turn = threading.Lock()

    def send(report: bytes) -> None:
        with turn:
            pipe.send_bytes(report)

    def begin() -> None:
        for name in levels:
            logging.getLogger(name).disabled = False  # a setup of the log disables them unless it is told not to
        send(_report("begun"))

    forward_records(levels, lambda record: send(_report("log", record)))
    reports = _LatestReport(lambda progress: send(_report("progress", progress)))
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        if request is None:
            return
        module, name, jobs, seconds = request
        end: dict[str, Any]
        try:
            end = {"results": _ends_of(module, name, jobs, seconds, begin, reports)}
        except BaseException as error:
            end = {"raised": portable(error)}
        reports.bring()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # there may be none, or none that takes more
                stream.flush()
        send(_report("answer", {**end, "memory": memory_in_use()}))


class _LatestReport:
    """The latest progress that the handler reported, until it is sent to the worker."""

    def __init__(self, send: Callable[[Progress], None]) -> None:
        self._send, self._turn = send, threading.Lock()
        self._latest: Progress | None = None

    def add(self, job: Job, progress: Progress) -> None:
        """Take a report. Threads of a handler may call this."""
        with self._turn:
            if self._latest is None:
                later(REPORTS_EVERY, self.bring)
            self._latest = progress

    def bring(self) -> None:
        """Send the latest report, if there is a new one."""
        with self._turn, contextlib.suppress(OSError):  # a handler may have closed the pipe
            if self._latest is not None:
                self._send(self._latest)
            self._latest = None


def _report(kind: str, content: Any = None) -> bytes:
    return json.dumps([kind, content], default=str).encode()


def _survive_signals() -> None:
    """Do nothing at signals of others, unless a handler sets an action. The processes of a handler end at them.

    Those would inherit it if signals were ignored.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # and any that came while it was blocked
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, _survive)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.register_at_fork(
            after_in_child=lambda: [
                signal.signal(number, signal.SIG_DFL) for number in numbers if signal.getsignal(number) is _survive
            ]
        )


def _survive(number: int, frame: FrameType | None) -> None:
    """Do nothing."""


def later(seconds: float, function: Callable[..., object], *args: Any) -> None:
    """Call a function after some seconds, unless the program has ended before."""
    timer = threading.Timer(seconds, function, args)
    timer.daemon = True
    timer.start()


def end_with_parent(orders: Connection | None = None) -> None:
    """Kill this process and its group when the worker ends, however it ends: only the worker enforces timeouts.

    The order to end does the same, unless the program has an action for SIGTERM, which the worker then sends: that has
    some seconds.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    ready = multiprocessing.connection.wait([parent.sentinel] if orders is None else [parent.sentinel, orders])
    if parent.sentinel not in ready and signal.getsignal(signal.SIGTERM) is not _survive:
        multiprocessing.connection.wait([parent.sentinel])
    with contextlib.suppress(OSError, AttributeError):  # Windows has no groups
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _ends_of(
    module: str,
    name: str,
    jobs: Sequence[Job],
    seconds: float | None,
    begin: Callable[[], None],
    reports: _LatestReport,
) -> list[End]:
    """Find the handler, do the jobs, and return the end of each: results that must be kept, and errors of a batch."""
    handler = operator.attrgetter(name)(importlib.import_module(module))
    if not isinstance(handler, Handler):
        raise TypeError(f"{module}.{name} is not a jqueue handler in the process: decorate it where it is defined")
    begin()
    deadline = None if seconds is None else SystemClock().now() + timedelta(seconds=seconds)
    call = handler.signature.call
    if handler.options.batch is None:
        [job] = jobs
        value = handler.signature.parse(job)
        ctx = Context(job, report=reports.add, deadline=deadline) if handler.signature.wants_context else None
        result = _awaited(call(value, ctx))
        return [_end_of(handler.signature.returns.encode, result)]
    ends = [_end_of(handler.signature.parse, job) for job in jobs]
    places = [place for place, (_, error) in enumerate(ends) if error is None]
    if places:
        contexts = [Context(jobs[place], deadline=deadline) for place in places]
        batch = BatchContext(handler.entrypoint, contexts, deadline=deadline)
        returned = _awaited(call([ends[place][0] for place in places], batch))
        for place, result in zip(places, results_of(returned, len(places)), strict=True):
            failed = error_in(result)
            ends[place] = (
                (None, portable(failed)) if failed is not None else _end_of(handler.signature.returns.encode, result)
            )
    return ends


def _awaited(value: Any) -> Any:
    """Return the value of a call. The coroutine of a handler that wraps an async function is run."""
    if inspect.isawaitable(value):
        value = asyncio.run(here(value))
    check_awaited(value)
    return value


def _end_of(function: Callable[..., Any], *args: Any) -> End:
    try:
        return function(*args), None
    except Exception as error:
        return None, portable(error)
