"""`POST /v1/calls`: the calls of jqueue's own clients over HTTP, and what each role may send."""

import asyncio
import json
import os
import signal
import tracemalloc
from base64 import b64encode
from hashlib import sha256

import pytest

from jqueue import BrokerQueue, LocalFileSystemStorage
from jqueue.core.messages import MOST_VALUES, Batch, Claim, Stop, check_values, decode_answer, encode
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import job_of
from jqueue.domain.operations.codec import AllOrNothing, Guarded, decode_result, error_of
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import HandBackCalls
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.lookups import Find, Peek
from jqueue.domain.operations.operator import Cancel
from jqueue.domain.operations.rules import SetSchedule
from jqueue.ports.sharing import client_name
from jqueue.server.access import Role, TokenFile
from tests.server.served import TOKENS, name_of, serving
from tests.two_methods import TwoMethods


def batch(*operations, sequence=1, **fields):
    values = {
        "client": "c1",
        "sequence": sequence,
        "token": f"batch {sequence}",
        "operations": operations,
        "seconds": (5.0,) * len(operations),
    }
    return encode(Batch(**values | fields))


def add(job_id, payload=b"x", **options):
    return Enqueue("mail", payload, job_id=job_id, **options)


async def results(served, message, *operations, role=Role.WORKER):
    answer = decode_answer((await served.call(message, role)).body)
    if answer.error is not None:
        raise error_of(answer.error)
    return [decode_result(operation, each) for operation, each in zip(operations, answer.results, strict=True)]


async def test_a_batch_is_committed_and_answered_and_a_second_time_only_answered(broker, other):
    operations = add("one"), Cancel("missing")
    first = await results(broker, batch(*operations), *operations, role=Role.OPERATOR)
    again = await results(broker, batch(*operations, again=True), *operations, role=Role.OPERATOR)
    assert ["one", "one"] == [each[0].id for each in (first, again)]
    assert [type(each[1]).__name__ for each in (first, again)] == ["JobNotFoundError"] * 2
    assert 1 == (await other.stats()).ready


async def test_a_look_at_a_job_travels_without_its_payload_unless_it_asks_for_it(broker):
    await results(broker, batch(add("one", b"payload")), add("one"))
    whole = Find("one", with_payload=True)
    operations = Find("one"), Peek(Dequeue(claim_timeout=5.0)), Guarded(AllOrNothing((Find("one"), whole)))
    [found], [peeked], [[again], [loaded]] = await results(broker, batch(*operations, sequence=2), *operations)
    assert ["one", "one", "one"] == [found.id, peeked.id, again.id]
    assert all("<not loaded>" in repr(job_of(job)) for job in (found, peeked, again))
    assert ("one", b"payload") == (loaded.id, loaded.payload)


async def test_a_dequeue_waits_while_spaces_come_and_is_answered_by_the_commit_of_its_job(broker):
    operation = Dequeue(call="c1/1", claim_timeout=60.0)
    message = encode(Claim(client="c1", operation=operation, seconds=5.0, wait=30.0))
    message = message.replace(b"c1", name_of(Role.WORKER).encode())
    headers = {"Authorization": f"Bearer {TOKENS[Role.WORKER]}", "Content-Type": "application/json"}
    async with broker.session.post(f"{broker.url}/v1/calls", data=message, headers=headers) as response:
        assert b" " == await response.content.readexactly(1)
        await results(broker, batch(add("one")), add("one"))
        answer = decode_answer(await response.read())
    [jobs] = [decode_result(operation, each) for each in answer.results]
    assert [("one", 1)] == [(job.id, job.attempt) for job in jobs]


async def test_a_stop_ends_the_wait_of_a_dequeue(broker):
    message = encode(Claim(client="c1", operation=Dequeue(call="c1/1", claim_timeout=60.0), seconds=5.0, wait=30.0))
    waiting = asyncio.create_task(broker.call(message, Role.WORKER))
    while not waiting.done():
        await broker.call(encode(Stop(client="c1", call="c1/1")), Role.WORKER)
    assert b"[[[]]]" in (await waiting).body


