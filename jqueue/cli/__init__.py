"""The command line: `jqueue doctor URL`, `jqueue worker app:worker URL` and commands for operators, a file a noun.

It needs `pip install 'jqueue[cli]'`; the rest of jqueue does not.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from types import FrameType

NEEDED = ("rich", "typer")

INTERRUPTED = 130
"""Exit code after Ctrl-C, as typer has it: amid the imports, too, it prints no traceback."""


def main() -> None:
    """Run the command line, and exit with its status."""
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows escapes
    app(prog_name="jqueue")


def _end(number: int, frame: FrameType | None) -> None:
    """End at once at a signal that arrives before the command handles signals, or in a command that handles none.

    A worker has no job yet, so it ends with 0, as always at a signal. Other commands end as they do by default, but
    also as the first process of a container: it has no default actions.
    """
    if sys.argv[1:2] != ["worker"]:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(0 if sys.argv[1:2] == ["worker"] else 128 + number)
