"""A worker is sent to executors by name or by value, and an error names the part that cannot be sent."""

import importlib
import pickle
import subprocess
import sys
import textwrap
import threading
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.spark.batch.worker_pickle import WorkerPickle
from jqueue.worker import Context, Worker

pytestmark = pytest.mark.wide


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module with a worker, in a folder on the import path."""
    (tmp_path / "batch_app.py").write_text(
        textwrap.dedent(
            """
            import threading
            from jqueue.worker import Worker

            worker, lock = Worker(), threading.Lock()

            @worker.handler("work")
            async def work(payload: bytes) -> None:
                with lock:
                    pass
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("batch_app")
    del sys.modules["batch_app"]


def test_a_worker_in_a_module_is_sent_by_its_name(module):
    sent = WorkerPickle.of(module.worker)
    assert ("batch_app", "worker", b"") == (sent.module, sent.name, sent.content)
    assert module.worker is pickle.loads(pickle.dumps(sent)).load()


def test_a_worker_is_found_in_a_module_other_than_its_handlers(module, tmp_path, monkeypatch):
    worker = Worker()
    worker.handler("other")(module.work)
    module.another = worker
    assert "another" == WorkerPickle.of(worker).name


def test_a_worker_made_in_a_function_is_sent_by_value():
    factor, worker = 7, Worker(concurrency=3)

    @worker.handler("work", max_attempts=4)
    async def work(numbers: list[int], ctx: Context) -> int:
        return factor * sum(numbers)

    again = pickle.loads(pickle.dumps(WorkerPickle.of(worker))).load()
    assert again is not worker
    assert (3, 4) == (again.concurrency, again.handlers["work"].options.max_attempts)
    assert [1, 2] == again.handlers["work"].signature.codec.parse(b"[1, 2]")


def test_a_worker_in_a_main_program_is_sent_by_value(tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import sys
            from pydantic import BaseModel
            from jqueue.spark.batch.worker_pickle import WorkerPickle
            from jqueue.worker import Worker

            worker = Worker()

            class Letter(BaseModel):
                to: str

            @worker.handler("work")
            async def work(letter: Letter) -> str:
                return letter.to

            import pickle
            sys.stdout.buffer.write(pickle.dumps(WorkerPickle.of(worker)))
            """
        )
    )
    sent = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, check=True).stdout
    worker = pickle.loads(sent).load()
    assert "Ada" == worker.handlers["work"].signature.codec.parse(b'{"to": "Ada"}').to


def bad_handler(worker: Worker) -> None:
    lock = threading.Lock()

    @worker.handler("bad")
    async def bad() -> None:
        lock.acquire()


def bad_lifespan(worker):
    lock = threading.Lock()

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        yield lock


def bad_middleware(worker):
    lock = threading.Lock()

    @worker.middleware
    async def middleware(ctx, call_next):
        with lock:
            return await call_next()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [(bad_handler, "the handler 'bad'"), (bad_lifespan, "the lifespan"), (bad_middleware, "a middleware")],
)
def test_an_unpicklable_part_of_a_worker_is_named_with_the_reason(spoil, named):
    worker = Worker()

    @worker.handler("good")
    async def good() -> None: ...

    spoil(worker)
    with pytest.raises(InvalidJobError) as caught:
        WorkerPickle.of(worker)
    told = str(caught.value)
    assert told.startswith(
        f"the worker cannot be sent to executors: {named} holds an object that cannot be pickled (TypeError: "
    )
    assert "lock" in told
    assert "\n" not in told


def test_a_module_without_the_worker_on_executors_gives_an_error(module):
    sent = WorkerPickle.of(module.worker)
    del module.worker
    with pytest.raises(JQueueError, match="the module batch_app has no worker 'worker' on executors"):
        sent.load()


def test_a_worker_in_an_unimportable_module_is_sent_by_value(module, monkeypatch):
    made_up: Any = type(sys)("made_up")
    monkeypatch.setitem(sys.modules, "made_up", made_up)
    worker = Worker()

    @worker.handler("work")
    async def work() -> None: ...

    made_up.worker = worker
    assert WorkerPickle.of(worker).module is None
