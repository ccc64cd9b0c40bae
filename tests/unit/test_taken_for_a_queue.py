"""The error for a storage or text in the place of a queue says how to make a queue."""

import copy
import pickle
from typing import Any

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, InvalidJobError, JobQueue, QueueSet, connect
from jqueue.ports.storage import SupportsReadIfChanged, SupportsRelease, SupportsScratch, SupportsStoreTime
from jqueue.worker import Worker

URLS = ("queue.json", "memory://", "s3://bucket/key", "gs://bucket/key", "az://account@container/key")
REMEDY = r"`connect\(url, BrokerQueue\)`"
OPTIONAL = (SupportsReadIfChanged, SupportsRelease, SupportsScratch, SupportsStoreTime)


@pytest.fixture(params=URLS)
def storage(request, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return connect(request.param)


def test_a_verb_of_a_queue_on_a_storage_names_the_remedy(storage):
    for verb in ("enqueue", "dequeue", "stats", "redrive", "peek"):
        with pytest.raises(AttributeError, match=rf"^{type(storage).__name__} is a storage, not a queue.*{REMEDY}"):
            getattr(storage, verb)


async def test_entering_a_storage_as_a_queue_names_the_remedy(storage):
    with pytest.raises(AttributeError, match=REMEDY):
        async with storage as queue:  # some storages can be entered, but are no queues
            await queue.enqueue("mail")


def test_attributes_that_a_storage_lacks_stay_absent(storage):
    assert not hasattr(storage, "enqueue")
    assert not isinstance(storage, JobQueue)
    assert [kind for kind in OPTIONAL if issubclass(type(storage), kind)] == [
        kind for kind in OPTIONAL if isinstance(storage, kind)
    ]
    assert [] == [name for name in dir(type(storage)) if not hasattr(type(storage), name) and name[:6] != "__abst"]
    with pytest.raises(AttributeError, match="has no attribute 'buket'"):
        storage.buket  # noqa: B018


def test_storages_can_still_be_copied_and_pickled(storage):
    assert type(storage) is type(copy.copy(storage))
    if not isinstance(storage, InMemoryStorage):  # the memory of a process stays there
        assert type(storage) is type(pickle.loads(pickle.dumps(storage)))


async def test_a_worker_and_a_handler_that_get_no_queue_name_the_remedy(storage):
    worker = Worker()

    @worker.handler("mail")
    async def mail(message: str) -> None: ...

    with pytest.raises(TypeError, match=rf"got {type(storage).__name__}: {REMEDY}"):
        await worker.run(storage)
    enqueue: Any = mail.enqueue
    for given in (storage, "a message"):
        with pytest.raises(TypeError, match=rf"takes the queue first, got {type(given).__name__}: {REMEDY}"):
            await enqueue(given)


def test_a_queue_or_a_set_made_of_something_else_names_the_remedy():
    path: Any = "queue.json"
    storage: Any = InMemoryStorage()
    with pytest.raises(InvalidJobError, match=REMEDY):
        BrokerQueue(path)
    with pytest.raises(InvalidJobError, match=r"got InMemoryStorage.*`connect_queue\(url\)`"):
        QueueSet(storage)


@pytest.mark.parametrize(
    ("payload", "hint"),
    [
        ({"a": 1}, r"got dict: write json.dumps\(value\).encode\(\), or .*`handler.enqueue\(queue, value\)`"),
        ("text", r"got str: write text.encode\(\), or .*handler.enqueue"),
        (None, "leave the payload out"),
    ],
)
async def test_the_error_for_a_payload_that_is_not_bytes_says_how_to_encode_it(payload, hint):
    with pytest.raises(InvalidJobError, match=hint):
        await DirectQueue(InMemoryStorage()).enqueue("mail", payload)
