"""A connection is closed with the task that serves it."""

import asyncio
from typing import Any

import pytest

from tests.servers.accepting import accepting


class Writer:
    closed = False

    def close(self):
        self.closed = True


@pytest.mark.parametrize("begins", [True, False])
async def test_a_connection_is_closed_when_its_task_is_cancelled_even_before_it_starts(begins):
    begun, writer, before = [], Writer(), asyncio.all_tasks()

    async def serve(reader: Any, writer: Any) -> None:
        begun.append(reader)
        await asyncio.Event().wait()

    accept: Any = accepting(serve)
    accept("a reader", writer)
    [task] = asyncio.all_tasks() - before
    if begins:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert (["a reader"] * begins, True) == (begun, writer.closed)
