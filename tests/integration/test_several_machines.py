"""A broker of a queue in S3, and its clients in other processes: with access to the store, and without."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager

import pytest

from jqueue import BrokerQueue, connect
from jqueue.domain.errors import ClaimLostError, StorageError, UnknownOutcomeError
from tests.object_stores import store_of

TOKEN = "worker-token-of-the-tests"
PATIENCE = 60


@pytest.fixture
def place(request, monkeypatch, tmp_path):
    """URL of a queue in S3, with the environment that finds it and a token."""
    store = store_of(request, "moto_s3")
    for name, value in {**store.environment(), "JQUEUE_TOKEN": TOKEN}.items():
        monkeypatch.setenv(name, value)
    return f"s3://{store.bucket}/{store.new_key()}"


def token_file(folder):
    from jqueue.server.access import Role, TokenFile

    TokenFile.add(folder / "tokens", Role.WORKER, "worker", TOKEN)
    return folder / "tokens"


@contextmanager
def serving(place, tokens, port=0):
    """`jqueue serve` in a process: yields it and its port."""
    words = [sys.executable, "-m", "jqueue", "serve", place, "--listen", f"127.0.0.1:{port}", "--token-file", tokens]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield process, int(line.split()[-1].rpartition(":")[2].rstrip("/"))
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(PATIENCE)


async def use(url, name, seconds):
    """Enqueue, claim and ack from several tasks for some seconds. Return what happened."""
    said: dict[str, list[str]] = {"added": [], "acked": [], "unsure": [], "errors": []}
    until = time.monotonic() + seconds

    async def add(task):
        number = 0
        while time.monotonic() < until:
            job_id = f"{name}-{task}-{number}"
            number += 1
            try:
                await queue.enqueue("work", job_id=job_id)
                said["added"].append(job_id)
            except UnknownOutcomeError:
                said["unsure"].append(job_id)
            except StorageError as error:
                said["errors"].append(repr(error))

    async def work():
        while time.monotonic() < until:
            try:
                jobs = await queue.dequeue("work", batch_size=5, wait=0.5)
            except StorageError as error:
                said["errors"].append(repr(error))
                continue
            for job in jobs:
                try:
                    await queue.ack(job)
                    said["acked"].append(job.id)
                except (UnknownOutcomeError, ClaimLostError):
                    said["unsure"].append(job.id)
                except StorageError as error:
                    said["errors"].append(repr(error))

    async with connect(url, BrokerQueue, deadline=PATIENCE) as queue:
        await asyncio.gather(*map(add, range(4)), *(work() for _ in range(2)))
    return said


@contextmanager
def client(url, name, seconds):
    words = [sys.executable, "-c", f"import {__name__} as own; own.main()", url, name, str(seconds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        yield process


def main():
    print(json.dumps(asyncio.run(use(sys.argv[1], sys.argv[2], float(sys.argv[3])))))


async def state_of(place):
    async with connect(place, BrokerQueue, share=False) as direct:
        return await direct.read_state()


@pytest.mark.wide
@pytest.mark.usefixtures("moto_s3")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_no_call_is_lost_or_done_twice_when_the_broker_ends(place, tmp_path, monkeypatch, end):
    tokens = token_file(tmp_path)
    async with connect(place, BrokerQueue, share=False) as direct:
        await direct.enqueue("other", job_id="first")
    with serving(place, tokens) as (process, port):
        while (seat := (await state_of(place)).broker) is None:
            await asyncio.sleep(0.1)
        assert (seat.url, seat.term) == (f"http://127.0.0.1:{port}", 1)
        monkeypatch.setenv("JQUEUE_TOKEN", f"{seat.url}/#token={TOKEN}")
        with client(place, "near", 6) as near, client(f"jqueue+http://127.0.0.1:{port}/queue", "far", 6) as far:
            while len((await state_of(place)).clients) < 2:
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            assert len((await state_of(place)).commits) == 2, "a client has committed beside its broker"
            process.send_signal(end)
            process.wait(PATIENCE)
            with serving(place, tokens, port):
                out = [json.loads((await asyncio.to_thread(each.communicate))[0]) for each in (near, far)]
                async with asyncio.timeout(PATIENCE):
                    while (seat := (await state_of(place)).broker) is None or seat.term < 2:
                        await asyncio.sleep(0.1)
    for said in out:
        assert said["errors"] == []
        assert len(said["added"]) > 20, "the clients did not work"
    if end == signal.SIGTERM:
        assert [said["unsure"] for said in out] == [[], []]
    added = {job_id for said in out for job_id in said["added"]}
    unsure = {job_id for said in out for job_id in said["unsure"]}
    acked = Counter(job_id for said in out for job_id in said["acked"])
    assert [job_id for job_id, times in acked.items() if times > 1] == []
    state = await state_of(place)
    left = {job.id for job in state.jobs}
    assert added - unsure <= acked.keys() | left, "an enqueue was answered, and its job is gone"
    assert not acked.keys() & left, "a job was acked, and is there still"
    assert state.broker is not None
    assert (state.broker.url, state.broker.term) == ("", 2), "the second broker has not left its seat"


@pytest.mark.usefixtures("moto_s3")
async def test_a_client_without_the_store_looks_at_the_queue_and_is_told_what_it_may_not(place, tmp_path, monkeypatch):
    with serving(place, token_file(tmp_path)) as (_, port):
        url = f"jqueue+http://127.0.0.1:{port}/queue"
        async with connect(url, BrokerQueue) as queue:
            await queue.enqueue("work")
            assert (await queue.stats()).ready == 1
            assert [job.entrypoint for job in (await queue.read_state()).jobs] == ["work"]
            with pytest.raises(StorageError, match="may not do Pause"):
                await queue.pause("work")
            assert not queue.capabilities.objects
            assert not queue.capabilities.leases
        async with connect(url, BrokerQueue, token="another-token") as queue:
            with pytest.raises(StorageError, match="refuses the token"):
                await queue.enqueue("work")
        monkeypatch.delenv("JQUEUE_TOKEN")
        async with connect(url, BrokerQueue) as queue:
            with pytest.raises(StorageError, match="needs a token"):
                await queue.stats()
