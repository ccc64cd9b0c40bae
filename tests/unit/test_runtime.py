"""The machine below the queue: jitter of its own in each process, and work in threads with its errors."""

import asyncio
import os
import random

import pytest

from jqueue.runtime.system import SystemEntropy
from jqueue.runtime.threads import in_a_thread


def drawn():
    """Return some jitter."""
    return [SystemEntropy().jitter(1.0) for _ in range(4)]


def test_a_program_that_seeds_its_random_numbers_does_not_seed_the_jitter():
    def seeded():
        random.seed(5)
        numbers = drawn(), random.random()
        return numbers

    (one, mine), (other, mine_again) = seeded(), seeded()
    assert one != other
    assert mine == mine_again


def test_a_forked_process_draws_other_jitter():
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, repr(drawn()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() != repr(drawn())


async def test_work_that_raises_stop_iteration_does_not_hang_its_caller():
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await in_a_thread(next, iter(()))
