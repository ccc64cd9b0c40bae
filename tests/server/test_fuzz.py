"""Bad bytes from the network: never a 500, never a payload or a token in the log, and the next client is served."""

import asyncio
import json
import logging
import socket

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, LocalFileSystemStorage
from jqueue.domain.operations.codec import TRAVELLING, ClientBatch
from jqueue.server.access import Role, TokenFile
from jqueue.server.openapi import PROBLEMS
from jqueue.server.serving import broker
from tests.property.drawing import OPERATIONS, STATE
from tests.server.asgi import request
from tests.server.served import TOKENS, serving, token_file

SECRET = "payload-that-no-log-shows"
MOMENT = 0.3
"""Seconds after which a call that waits is given up, as by a client that goes away."""

FUZZED = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(SECRET)
some_json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
operations = st.sampled_from([each for each in TRAVELLING if each is not ClientBatch]).flatmap(OPERATIONS.of)


def valid_text(value):
    """A value as JSON, without the surrogates and the numbers that it cannot have."""
    return json.dumps(value, ensure_ascii=True).encode()


@st.composite
def messages(draw):
    """A message with any operations, in which any values are replaced by others."""
    some = [msgspec.to_builtins(each, enc_hook=str) for each in draw(st.lists(operations, max_size=3))]
    common = {"client": "c", "queue": draw(st.sampled_from(["", "", "", "other"]))}
    message = draw(
        st.sampled_from(
            [
                {"do": "batch", "sequence": 1, "token": "t", "operations": some, "seconds": [1.0] * len(some)} | common,
                {"do": "claim", "operation": (some or [{"type": "Dequeue", "call": "c/1"}])[0], "seconds": 1} | common,
                {"do": "stop", "call": "c/1"} | common,
            ]
        )
    )
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        place = message
        while isinstance(place, dict | list) and place:
            names = [*place] if isinstance(place, dict) else range(len(place))
            name = draw(st.sampled_from([name for name in names if name != "do"]))
            if not isinstance(place[name], dict | list) or not place[name]:
                place[name] = draw(some_json)
                break
            place = place[name]
    return valid_text(message)


@st.composite
def spoiled(draw, texts):
    """Bytes in which some are replaced, added or left out."""
    data = bytearray(draw(texts))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data)))
        data[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


roles = st.sampled_from([*Role, *[Role.OPERATOR] * 6])


async def answer_of(app, body, role):
    headers = {"authorization": f"Bearer {TOKENS[role]}", "content-type": "application/json"}
    try:
        async with asyncio.timeout(MOMENT):
            return await request(app, "POST", "/v1/calls", headers=headers, body=body)
    except TimeoutError:
        return None


def check(answer, log):
    if answer is not None:
        assert answer.status in (200, 204, 405, *PROBLEMS), answer
    assert SECRET not in log
    assert not any(token in log for token in TOKENS.values())


@FUZZED
@given(st.lists(st.tuples(messages() | messages() | spoiled(messages()), roles), min_size=1, max_size=4))
async def test_no_message_breaks_the_broker(caplog, tmp_path, several):
    storage = InMemoryStorage()
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        async with BrokerQueue(storage) as queue:
            for job in STATE.jobs:
                await queue.enqueue("mail", SECRET.encode(), job_id=job.id)
            await queue.dequeue(batch_size=2)
            app = broker(queue, TokenFile(tokens_of(tmp_path)))
            for message, role in several:
                check(await answer_of(app, message, role), caplog.text)
            await DirectQueue(storage).read_state()
    assert not errors_in(caplog)


def errors_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def tokens_of(folder):
    path = folder / "tokens"
    return path if path.exists() else token_file(folder)


@FUZZED
@given(st.lists(st.binary(max_size=200) | spoiled(st.just(b"POST /v1/calls HTTP/1.1\r\nHost: localhost\r\n\r\n"))))
async def test_bytes_that_are_no_http_leave_the_server_for_others(caplog, tmp_path, several):
    async with BrokerQueue(InMemoryStorage()) as queue, serving(queue) as served:
        for data in several:
            with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as client:
                client.sendall(data)
        assert 200 == (await served.post("/v1/jobs", {"entrypoint": "mail"})).status
    assert not errors_in(caplog)


@FUZZED
@given(
    st.lists(st.binary(max_size=100) | spoiled(messages().map(lambda data: len(data).to_bytes(4) + bytes(8) + data)))
)
async def test_bytes_that_are_no_frames_leave_the_socket_for_others(caplog, tmp_path_factory, several):
    path = tmp_path_factory.mktemp("queue") / "queue.json"
    async with BrokerQueue(LocalFileSystemStorage(path)) as queue:
        queue.offer()
        while not (sockets := [each for each in path.parent.iterdir() if each.is_socket()]):
            await asyncio.sleep(0.01)
        for data in several:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(sockets[0]))
                client.sendall(data)
        async with BrokerQueue(LocalFileSystemStorage(path)) as other:
            await other.enqueue("mail", SECRET.encode())
    check(None, caplog.text)
    assert not errors_in(caplog)
