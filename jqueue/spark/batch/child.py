"""The child process that runs the handlers of a partition, from its fork to its end.

It runs a worker on the jobs that it has in memory since the fork. In shared memory, it marks the jobs that have begun,
and those that are simply done. Through a pipe, it tells its parent what became of the others. Even if a handler kills
its process, the parent knows everything told before.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import gc
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import msgspec

from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import JQueueError
from jqueue.ports.queue import JobQueue
from jqueue.spark.batch.blocked_loop import report_blocked_loop
from jqueue.spark.batch.partition_queue import PartitionQueue
from jqueue.spark.batch.partition_rows import PartitionRows
from jqueue.worker import Worker

MessageKind = Literal["ready", "ended", "blocked", "failed", "over"]
"""The kind of a message. It says what else the message holds.

`ready`: for each entrypoint, seconds after which a job should have ended; `ended`: outcomes;
`blocked`: the id of the job whose handler blocks the event loop, or null when it is free again; `failed`: why no more
jobs are done; `over`, the last message: true if a handler stopped the worker.
"""

LENGTH = 4
"""Bytes before each message that hold its length."""

INTERRUPTED = 130
"""Exit code of a process that a KeyboardInterrupt has ended."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class WorkInstructions:
    """Instructions for the jobs of a partition.

    Attributes:
        load: makes the worker. It is only called in the process that runs the handlers.
        make_queue: makes an object of the queue that the jobs come from.
        concurrency: number of jobs at a time; None: as the worker says.
        timeout: seconds that a handler may take that has no timeout of its own; None for no limit.
        results: True to pass on what all handlers return, also if the queue does not keep it.
    """

    load: Callable[[], Worker]
    make_queue: Callable[[], JobQueue]
    concurrency: int | None = None
    timeout: float | None = None
    results: bool = False


def run_as_child(reader: int, writer: int, instructions: WorkInstructions, rows: PartitionRows) -> NoReturn:
    """Do the work of the child of a fork, and exit. The process never continues with the code of its parent.

    Args:
        reader: the parent's end of the pipe.
        writer: the child's end of the pipe.
        instructions: how to do the jobs.
        rows: the jobs to do.
    """
    code = 1
    try:
        os.close(reader)
        _set_up()
        work(instructions, rows, _message_sender(writer), lambda: _leave(INTERRUPTED))
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _leave(code: int) -> NoReturn:
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def work(
    instructions: WorkInstructions,
    rows: PartitionRows,
    send: Callable[[MessageKind, Any], None],
    interrupted: Callable[[], object] = lambda: None,
) -> None:
    """Do jobs, and report what becomes of them.

    Args:
        instructions: how to do the jobs.
        rows: the jobs to do.
        send: sends a message.
        interrupted: called when a handler has raised KeyboardInterrupt, before the others are stopped for it.
    """
    try:
        worker = with_timeouts(instructions.load(), instructions.timeout)
        told_only = with_results(worker) if instructions.results else frozenset()
        limits = {name: _stop_limit(worker, name) for name in worker.handlers}
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        traceback.print_exc()
        send("failed", f"the worker cannot be loaded on the executor: {_error_text(error)}")
        return
    send("ready", limits)
    with asyncio.Runner() as runner:
        try:
            runner.run(_run(worker, instructions, rows, send, told_only))
        except KeyboardInterrupt:
            interrupted()
            raise


async def _run(
    worker: Worker,
    instructions: WorkInstructions,
    rows: PartitionRows,
    send: Callable[[MessageKind, Any], None],
    told_only: Collection[str],
) -> None:
    queue: Any = PartitionQueue(
        rows,
        lambda ended: send("ended", msgspec.to_builtins(ended)),
        make_queue=instructions.make_queue,
        told_only=told_only,
    )
    stops: list[bool] = []
    stop = worker.stop

    def note_stop() -> None:
        stops.append(True)
        stop()

    worker.stop = note_stop  # type: ignore[method-assign] # handlers may have had enough; nobody else is there to call it
    worker.settings = replace(worker.settings, on_dead=None)  # the commit is the driver's
    if instructions.concurrency is not None:
        worker.settings = replace(worker.settings, concurrency=instructions.concurrency)
    try:
        with report_blocked_loop(lambda job_id: send("blocked", job_id)):
            await worker.run(queue, drain=True, signals=False)
    except Exception as error:
        traceback.print_exc()
        send("failed", str(error) if isinstance(error, JQueueError) else f"the worker failed: {_error_text(error)}")
    finally:
        await queue.aclose()
    send("over", bool(stops))  # now: tasks that handlers left behind may delay the end of the loop


def with_timeouts(worker: Worker, seconds: float | None) -> Worker:
    """Give a timeout to each handler of a worker that has none, and return the worker. None changes nothing."""
    for handler in worker.handlers.values() if seconds is not None else ():
        if handler.options.seconds is None:
            handler.options = replace(handler.options, timeout=seconds)
    return worker


def with_results(worker: Worker) -> Collection[str]:
    """Have a worker pass on what its handlers return. Return the entrypoints whose results the queue does not keep."""
    told_only = {name for name, handler in worker.handlers.items() if handler.options.keep_result is None}
    for name in told_only:
        handler = worker.handlers[name]
        handler.options = replace(handler.options, keep_result=1)
    return told_only


def _stop_limit(worker: Worker, name: str) -> float | None:
    """Return the seconds a job may run before its worker has failed to stop it; None if there is no limit."""
    handler = worker.handlers[name]
    if handler.options.seconds is None or handler.home == "process":
        return None
    return handler.options.seconds + to_seconds("cancel_grace", worker.settings.cancel_grace)


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    except Exception:  # the text of a user's exception class may raise
        return type(error).__name__


def _message_sender(writer: int) -> Callable[[MessageKind, Any], None]:
    """Return a function that writes whole messages to a pipe: they can be read even if this process ends next."""
    turn = threading.Lock()

    def send(kind: MessageKind, content: Any) -> None:
        message = json.dumps([kind, content], ensure_ascii=False, separators=(",", ":")).encode()
        left = memoryview(len(message).to_bytes(LENGTH, "big") + message)
        with turn:
            while left:
                left = left[os.write(writer, left) :]

    return send


def _set_up() -> None:
    """Lead a process group, end on signals as any program does, and end with the parent."""
    gc.freeze()  # garbage collection must not close objects of the parent here
    os.setpgid(0, 0)  # processes that handlers start end with them; only the driver gets Ctrl-C
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # the defaults: the exit status names the signal
    faulthandler.enable(2)
    _end_with_parent(os.getppid())


def _end_with_parent(parent: int) -> None:
    """End when the parent has ended: no process would hear of the outcomes, and the jobs are given to other tasks."""
    if sys.platform == "linux" and _prctl(signal.SIGKILL):
        if os.getppid() != parent:
            os._exit(1)
        return
    moment = threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            moment.wait(1.0)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="jqueue-parent", daemon=True).start()


def _prctl(number: int) -> bool:
    """Have the kernel send this signal when the parent ends, even if one thread never lets the others run."""
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) == 0)
    except (AttributeError, OSError):
        return False
