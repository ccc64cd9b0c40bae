"""The probes of a worker, by HTTP, and the metrics of its run."""

import asyncio
import json
import logging
import re
import socket
import sys
import threading
import urllib.error
import urllib.request

import pytest

from jqueue import BrokerQueue, InMemoryStorage, InvalidJobError, LocalFileSystemStorage
from jqueue.runtime.threads import in_its_own_thread
from jqueue.worker import Worker
from tests.telemetry.samples import samples_of
from tests.virtual_world import Breakable
from tests.worker.scenes import SECRET, NoThreads, working

ANY_PORT = "127.0.0.1:0"


async def probed(caplog):
    """Wait until a worker that was just started tells the address of its probes, and return it."""
    caplog.set_level(logging.INFO, "jqueue.worker")
    async with asyncio.timeout(60):
        while (found := re.search(r"probes at http://([\d.:]+): ", caplog.text)) is None:
            await asyncio.sleep(0.01)
        return found[1]


async def get(address, path, method="GET"):
    """The status and the body of a page."""

    def fetch():
        request = urllib.request.Request(f"http://{address}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, b""

    return await in_its_own_thread(fetch)


async def until_status(address, path, status):
    async with asyncio.timeout(60):
        while (answer := await get(address, path))[0] != status:
            await asyncio.sleep(0.02)
        return answer


def worker_at(address):
    worker = Worker(name="w", health=address)

    @worker.handler("mail")
    async def mail(): ...

    @worker.handler("fails", max_attempts=1)
    async def fails(text: str):
        raise ValueError(text)

    return worker


async def test_a_worker_is_alive_and_ready_and_shows_its_metrics(tmp_path, caplog):
    asyncio.get_running_loop().set_default_executor(NoThreads())
    queue = BrokerQueue(LocalFileSystemStorage(tmp_path / "queue.json"))
    async with queue:
        for _ in range(3):
            await queue.enqueue("mail", b"")
        await queue.enqueue("fails", SECRET.encode())
        async with working(worker_at(ANY_PORT), queue):
            address = await probed(caplog)
            _, body = await until_status(address, "/readyz", 200)
            facts = json.loads(body)
            assert ("ready", "w", "working", 50) == tuple(facts[k] for k in ("status", "worker", "phase", "slots"))
            assert str(tmp_path / "queue.json") == facts["queue"]
            assert 200 == (await get(address, "/healthz"))[0]
            found: dict[tuple[str, ...], float] = {}
            async with asyncio.timeout(60):
                ends = {"succeeded": 3, "dead": 1}  # a worker counts them when the commit is answered
                while any(found.get(("jqueue_worker_outcomes_total", end, "w")) != ends[end] for end in ends):
                    _, text = await get(address, "/metrics")
                    found = samples_of(text)
            assert (3, 1) == (found["jqueue_done_total", "mail"], found["jqueue_dead_total", "fails"])
            assert (1, 50) == (found["jqueue_workers", "w"], found["jqueue_worker_slots", "w"])
            assert found["jqueue_commits_total",] > 0
            assert SECRET not in text.decode() + body.decode()
        assert 0 == (await get(address, "/healthz"))[0]  # the listener is closed


async def test_a_store_that_fails_makes_a_worker_unready_and_not_dead(caplog):
    storage = Breakable(InMemoryStorage())
    async with BrokerQueue(storage, poll_interval=0.05) as queue, working(worker_at(ANY_PORT), queue):
        address = await probed(caplog)
        await until_status(address, "/readyz", 200)
        storage.down = True
        _, body = await until_status(address, "/readyz", 503)
        assert "the store fails to read: transient" == json.loads(body)["status"]
        assert 200 == (await get(address, "/healthz"))[0]
        storage.down = False
        await until_status(address, "/readyz", 200)


async def test_a_scrape_is_answered_while_a_handler_blocks_the_event_loop(caplog):
    scraped = threading.Event()
    answers: list[bytes] = []
    worker = worker_at(ANY_PORT)

    def scrape():
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=50) as answer:
            answers.append(answer.read())
        scraped.set()

    @worker.handler("blocks")
    async def blocks():
        threading.Thread(target=scrape).start()
        assert scraped.wait(60)

    async with BrokerQueue(InMemoryStorage()) as queue:
        await queue.enqueue("mail", b"")
        async with working(worker, queue):
            address = await probed(caplog)
            await until_status(address, "/metrics", 200)
            await queue.enqueue("blocks", b"")
            async with asyncio.timeout(60):
                while not answers:
                    await asyncio.sleep(0.01)
    assert {("jqueue_up",), ("jqueue_figures_age_seconds",)} <= samples_of(answers[0]).keys()


async def test_a_worker_that_stops_is_not_ready_while_its_handlers_finish(caplog):
    release = asyncio.Event()
    worker = worker_at(ANY_PORT)
    began = asyncio.Event()

    @worker.handler("slow")
    async def slow():
        began.set()
        await release.wait()

    async with BrokerQueue(InMemoryStorage()) as queue:
        await queue.enqueue("slow", b"")
        async with working(worker, queue) as task:
            address = await probed(caplog)
            await asyncio.wait_for(began.wait(), 60)
            worker.stop()
            _, body = await until_status(address, "/readyz", 503)
            assert ("stopping", 1) == (json.loads(body)["status"], json.loads(body)["running"])
            assert 200 == (await get(address, "/healthz"))[0]
            release.set()
            assert 1 == (await task).succeeded


async def test_an_address_in_use_ends_the_worker_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with BrokerQueue(InMemoryStorage()) as queue:
            with pytest.raises(InvalidJobError, match=f"cannot listen on {address}"):
                await worker_at(address).run(queue, signals=False)


async def test_without_the_library_of_metrics_there_are_probes_and_no_metrics(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "jqueue.telemetry.prometheus", raising=False)
    async with BrokerQueue(InMemoryStorage()) as queue, working(worker_at(ANY_PORT), queue):
        address = await probed(caplog)
        await until_status(address, "/readyz", 200)
        assert (404, b"there is /healthz, /readyz\n") == await get(address, "/metrics")
