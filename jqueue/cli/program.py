"""The worker of a program, found by MODULE:NAME. Errors of the program are shown without our own frames."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import TracebackType
from typing import Any

import typer

from jqueue.cli.printing import UNUSABLE, refusal
from jqueue.worker import Worker


def find_worker(target: str) -> Worker:
    """Return the worker that MODULE:NAME means. Modules of the current folder count, as for `python -m`.

    Raises:
        typer.Exit: there is none, or it has no handlers. The reason has been printed.
    """
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise refusal("give the worker as MODULE:NAME; app:worker means `worker` in app.py")
    if module_name.endswith(".py") or "/" in module_name:
        raise refusal("give the module, not its file: app:worker means `worker` in app.py in this folder")
    found = _imported(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        what = f"has no {name!r}" if found is None else f"has a {name!r} of type {type(found).__name__}"
        raise refusal(f"the module {module_name} {what}: a jqueue.worker.Worker is needed")
    if not found.handlers:
        raise refusal(f'{target} has no handlers: register one with @{name}.handler("name")')
    return found


def _imported(module_name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise refusal(f"the module {module_name!r} is neither in this folder nor installed") from None
        typer.echo(f"jqueue: the module {module_name!r} could not be imported:", err=True)
        traceback.print_exception(error.with_traceback(_from_program(error.__traceback__)))
        raise typer.Exit(UNUSABLE) from None


def _from_program(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames from the program's first one on. Earlier frames are ours or the import system's."""
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _is_ours(filename: str) -> bool:
    return filename in (__file__, importlib.__file__) or filename.startswith("<frozen importlib")
