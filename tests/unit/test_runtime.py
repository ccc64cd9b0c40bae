"""The machine below the queue: jitter of its own in each process, and work in threads with its errors."""

import asyncio
import gc
import os
import random
import subprocess
import sys

import pytest

from jqueue.core.tasks import end_tasks
from jqueue.runtime import system
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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_the_processors_of_other_programs_are_not_counted():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from jqueue.runtime import system"
    asked = f"{code}; print(system.usable_processors())"
    assert "1\n" == subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/a/b", {"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "max 100000\n"}),
        ("0::/of/the/host", {"cpu.max": "100000 100000\n"}),
        ("3:memory:/\n2:cpu,cpuacct:/a\n0::/", {"cpu/a/cpu.cfs_quota_us": "99\n", "cpu/a/cpu.cfs_period_us": "100\n"}),
    ],
)
def test_a_quota_of_a_cgroup_bounds_the_number_of_processors(tmp_path, cgroup, files):
    for name, text in {"proc/self/cgroup": cgroup, **{f"sys/fs/cgroup/{name}": files[name] for name in files}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert 1 == system.usable_processors(tmp_path)


async def test_the_error_by_which_a_task_answers_its_end_is_retrieved():
    begun, reported = asyncio.Event(), []

    async def work():
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            raise OSError

    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    task = asyncio.create_task(work())
    await begun.wait()
    await end_tasks([task])
    del task
    gc.collect()
    assert [] == reported
