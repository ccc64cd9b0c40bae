"""The process in which the handlers of a partition run: what it does, from its fork to its end.

It runs a worker on jobs that it has in memory since the fork, and tells its parent through a pipe which ones it has
begun and what became of them. Whatever a handler does to its process, what was told before is known.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import JQueueError
from jqueue.domain.models import Job
from jqueue.ports.queue import JobQueue
from jqueue.spark.batch.partition_queue import PartitionQueue
from jqueue.spark.batch.watching import blocked_loop_told
from jqueue.worker import Worker

Word = Literal["ready", "begun", "ended", "blocked", "failed", "over"]
"""What a message is about.

`ready`: seconds after which jobs of an entrypoint should have ended; `begun`: ids of jobs; `ended`: outcomes;
`blocked`: the id of the job whose handler blocks the event loop, or null when none does any more; `failed`: why no more
jobs are done; `over`: nothing more will come, and whether a handler wanted so.
"""

LENGTH = 4
"""Bytes before each message that say how long it is."""

INTERRUPTED = 130
"""The exit code of a process that a KeyboardInterrupt has ended."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Errand:
    """What is to be done with the jobs of a partition.

    Attributes:
        load: makes the worker; called where its handlers run, and nowhere else.
        behind: makes an object of the queue that the jobs are from.
        concurrency: how many jobs at a time; None: as the worker says.
    """

    load: Callable[[], Worker]
    behind: Callable[[], JobQueue]
    concurrency: int | None = None


def be_child(reader: int, writer: int, errand: Errand, jobs: Sequence[Job]) -> NoReturn:
    """Be the child of a fork. It ends within this function, so that it never does what its parent was about to do.

    Args:
        reader: the parent's end of the pipe.
        writer: the child's.
        errand: what to do.
        jobs: with which jobs.
    """
    code = 1
    try:
        os.close(reader)
        _set_up()
        work(errand, jobs, _teller(writer), lambda: _leave(INTERRUPTED))
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
    errand: Errand,
    jobs: Sequence[Job],
    tell: Callable[[Word, Any], None],
    interrupted: Callable[[], object] = lambda: None,
) -> None:
    """Do jobs, and tell what becomes of them.

    Args:
        errand: what to do.
        jobs: with which jobs.
        tell: is told.
        interrupted: called when a handler has raised KeyboardInterrupt, before the others are stopped for it.
    """
    try:
        worker = errand.load()
        patience = {name: _patience(worker, name) for name in worker.handlers}
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        traceback.print_exc()
        tell("failed", f"the worker cannot be made there: {_said(error)}")
        return
    tell("ready", patience)
    with asyncio.Runner() as runner:
        try:
            runner.run(_run(worker, errand, jobs, tell))
        except KeyboardInterrupt:
            interrupted()
            raise


async def _run(worker: Worker, errand: Errand, jobs: Sequence[Job], tell: Callable[[Word, Any], None]) -> None:
    queue: Any = PartitionQueue(
        jobs,
        lambda begun: tell("begun", [job.id for job in begun]),
        lambda ended: tell("ended", [outcome.plain() for outcome in ended]),
        behind=errand.behind,
    )
    stops: list[bool] = []
    stop = worker.stop

    def noted() -> None:
        stops.append(True)
        stop()

    worker.stop = noted  # type: ignore[method-assign] # handlers may have had enough; nobody else is there to call it
    if errand.concurrency is not None:
        worker.concurrency = errand.concurrency
    try:
        with blocked_loop_told(lambda job_id: tell("blocked", job_id)):
            await worker.run(queue, drain=True, signals=False)
    except Exception as error:
        traceback.print_exc()
        tell("failed", str(error) if isinstance(error, JQueueError) else f"the worker failed: {_said(error)}")
    finally:
        await queue.aclose()
    tell("over", bool(stops))  # what handlers left behind may hold up the end of the loop


def _patience(worker: Worker, name: str) -> float | None:
    """Seconds after which a job must have ended, or the worker cannot stop it; None if nobody can say."""
    handler = worker.handlers[name]
    if handler.options.seconds is None or handler.home == "process":
        return None
    return handler.options.seconds + to_seconds("cancel_grace", worker.cancel_grace)


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    except Exception:  # an exception class of somebody's own
        return type(error).__name__


def _teller(writer: int) -> Callable[[Word, Any], None]:
    """What writes messages to a pipe, whole: who reads them gets them even if this process ends next."""
    turn = threading.Lock()

    def tell(word: Word, about: Any) -> None:
        message = json.dumps([word, about], ensure_ascii=False, separators=(",", ":")).encode()
        left = memoryview(len(message).to_bytes(LENGTH, "big") + message)
        with turn:
            while left:
                left = left[os.write(writer, left) :]

    return tell


def _set_up() -> None:
    """Be a process of one's own, that ends with its parent, and when it is told to."""
    gc.freeze()  # what is the parent's is not closed here when it is garbage
    os.setpgid(0, 0)  # what handlers start ends with them, and Ctrl-C is the driver's alone
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # as in a program of its own; ended by a signal, it is told so
    faulthandler.enable(2)
    _end_with_parent(os.getppid())


def _end_with_parent(parent: int) -> None:
    """End when the parent has ended: nobody would hear of anything, and its jobs are given to others."""
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
    """Have the kernel send this signal when the parent ends: also to a process whose threads do not take turns."""
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) == 0)
    except (AttributeError, OSError):
        return False
