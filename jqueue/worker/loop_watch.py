"""A warning of code that holds the worker's event loop: meanwhile no heartbeat is sent, and claims may be lost."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Collection

from jqueue.domain.printable import printable
from jqueue.ports.log import Logger, logger_of
from jqueue.worker.executions import Execution
from jqueue.worker.run_state import JOB_TASK

logger: Logger = logger_of("jqueue.worker")

HELD = 5.0
"""Seconds without a turn of the event loop after which the worker warns, as soon as it has one."""


async def watch_loop(executions: Callable[[], Collection[Execution]], held: float = HELD) -> None:
    """Warn after each time for which the event loop stood still, until cancelled.

    A thread looks meanwhile where the loop is, as that cannot be told afterwards.

    Args:
        executions: returns the calls of handlers that run.
        held: seconds without a turn after which it warns.
    """
    loop, thread, turn = asyncio.get_running_loop(), threading.get_ident(), threading.Event()
    place, is_over, tick = [""], False, held / 2

    def look() -> None:
        while not is_over:
            if not turn.wait(held):
                place[0] = _where(loop, thread)
                turn.wait()
            turn.clear()

    threading.Thread(target=look, name="jqueue-worker-loop-watch", daemon=True).start()
    try:
        while True:
            before = loop.time()
            await asyncio.sleep(tick)
            stood = loop.time() - before - tick
            if stood > held:
                _warn(executions(), stood, place[0])
            place[0] = ""
            turn.set()
    finally:
        is_over = True
        turn.set()


def _where(loop: asyncio.AbstractEventLoop, thread: int) -> str:
    """Return the task that has the event loop of a thread, with the line that it is at; "" if none has it."""
    task, frame = asyncio.current_task(loop), sys._current_frames().get(thread)
    if task is None or frame is None:
        return ""
    name = task.get_name()
    what = f"job {name.removeprefix(JOB_TASK)}" if name.startswith(JOB_TASK) else f"the task {name}"
    code = frame.f_code
    return printable(f"{what}, in {code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})")


def _warn(executions: Collection[Execution], seconds: float, place: str) -> None:
    running = ", ".join(sorted({each.handler.entrypoint for each in executions})) or "none"
    logger.warning(
        "the event loop of this worker stood still for %.1f s: no heartbeat was sent. %s",
        seconds,
        f"It was held by {place}. Use a plain function, process=True or asyncio.to_thread for such work"
        if place
        else f"The process was stopped, or code held the interpreter. Handlers that ran: {running}",
    )
