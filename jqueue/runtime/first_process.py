"""The first process of a container, to which the kernel gives all processes that have lost their parent.

Unless it waits for them, they stay as zombies. It cannot tell them from children that a program's own code waits for,
and would take the exit status of these. So the first process here only waits, and the program runs in a child of it.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

NOT_PASSED_ON = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGTTIN", "SIGTTOU")
"""Signals of faults in this process itself, and of its own terminal."""


def go_on_in_child() -> None:
    """If this is process 1, fork: only the child returns. The parent passes signals on, and ends with its status.

    A program that has threads stays process 1, as a fork would lose them.
    """
    if os.getpid() != 1 or threading.active_count() > 1 or not hasattr(signal, "sigwaitinfo"):
        return
    numbers = signal.valid_signals() - {getattr(signal, name) for name in NOT_PASSED_ON}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        info = signal.sigwaitinfo(numbers)
        is_of_key = info.si_code > 0 and info.si_signo != signal.SIGHUP  # such as Ctrl-C, which the child gets too
        if info.si_signo != signal.SIGCHLD and not is_of_key:
            os.kill(child, info.si_signo)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    code = os.waitstatus_to_exitcode(ended[1])
                    os._exit(code if code >= 0 else 128 - code)
