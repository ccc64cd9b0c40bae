"""The workers of `examples/` in JavaScript and in shell, against a broker with tokens."""

import asyncio
import os
import shutil
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jqueue.server.access import Role
from tests.server.served import TOKENS

EXAMPLES = Path(__file__).parents[2] / "examples"


@asynccontextmanager
async def running(served, *command, **environment):
    """A program that works for the broker. It must end with 0 at a SIGTERM, which all of its processes get."""
    environment = {**os.environ, "JQUEUE_BROKER": served.url, **environment}
    program = await asyncio.create_subprocess_exec(*command, env=environment, start_new_session=True)
    try:
        yield
        os.killpg(program.pid, signal.SIGTERM)
        assert 0 == await asyncio.wait_for(program.wait(), 20)
    finally:
        if program.returncode is None:
            os.killpg(program.pid, signal.SIGKILL)
            await program.wait()


def needs(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


async def seen(served, job_id, **wanted):
    """Wait until a job looks like this, and return it."""
    while True:
        job = (await served.get(f"/v1/jobs/{job_id}")).values
        if all(job.get(name) == value for name, value in wanted.items()):
            return job
        await asyncio.sleep(0.05)


async def test_a_worker_in_javascript_acks_and_nacks(broker):
    needs("node")
    path = EXAMPLES / "worker.mjs"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    async with running(broker, "node", str(path), JQUEUE_TOKEN=TOKENS[Role.WORKER]):
        good, bad = {"image": "a.png", "width": 10}, {"image": "b.png", "width": 0}
        for job_id, payload in (("good/1", good), ("bad", bad)):
            job = {"entrypoint": "resize", "id": job_id, "json": payload, "keep_result": 60, "max_attempts": 1}
            await broker.post("/v1/jobs", job, Role.PRODUCER)
        assert good == (await seen(broker, "good%2F1", status="completed"))["result"]
        assert "cannot resize b.png to 0" in (await seen(broker, "bad", status="dead"))["error"]


async def test_a_worker_in_shell_acks_and_nacks(broker, tmp_path):
    needs("curl", "jq")
    header = tmp_path / "header"
    header.write_text(f"Authorization: Bearer {TOKENS[Role.WORKER]}\n")
    out = tmp_path / "out"
    command = f"cat >> {out}; grep -q end {out}"
    arguments = ("sh", str(EXAMPLES / "worker.sh"), "mail", "sh", "-c", command)
    async with running(broker, *arguments, JQUEUE_HEADER=str(header)):
        await broker.post("/v1/jobs", {"entrypoint": "mail", "id": "a b/1", "text": "grüße\n"}, Role.PRODUCER)
        assert "the command ended with 1" == (await seen(broker, "a%20b%2F1", status="scheduled"))["error"]
        await broker.post("/v1/jobs", {"entrypoint": "mail", "id": "two", "text": "end\n"}, Role.PRODUCER)
        await seen(broker, "two", title="JobNotFoundError")
    assert "grüße\nend\n" == out.read_text(encoding="utf-8")
