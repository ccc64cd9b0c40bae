"""The real jqueue 1.0.0 in its own environment, and this project: the same program can be run on both."""

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
    """jqueue 1.0.0, with the pins of this project. It requires Python 3.12, but also runs on 3.11."""
    pins = ("-c", str(ROOT / "constraints.txt"))
    return Release("jqueue", "1.0.0", options=pins, oldest=(3, 12)).interpreter()
