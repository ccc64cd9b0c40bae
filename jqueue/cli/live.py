"""A screen that is drawn again and again from the present content of a queue, until it is stopped."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Annotated

import typer

from jqueue.cli.columns import Terminal
from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import OpenedQueue, on_queue
from jqueue.domain.errors import JQueueError
from jqueue.domain.printable import printable

Interval = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Seconds between two looks at the queue.")]
Draw = Callable[[OpenedQueue, Terminal, int], Awaitable[Iterable[str]]]
"""Returns the lines of a screen, given the queue, the terminal and the number of lines that it has room for."""

DEADLINE = 15.0
"""Seconds for each look."""


def live(url: str, draw: Draw, interval: float, *, instead: str, as_json: bool) -> None:
    """Show a queue on the whole screen until Ctrl-C or SIGTERM, and leave the terminal as it was.

    The queue is read again only if the store says that it has changed. While it cannot be read, the last screen stays,
    with the reason below it.

    Args:
        url: URL of the queue.
        draw: draws a screen.
        interval: seconds between two looks.
        instead: the command to use where there is no terminal.
        as_json: True if JSON is asked for, too, which is refused.
    """
    if as_json:
        raise RefusedError("choose --watch or --json")
    if not sys.stdout.isatty():
        raise RefusedError(f"the output is not a terminal: use `{instead}`")
    on_queue(url, lambda opened: _watch(opened, draw, interval))


async def _watch(opened: OpenedQueue, draw: Draw, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from jqueue.worker.signals import handle_signals

    console, stopped, trouble = Console(highlight=False), asyncio.Event(), ""
    terminal = Terminal.of_stdout()
    with (
        handle_signals(stopped.set),
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as screen,
    ):
        while not stopped.is_set():
            size = console.size
            terminal = Terminal(size.width, terminal.colours)
            room = size.height - 1
            lines = list(islice(await draw(opened, terminal, room), room))
            last = terminal.styled(printable(trouble), "red") if trouble else ""
            text = Text.from_ansi("\n".join([*lines, *[""] * (room - len(lines)), last]), no_wrap=True, overflow="crop")
            screen.update(text, refresh=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), interval)
            if not stopped.is_set():
                opened, trouble = await _look_again(opened)


async def _look_again(opened: OpenedQueue) -> tuple[OpenedQueue, str]:
    """Return the queue as it is now, or as it was, with the reason why it cannot be read."""
    try:
        view = await opened.queue.view(opened.view, deadline=DEADLINE)
    except JQueueError as error:
        return opened, f"the queue cannot be read, and this is what it was: {error}"
    return OpenedQueue(opened.queue, opened.name, view), ""
