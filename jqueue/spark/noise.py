"""Keep messages of Spark, its Java machine and PySpark off the terminal of a user who did not ask for them.

Otherwise each command would begin with half a dozen lines about log profiles and incubating modules, and answer a
typing mistake with pages of stack traces. The output of handlers on executors of this machine still comes through.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console

PROFILE = Path(__file__).with_name("log4j2.properties")

NOISE = (b"WARNING: Using incubator modules:", b"Using Spark's default log4j profile", b"WARNING: package sun.")
"""Beginnings of lines that Java writes before any setting applies, and that the user cannot act on."""

LOGGERS_OF_PYSPARK = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")


def java_options(level: str) -> str:
    """Return options that make the driver's Java log from this level on."""
    return f"-Dlog4j2.configurationFile={PROFILE.as_uri()} -Djqueue.spark.log={level}"


def quiet_python() -> None:
    """Silence the logs and warnings of PySpark, above all about versions of packages that jqueue does not need."""
    for name in LOGGERS_OF_PYSPARK:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module=r"pyspark\.")
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")


@contextmanager
def quiet_java(doing: str) -> Iterator[None]:
    """Filter the noise out of the standard error of processes that start in the block. A thread passes on the rest.

    Args:
        doing: the status to show meanwhile, if the standard error is a terminal.
    """
    reading, writing = os.pipe()
    sys.stderr.flush()
    original = os.dup(2)
    under_way = threading.Event()
    under_way.set()
    os.dup2(writing, 2)
    os.close(writing)
    passing = threading.Thread(target=_pass_on, args=(reading, os.dup(original), under_way), daemon=True)
    passing.start()
    try:
        with os.fdopen(os.dup(original), "w") as terminal, _said(doing, terminal):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
        under_way.clear()


@contextmanager
def _said(doing: str, terminal: TextIO) -> Iterator[None]:
    console = Console(file=terminal)
    if console.is_terminal:
        with console.status(doing):
            yield
    else:
        yield


def _pass_on(reading: int, original: int, under_way: threading.Event) -> None:
    """Pass on lines. After the block has ended, do it through `sys.stderr`, since a progress bar may stand there."""
    with os.fdopen(reading, "rb") as lines, os.fdopen(original, "wb") as before, suppress(OSError, ValueError):
        for line in lines:
            if line.startswith(NOISE):
                continue
            if under_way.is_set():
                before.write(line)
                before.flush()
            else:
                sys.stderr.write(line.decode(errors="backslashreplace"))
                sys.stderr.flush()
