"""A fixture that runs the doctor on a store of the test in virtual time."""

import asyncio

import pytest
from typer.testing import CliRunner

from jqueue.cli import doctor as module
from jqueue.cli.app import app
from jqueue.testing import virtual_time


@pytest.fixture
def doctor(monkeypatch):
    """`doctor(storage, *options)`: the result of `jqueue doctor URL` in a terminal of 80 columns."""

    def run(storage, *options, real_time=False):
        monkeypatch.setattr(module, "connect_storage", lambda url: storage)
        if not real_time:
            monkeypatch.setattr(asyncio, "run", virtual_time.run)
            monkeypatch.setattr(module, "SystemClock", virtual_time.VirtualClock)
        return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["doctor", "test://", *options], catch_exceptions=False)

    return run