async def test_sigterm_answers_what_waits_and_refuses_what_comes(path, tmp_path):
    message = encode(Claim(client="c1", operation=Dequeue(call="c1/1", claim_timeout=60.0), seconds=5.0, wait=30.0))
    async with BrokerQueue(LocalFileSystemStorage(path)) as queue, serving(queue) as served:
        headers = {"Content-Type": "application/json"}
        async with served.session.post(f"{served.url}/v1/calls", data=message, headers=headers) as response:
            await response.content.readexactly(1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert decode_answer(await response.read()).leaving
        await served.running


@pytest.mark.parametrize(
    ("role", "operation"),
    [
        (Role.PRODUCER, AllOrNothing((add("one"), Cancel("two")))),
        (Role.PRODUCER, Guarded(add("one"))),
        (Role.PRODUCER, AllOrNothing((add("one", unique_key="key", on_conflict="replace"),))),
        (Role.WORKER, Guarded(Cancel("one"))),
        (Role.WORKER, SetSchedule("nightly", "0 3 * * *", "mail", by="operator")),
    ],
    ids=str,
)
async def test_a_role_may_not_send_what_it_is_not_for(broker, path, role, operation):
    answer = await broker.call(batch(operation), role)
    assert (403, "NotAllowed") == answer.problem
    assert f"a {role} may not do " in answer.values["detail"]
    assert not path.exists()


async def test_a_producer_sees_nothing_of_the_job_that_has_its_id_or_its_key(broker, other):
    secrets = {"headers": {"a": "secret"}, "keep_result": 60}
    await other.enqueue("mail", b"secret", job_id="one", unique_key="key", **secrets)
    await other.enqueue("mail", b"secret", job_id="done", **secrets)
    [job] = [job for job in await other.dequeue(batch_size=2) if job.id == "done"]
    await other.ack(job, result="secret")
    drawn = [Enqueue("mail", b"mine", new_id=new_id, headers={"b": "mine"}) for new_id in ("one", "new")]
    taken = [add("one", b"mine"), add("done", b"secret"), add("three", b"mine", unique_key="key")]
    operations = *drawn, *taken, AllOrNothing((*drawn, *taken))
    answer = await broker.call(batch(*operations), Role.PRODUCER)
    assert b"secret" not in answer.body
    assert b64encode(b"secret") not in answer.body
    jobs = await results(broker, batch(*operations, sequence=2), *operations, role=Role.PRODUCER)
    for job, payload in zip((*jobs[:5], *jobs[5]), [b"mine", b"mine", b"", b"", b""] * 2, strict=True):
        assert payload == job.payload
    assert "<not loaded>" in repr(job_of(jobs[2]))
    job = {"entrypoint": "mail", "unique_key": "key", "on_conflict": "replace"}
    assert (403, "NotAllowed") == (await broker.post("/v1/jobs", [job], Role.PRODUCER)).problem


async def test_a_batch_with_more_operations_than_a_client_sends_is_refused(broker, path):
    operations = [Enqueue("mail", new_id=f"{number}") for number in range(10_001)]
    for sent in (operations, [Guarded(AllOrNothing(tuple(operations[1:]))), operations[0]]):
        answer = await broker.call(batch(*sent), Role.WORKER)
        assert (422, "InvalidJobError") == answer.problem
        assert "10001 operations" in answer.values["detail"]
    assert not path.exists()


@pytest.mark.parametrize(
    ("path", "begin", "repeated"),
    [
        ("/v1/jobs", b"[", b'{"entrypoint":"a"}'),
        pytest.param(
            *("/v1/calls", b'{"do":"batch","client":"c","sequence":1,"token":"","operations":[],"seconds":[', b"1"),
            marks=pytest.mark.wide,
        ),
        pytest.param("/v1/claims/one/1/ack", b'{"result":[', b"[]", marks=pytest.mark.wide),
    ],
)
async def test_a_body_with_many_values_is_refused_before_they_take_memory(broker, path, begin, repeated):
    body = begin + repeated + (b"," + repeated) * 1_100_000
    tracemalloc.start()
    try:
        answer = await broker.post(path, body, Role.WORKER)
        assert (422, "InvalidJobError") == answer.problem
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body) + (16 << 20)
    finally:
        tracemalloc.stop()


def test_signs_within_texts_do_not_count_as_values():
    text = json.dumps({"text": ',[{"\\' * MOST_VALUES}).encode()
    check_values(text)
    check_values(b"[%b%b]" % (text, b",0" * (MOST_VALUES - 3)))
    for wrong in (b"[%b%b]" % (text, b",0" * MOST_VALUES), b'["' + b",0" * MOST_VALUES + b'"' + b',""' * MOST_VALUES):
        with pytest.raises(InvalidJobError):
            check_values(wrong)


