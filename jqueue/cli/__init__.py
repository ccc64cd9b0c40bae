"""The command line: `jqueue doctor URL`, `jqueue worker app:worker URL` and commands for operators, a file a noun.

It needs `pip install 'jqueue[cli]'`; the rest of jqueue does not.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

from jqueue.runtime.first_process import go_on_in_child

NEEDED = ("rich", "typer")

STDOUT = 1
"""Descriptor of the standard output."""

UNUSABLE = 2
"""Exit code of a command that could not do its work."""

CLOSED_PIPE = 1
"""Exit code of a command whose output is no longer read, as by `head`. That is no error to tell."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as typer has it: amid the imports, too, it prints no traceback."""


def main() -> None:
    """Run the command line, and exit with its status."""
    if sys.argv[1:2] == ["worker"]:
        go_on_in_child()
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, signal.SIGINT)
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    gc.disable()  # until the command is imported: what is made before stays until the end
    try:
        import rich  # noqa: F401 - the commands need it, which are imported when they are called

        from jqueue.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        print("jqueue: the command line needs typer and rich: pip install 'jqueue[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows escapes
    own = sys.stdout is sys.__stdout__ and sys.argv[1:2] != ["worker"]  # an error of a handler's print is the handler's
    if os.name == "posix" and own:
        sys.stdout = _output()
    try:
        app(prog_name="jqueue")
    finally:
        try:
            print(end="", flush=True)
        except OSError as error:  # of the standard output of a worker, where its handlers print
            raise _without_output(error) from None


class _Output(io.FileIO):
    """The standard output. A write that fails ends the command."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise _without_output(error) from None


def _output() -> io.TextIOWrapper:
    """Return a standard output that says if it cannot be written, also if the process was started without one."""
    encoding, interactive = getattr(sys.stdout, "encoding", None), False
    if sys.stdout is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), STDOUT)  # each write fails
    else:
        interactive = sys.stdout.isatty()
    file = io.BufferedWriter(_Output(STDOUT, "w", closefd=False))
    return io.TextIOWrapper(file, encoding, "backslashreplace", line_buffering=interactive)


def _without_output(error: OSError) -> SystemExit:
    """Return the end of a command whose standard output cannot be written. The rest of its output is dropped."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    if isinstance(error, BrokenPipeError):
        return SystemExit(CLOSED_PIPE)
    with suppress(OSError):
        reason = f"the standard output cannot be written: {error.strerror}. What the command has changed stays"
        print(f"jqueue: {reason}", file=sys.stderr)
    return SystemExit(UNUSABLE)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once at a signal that arrives before the command handles signals, or in a command that handles none.

    A worker has no job yet, so it ends with 0, as always at a signal. Other commands end as they do by default, but
    also as the first process of a container: it has no default actions.
    """
    if sys.argv[1:2] != ["worker"]:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(0 if sys.argv[1:2] == ["worker"] else 128 + number)
