"""The real jqueue 1.0.0, in an environment of its own, beside ours: the same program can be run on both."""

import sys
from pathlib import Path

import pytest

from tests.interop.environments import ROOT, Interpreter, Release, clean_environment


@pytest.fixture(scope="session")
def ours() -> Interpreter:
    """This project."""
    return Interpreter(Path(sys.executable), {**clean_environment(), "PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="session")
def real() -> Interpreter:
    """1.0.0 asks for Python 3.12, but runs on 3.11 as well, with the pins that ours is tested with."""
    pins = ("-c", str(ROOT / "constraints.txt"))
    return Release("jqueue", "1.0.0", options=pins, oldest=(3, 12)).interpreter()
