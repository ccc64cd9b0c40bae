"""The randomness of the machine: jitter of its own in each process, and nothing taken from the program's."""

import os
import random

from jqueue.runtime.system import SystemEntropy


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