async def test_a_producer_enqueues_within_the_limits_and_claims_nothing(broker):
    [job] = await results(broker, batch(add("one")), add("one"), role=Role.PRODUCER)
    assert "one" == job.id
    claim = encode(Claim(client="c1", operation=Dequeue(call="c1/1"), seconds=5.0))
    for message in (claim, encode(Stop(client="c1", call="c1/1"))):
        assert (403, "NotAllowed") == (await broker.call(message, Role.PRODUCER)).problem
    for wrong in (add("one", b"x" * (2 << 20)), add("i" * 600), Enqueue("mail")):
        assert (422, "InvalidJobError") == (await broker.call(batch(wrong), Role.PRODUCER)).problem
    stored = json.loads(batch(add("two")))
    stored["operations"][0]["payload_object"] = [".payloads/of-another-job", 1, "0" * 64]
    assert (403, "NotAllowed") == (await broker.call(json.dumps(stored).encode(), Role.PRODUCER)).problem


async def test_nobody_speaks_for_another_client(broker, other, tmp_path):
    """A client with another token cannot overtake one, end its wait, or hand back its claims, whatever it names."""
    TokenFile.add(tmp_path / "tokens", Role.OPERATOR, "liar", "token-of-a-liar")
    assert [job.id for job in await results(broker, batch(add("one")), add("one"))] == ["one"]
    operation = Dequeue(call="c1/1", claim_timeout=60.0)
    [[claimed]] = await results(broker, encode(Claim(client="c1", operation=operation, seconds=5.0)), operation)
    wait = Claim(client="c1", operation=Dequeue(call="c1/2", claim_timeout=60.0), seconds=5.0, wait=30.0)
    waiting = asyncio.create_task(broker.call(encode(wait)))
    back = HandBackCalls(("c1/1", "c1/2"))
    lies = [
        batch(add("two"), sequence=1000),
        batch(back),
        batch(AllOrNothing((back,))),
        batch(Guarded(back)),
        encode(Claim(client="c1", operation=operation, seconds=5.0)),
        encode(Stop(client="c1", call="c1/2")),
    ]
    signed = client_name("liar", sha256(b"token-of-a-liar").hexdigest())
    victim = name_of(Role.WORKER)
    for lie in lies:
        for client in (victim, "c1", signed):
            named = lie.replace(b'"c1"', f'"{client}"'.encode()).replace(b"c1/", f"{victim}/".encode())
            if client != signed or b"/" in named:
                answer = await broker.post("/v1/calls", named, None, Authorization="Bearer token-of-a-liar")
                assert (403, "NotAllowed") == answer.problem, named
    assert ["two"] == [job.id for job in await results(broker, batch(add("two"), sequence=2), add("two"))]
    [jobs] = [decode_result(operation, each) for each in decode_answer((await waiting).body).results]
    assert 1 == len(jobs)
    await other.ack(claimed.claim)


@pytest.mark.parametrize("role", [Role.PRODUCER, Role.OPERATOR])
async def test_a_batch_without_operations_is_refused_and_commits_nothing(broker, path, role):
    with pytest.raises(InvalidJobError, match="a batch needs operations"):
        await results(broker, batch(again=True), role=role)
    assert not path.exists()


async def test_one_service_answers_for_a_queue_on_any_storage():
    async with BrokerQueue(TwoMethods()) as queue, serving(queue) as served:
        assert queue.service() is queue.service()
        [job] = await results(served, batch(add("one")), add("one"), role=Role.OPERATOR)
        assert "one" == job.id


async def test_the_history_names_the_token_of_a_client_whatever_the_client_says(broker, other):
    await other.configure(history=60)
    for name in ("one", "two"):
        await other.enqueue("mail", b"", job_id=name)
    lies = Cancel("one", asked_by="root@elsewhere"), Guarded(Cancel("two", asked_by="root@elsewhere"))
    await results(broker, batch(*lies), *lies, role=Role.OPERATOR)
    asked = {event.job_id: event.asked_by async for event in other.history() if event.verb == "cancel"}
    assert {"one": "operator", "two": "operator"} == asked
