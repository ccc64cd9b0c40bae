"""Signals that end a worker: they wake an idle event loop, and leave the program's own handling as it was."""

import asyncio
import os
import selectors
import signal
import threading

import pytest

from jqueue.worker.signals import handle_signals


def signal_in_a_thread(number):
    """Send a signal to a thread: the system does so at times, and does not interrupt the main thread then."""
    thread = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), number))
    thread.start()
    thread.join()


@pytest.fixture(autouse=True)
def _no_wake_up_is_left():
    yield
    assert -1 == signal.set_wakeup_fd(-1)


class IdleSelector(selectors.DefaultSelector):
    """A selector that says when its event loop has nothing to do until something happens."""

    def __init__(self):
        super().__init__()
        self.idle = threading.Event()

    def select(self, timeout=None):
        if timeout is None:
            self.idle.set()
        return super().select(timeout)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.timeout(60)
def test_a_signal_in_another_thread_wakes_an_idle_event_loop(number):
    selector = IdleSelector()

    def send():
        selector.idle.wait()
        signal.pthread_kill(threading.get_ident(), number)

    async def idle():
        stopped = asyncio.Event()
        with handle_signals(stopped.set):
            threading.Thread(target=send, daemon=True).start()
            await stopped.wait()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(idle())


async def test_signals_wake_the_loop_until_the_last_block_has_ended():
    first, second = asyncio.Event(), asyncio.Event()
    outer = handle_signals(first.set)
    outer.__enter__()
    with handle_signals(second.set):
        outer.__exit__(None, None, None)
        await asyncio.to_thread(signal_in_a_thread, signal.SIGTERM)
        await second.wait()
    assert not first.is_set()


async def test_a_handler_that_the_program_gave_to_its_loop_is_still_called():
    loop, own, stopped = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, own.set)
    try:
        with handle_signals(stopped.set):
            os.kill(os.getpid(), signal.SIGUSR1)
            await own.wait()
            own.clear()
            await asyncio.to_thread(signal_in_a_thread, signal.SIGTERM)
            await stopped.wait()
        os.kill(os.getpid(), signal.SIGUSR1)
        await own.wait()
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
