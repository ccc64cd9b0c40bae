"""`jqueue watch` and `ls --watch` draw a queue on the whole screen, and leave the terminal as it was."""

import asyncio
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.cli.columns import Terminal
from jqueue.cli.live import _look_again
from jqueue.cli.ls import drawing
from jqueue.cli.on_queue import OpenedQueue
from jqueue.cli.watch import bars, screen
from jqueue.cli.workers import find_holders
from jqueue.domain.selection import Selection
from tests.cli.hostile import assert_harmless, fill

LEAVE, SHOW_CURSOR = b"\x1b[?1049l", b"\x1b[?25h"
PATIENCE = 60


@pytest.fixture
def path(tmp_path):
    return fill(tmp_path / "queue.json")


async def opened(path):
    queue = DirectQueue(LocalFileSystemStorage(path))
    return OpenedQueue(queue, str(path), await queue.view())


@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (80, 10)])
def test_the_screen_fits_and_is_harmless(path, width, height, colours):
    async def draw():
        seen = await opened(path)
        terminal = Terminal(width, colours)
        return list(screen(seen, await seen.stats(), await find_holders(seen), terminal, height, [1, 5, 3]))

    lines = asyncio.run(draw())
    assert_harmless("\n".join(lines), colours=colours)
    shown = " ".join(lines)
    assert "ready 2  " in shown
    assert "holder-x" in shown
    if not colours:
        assert width >= max(map(len, lines))


def test_many_entrypoints_are_cut_to_the_room(tmp_path):
    path = tmp_path / "queue.json"

    async def draw():
        queue = DirectQueue(LocalFileSystemStorage(path))
        for number in range(30):
            for _ in range(1 + number % 3):
                await queue.enqueue(f"entrypoint-{number}")
        seen = await opened(path)
        return list(screen(seen, await seen.stats(), await find_holders(seen), Terminal(80), 20, [1]))

    lines = asyncio.run(draw())
    assert len(lines) <= 20
    assert any("more entrypoints" in line for line in lines)
    assert any(line.startswith("entrypoint-2 ") for line in lines)


def test_bars_show_the_course_of_numbers():
    assert "▁▁█" == bars([0, 1, 9])
    assert "▁" == bars([0])
    assert "" == bars([])


def test_a_list_is_drawn_as_far_as_it_fits(path):
    async def draw(room):
        draws = drawing(Selection(), None, None, reverse=False)
        return list(await draws(await opened(path), Terminal(80), room))

    assert 5 + 3 == len(asyncio.run(draw(8)))
    assert "6 jobs, 1 of them not shown" in asyncio.run(draw(8))[-1]


def test_a_queue_that_cannot_be_read_keeps_its_last_screen(path):
    async def look():
        seen = await opened(path)
        again, trouble = await _look_again(seen)
        assert (seen.view, "") == (again.view, trouble)
        path.write_text("damaged")
        again, trouble = await _look_again(seen)
        assert again is seen
        assert "the queue cannot be read, and this is what it was: " in trouble

    asyncio.run(look())


@pytest.mark.parametrize("command", [["watch"], ["ls", "--watch"]])
def test_without_a_terminal_another_command_is_named(path, command):
    name, *options = command
    result = CliRunner().invoke(app, [name, str(path), *options])
    assert (2, "", f"jqueue: the output is not a terminal: use `jqueue {name.replace('watch', 'stats')}`\n") == (
        result.exit_code,
        result.stdout,
        result.stderr,
    )


def read_until(descriptor, text, seen=b""):
    """Return what the terminal shows, as soon as a text is in it."""
    end = time.monotonic() + PATIENCE
    while text not in seen and time.monotonic() < end:
        ready, _, _ = select.select([descriptor], [], [], 1)
        try:
            seen += os.read(descriptor, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
    assert text in seen
    return seen


@pytest.mark.wide
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", [["watch", "--interval", "0.2"], ["ls", "--watch", "--interval", "0.2"]])
def test_a_signal_ends_it_with_a_clean_terminal(path, command, number):
    keyboard, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    name, *options = command
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    for variable in ("COLUMNS", "LINES", "FORCE_COLOR"):
        environment.pop(variable, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "jqueue", name, str(path), *options],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
    )
    os.close(terminal)
    try:
        seen = read_until(keyboard, b"holder-x")

        async def add():
            await DirectQueue(LocalFileSystemStorage(path)).enqueue("one-more-entrypoint")

        asyncio.run(add())
        seen = read_until(keyboard, b"one-more", seen)
        process.send_signal(number)
        seen = read_until(keyboard, SHOW_CURSOR, seen)
        assert 0 == process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
    assert LEAVE in seen
    assert b"Traceback" not in seen
    assert b"\x1b[2J\x1b]0;" not in seen
