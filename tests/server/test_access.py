"""Who may do what: every request and operation of the table with every role, and what no answer shows to a role."""

import asyncio
import json
from base64 import b64encode
from datetime import timedelta

import pytest

from jqueue.domain.operations.codec import TRAVELLING, AllOrNothing
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import HandBackCalls
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.operator import Reschedule
from jqueue.server.access import ACCESS, HIDDEN, OF_THE_PAGE, Role, TokenFile
from jqueue.server.api import ENDPOINTS
from jqueue.server.serving import broker as broker_of
from tests.property.test_lying_clients import fit
from tests.server.asgi import PROOF, request
from tests.server.served import TOKENS, name_of, token_file

REQUESTS = [what for what in ACCESS if isinstance(what, str)]
SECRETS = {"payload": b"payload-secret", "headers": b"header-secret", "result": b"result-secret"}


async def send(broker, what, role, body=None, job_id="one"):
    """The answer to a request of the table. The page knows its users by a cookie."""
    method, path = what.split()
    path = path.format(id=job_id, attempt=1, name="pause")
    if not path.startswith("/api"):
        return await broker.ask(method, path, body, role)
    session = await broker.post("/api/session", {"token": TOKENS[role]}, None, **PROOF)
    cookie = session.headers.get("Set-Cookie", "").partition(";")[0]
    query = f"?id={job_id}" if method == "GET" else ""
    return await broker.ask(method, path + query, body, None, **PROOF, Cookie=cookie)


def message_of(kind):
    """A message of a client with an operation, the only one in it."""
    given = {Reschedule: {"delay": 1}, AllOrNothing: {"operations": [fit(Enqueue)]}, HandBackCalls: {"calls": ["c1/1"]}}
    operation = fit(kind) | given.get(kind, {})
    if kind is Dequeue:
        return {"do": "claim", "client": "c1", "operation": {"call": "c1/1"} | operation, "seconds": 9}
    batch = {"sequence": 1, "token": "t", "operations": [operation], "seconds": [9]}
    return {"do": "batch", "client": "c1"} | batch


@pytest.mark.parametrize("role", Role)
async def test_each_request_and_each_operation_serves_exactly_its_roles(broker, queue, role):
    await queue.enqueue("mail", job_id="one")
    for what, roles in ACCESS.items():
        if isinstance(what, str):
            answer = await send(broker, what, role, None if what.startswith("GET") else {"entrypoint": "mail"})
        else:
            answer = await broker.call(json.dumps(message_of(what)).encode(), role, what.__name__)
        is_stranger = "/api/" in str(what) and role not in OF_THE_PAGE  # who cannot sign in
        assert (answer.status == (401 if is_stranger else 403)) is (role not in roles), (what, answer)
        assert answer.status not in (405, 500), (what, answer)
        assert b'"NotFound"' not in answer.body, what


def test_every_operation_that_travels_and_every_endpoint_is_in_the_table():
    assert set(TRAVELLING) == {what for what in ACCESS if not isinstance(what, str)}
    assert {endpoint.request for endpoint in ENDPOINTS} <= set(REQUESTS)
    assert all(Role.OPERATOR in ACCESS[what] for what in REQUESTS)
    assert (set(Role), frozenset()) == (set(HIDDEN), HIDDEN[Role.OPERATOR])


@pytest.mark.parametrize("role", Role)
async def test_no_answer_shows_what_is_hidden_from_its_role(broker, queue, role):
    await queue.configure(history=timedelta(days=1), history_payloads=True)
    headers = {"a": SECRETS["headers"].decode()}
    for job_id in ("done", "one"):
        await queue.enqueue(
            "mail", SECRETS["payload"], job_id=job_id, headers=headers, keep_result=60, unique_key=job_id
        )
    [job] = await queue.dequeue("mail")
    await queue.ack(job, result=SECRETS["result"].decode())
    await queue.schedule("nightly", "0 3 * * *", "mail", SECRETS["payload"], headers=headers)
    shown = set()
    for what in REQUESTS:
        if what in ("POST /v1/claims", "POST /v1/calls", "POST /v1/claims/{id}/{attempt}/ack"):
            continue  # they change jobs, and hand out claims to those who see everything
        taken = {"entrypoint": "mail", "id": "one", "unique_key": "one", "text": "x"}
        body = taken if what.startswith("POST") else None
        answers = [await send(broker, what, role, body, job_id) for job_id in ("one", "done")]
        for answer in answers if role in ACCESS[what] else ():
            for field, secret in SECRETS.items():
                if secret in answer.body or b64encode(secret)[:-4] in answer.body:
                    shown.add(field)
                    assert field not in HIDDEN[role], what
    assert shown == SECRETS.keys() - HIDDEN[role]


CLAIMS = {
    "/v1/claims?wait=30": {"entrypoints": ["mail"]},
    "/v1/calls": {
        **{"do": "claim", "client": name_of(Role.WORKER), "seconds": 9, "wait": 30},
        "operation": {"type": "Dequeue", "call": f"{name_of(Role.WORKER)}/1"},
    },
}


class Gone(asyncio.Event):
    """Tells when somebody waits for it."""

    def __init__(self):
        super().__init__()
        self.awaited = asyncio.Event()

    async def wait(self):
        self.awaited.set()
        return await super().wait()


@pytest.mark.parametrize("target", CLAIMS)
async def test_a_claim_that_waits_gets_no_job_once_its_token_is_revoked(queue, tmp_path, target):
    tokens, gone = token_file(tmp_path), Gone()
    app = broker_of(queue, TokenFile(tokens))
    headers = {"authorization": f"Bearer {TOKENS[Role.WORKER]}", "content-type": "application/json"}
    asked = request(app, "POST", target, headers=headers, body=CLAIMS[target], gone=gone)
    waiting = asyncio.create_task(asked)
    await gone.awaited.wait()
    lines = tokens.read_text().splitlines(keepends=True)
    tokens.write_text("".join(line for line in lines if "worker" not in line))
    await queue.enqueue("mail", SECRETS["payload"], job_id="one")
    answer = await waiting
    assert answer.status == 401 or b'"leaving":true' in answer.body
    assert b64encode(SECRETS["payload"]) not in answer.body
    [job] = await queue.dequeue("mail", wait=5)
    assert (2, 1) == (job.attempt, job.failures)  # it was handed back without a charge
