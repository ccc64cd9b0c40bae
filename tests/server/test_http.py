"""HTTP for programs in any language: every endpoint, every error, every role, and the bounds."""

import asyncio
import base64
import json
import socket
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec
import pytest

from jqueue import BrokerQueue, Limits, LocalFileSystemStorage
from jqueue.core.json_views import ShownJob, ShownStats
from jqueue.domain import errors
from jqueue.ports.sharing import SMALL_MESSAGE
from jqueue.server import serving as serving_module
from jqueue.server.access import Caller, Role, TokenFile
from jqueue.server.api import LARGEST_BODY, Events, FoundJob
from jqueue.server.intake import PATIENCE, SLOWEST, Intake
from jqueue.server.openapi import PROBLEMS, openapi
from jqueue.server.problems import STATUSES, Problem, problem_of
from tests.server.served import TOKENS, serving, token_file
from tests.virtual_world import in_virtual_time, now

FILES = Path("/proc/self/fd")
OPENAPI = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


@pytest.fixture
async def served(path, tmp_path):
    queue = BrokerQueue(LocalFileSystemStorage(path), limits=Limits(payload_bytes=1 << 20))
    async with queue, serving(queue, token_file(tmp_path), names=("queue.example",)) as served:
        yield served


def job_in(values, kind=FoundJob):
    """A job of an answer, as strictly as the description says."""
    return msgspec.convert(values, kind)


def id_of(answer):
    return job_in(answer.values, ShownJob).id


async def claimed(served, **body):
    answer = await served.post("/v1/claims?wait=5", body, Role.WORKER)
    return [job_in(each) for each in answer.values["jobs"]]


def test_the_committed_description_is_the_one_that_is_served():
    assert openapi() == OPENAPI.read_bytes(), "python -m jqueue.server.openapi > docs/reference/openapi.json"


@pytest.mark.parametrize(
    ("given", "payload", "text"),
    [
        ({"text": "grüße"}, "grüße".encode(), "grüße"),
        ({"payload": base64.b64encode(b"\xff\x00").decode()}, b"\xff\x00", None),
        ({"json": {"b": 1.50, "a": [None]}}, b'{"b": 1.5, "a": [null]}', '{"b": 1.5, "a": [null]}'),
        ({"json": None}, b"null", "null"),
        ({"text": "x" * 70_000}, b"x" * 70_000, "x" * 70_000),
        ({}, b"", ""),
    ],
    ids=["text", "bytes", "JSON", "null", "large", "none"],
)
async def test_a_job_is_enqueued_claimed_with_its_payload_and_acked(served, given, payload, text):
    added = await served.post("/v1/jobs", {"entrypoint": "mail", "headers": {"a": "b"}} | given, Role.PRODUCER)
    assert (200, "ready") == (added.status, added.values["status"])
    [job] = await claimed(served, entrypoints=["mail"], holder="me", claim_timeout=60)
    assert (id_of(added), 1, "me", 60.0) == (job.id, job.attempt, job.holder, job.claim_timeout)
    assert (payload, text, {"a": "b"}) == (job.payload, job.text, job.headers)
    assert 204 == (await served.post(f"/v1/claims/{job.id}/1/heartbeat", None, Role.WORKER)).status
    assert 204 == (await served.post(f"/v1/claims/{job.id}/1/ack", None, Role.WORKER)).status
    assert (404, "JobNotFoundError") == (await served.get(f"/v1/jobs/{job.id}")).problem


async def test_an_id_makes_an_enqueue_safe_to_repeat_and_a_list_is_added_as_a_whole(served, other):
    for _ in range(2):
        assert "a/b ?" == id_of(await served.post("/v1/jobs", {"entrypoint": "mail", "id": "a/b ?"}))
    jobs = [{"entrypoint": "mail", "priority": 2}, {"entrypoint": "mail", "id": "a/b ?", "on_conflict": "raise"}]
    answer = await served.post("/v1/jobs", jobs)
    assert (409, "DuplicateJobError") == answer.problem
    assert "a/b ?" == answer.values["job_id"]
    answer = await served.post("/v1/jobs", [{"entrypoint": "mail", "delay": 60}, {"entrypoint": "mail"}])
    assert ["scheduled", "ready"] == [job_in(each, ShownJob).status for each in answer.values["jobs"]]
    assert (2, 1) == ((await other.stats()).ready, (await other.stats()).scheduled)
    assert "a/b ?" == job_in((await served.get("/v1/jobs/a%2Fb%20%3F")).values).id


async def test_a_claim_waits_for_a_job_and_a_client_that_leaves_claims_none(served, other):
    waiting = asyncio.create_task(served.post("/v1/claims?wait=30", {}, Role.WORKER))
    gone = asyncio.create_task(served.post("/v1/claims?wait=30", {}, Role.WORKER))
    await asyncio.sleep(0.3)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    for _ in range(2):
        await served.post("/v1/jobs", {"entrypoint": "mail"})
    assert 1 == len((await waiting).values["jobs"])
    [job] = await other.dequeue(wait=5)
    assert 1 == job.tries
    assert [] == (await served.post("/v1/claims", None, Role.WORKER)).values["jobs"]


async def test_the_result_of_an_ack_and_the_error_of_a_nack_are_kept(served):
    added = id_of(await served.post("/v1/jobs", {"entrypoint": "mail", "keep_result": 60, "text": "x"}))
    await claimed(served)
    nacked = await served.post(f"/v1/claims/{added}/1/nack", {"error": "no route", "delay": 0}, Role.WORKER)
    assert 204 == nacked.status
    found = job_in((await served.get(f"/v1/jobs/{added}", Role.VIEWER)).values)
    assert ("ready", "no route") == (found.status, found.error)
    await claimed(served)
    assert 204 == (await served.post(f"/v1/claims/{added}/2/ack", {"result": [1, "a"]}, Role.WORKER)).status
    found = job_in((await served.get(f"/v1/jobs/{added}", Role.PRODUCER)).values)
    assert ("completed", [1, "a"]) == (found.status, found.result)


async def test_figures_and_history_are_shown(served, other):
    await other.configure(history=timedelta(days=1))
    for number in range(3):
        await served.post("/v1/jobs", {"entrypoint": "mail", "id": f"{number}"})
    stats = msgspec.convert((await served.get("/v1/stats", Role.VIEWER)).values, ShownStats)
    assert (3, 3) == (stats.ready, stats.entrypoints["mail"].ready)
    answer = msgspec.convert((await served.get("/v1/history?limit=2&entrypoint=mail", Role.VIEWER)).values, Events)
    assert (["2", "1"], True, None) == ([event.id for event in answer.events], answer.more, answer.missing)
    at = quote(answer.events[-1].at or "")
    answer = msgspec.convert((await served.get(f"/v1/history?id=2&since={at}")).values, Events)
    assert [("2", "enqueue")] == [(event.id, event.event) for event in answer.events]


ERRORS = [
    ("GET", "/v1/jobs/missing", None, 404, "QueueMissingError"),
    ("GET", "/v1/stats", None, 404, "QueueMissingError"),
    ("POST", "/v1/claims/missing/1/ack", {}, 409, "ClaimLostError"),
    ("POST", "/v1/claims/missing/x/ack", {}, 422, "InvalidJobError"),
    ("POST", "/v1/claims/missing/1/heartbeat", {}, 409, "ClaimLostError"),
    ("POST", "/v1/claims/missing/1/nack", {"error": 1}, 422, "InvalidJobError"),
    ("POST", "/v1/claims?wait=61", {}, 422, "InvalidJobError"),
    ("POST", "/v1/claims?wait=nan", {}, 422, "InvalidJobError"),
    ("POST", "/v1/claims?weight=1", {}, 422, "InvalidJobError"),
    ("POST", "/v1/claims", {"batch_size": 100_000}, 422, "InvalidJobError"),
    ("POST", "/v1/jobs", {}, 422, "InvalidJobError"),
    ("POST", "/v1/jobs", {"entrypoint": ""}, 422, "InvalidJobError"),
    ("POST", "/v1/jobs", {"entrypoint": "mail", "text": "x", "json": 1}, 422, "InvalidJobError"),
    ("POST", "/v1/jobs", {"entrypoint": "mail", "text": None}, 422, "InvalidJobError"),
    ("POST", "/v1/jobs", {"entrypoint": "mail", "prio": 1}, 422, "InvalidJobError"),
    ("POST", "/v1/jobs", {"entrypoint": "mail", "priority": 2**40}, 422, "InvalidJobError"),
    ("POST", "/v1/jobs", {"entrypoint": "mail", "delay": 1, "run_at": "2030-01-01T00:00:00Z"}, 422, "InvalidJobError"),
    ("POST", "/v1/jobs", {"entrypoint": "mail", "text": "x" * (2 << 20)}, 422, "InvalidJobError"),
    ("POST", "/v1/jobs", [{"entrypoint": "mail"}] * 10_001, 422, "InvalidJobError"),
    ("POST", "/v1/jobs", b"{", 400, "NotJSON"),
    ("POST", "/v1/jobs", b'{"json":' + b"[" * 100_000, 400, "NotJSON"),
    ("POST", "/v1/jobs", b'{"id":"\xff"}', 400, "NotJSON"),
    ("POST", "/v1/calls", b"{", 422, "InvalidJobError"),
    ("POST", "/v1/calls", b'{"do":"\xff"}', 422, "InvalidJobError"),
    ("GET", "/v1/history?since=yesterday", None, 422, "InvalidJobError"),
    ("GET", "/v1/nothing", None, 404, "NotFound"),
    ("PUT", "/v1/jobs", {}, 405, "MethodNotAllowed"),
]


async def test_what_is_wrong_is_told_in_a_problem_document(served):
    for method, path, body, status, title in ERRORS:
        assert (status, title) == (await served.ask(method, path, body)).problem, (path, str(body)[:80])


def test_every_error_of_the_queue_has_a_status():
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.JQueueError)}
    for kind in kinds:
        error = kind.__new__(kind, "text")
        problem = problem_of(error)
        status = next(STATUSES[each] for each in kind.__mro__ if each in STATUSES)
        assert (status, kind.__name__, f"urn:jqueue:{kind.__name__}") == (
            problem.status, problem.document["title"], problem.document["type"],
        )  # fmt: skip
        assert status in PROBLEMS or kind is errors.JQueueError
        assert ("Retry-After" in problem.headers) is (status in (429, 503))


async def test_a_queue_that_is_full_says_when_to_try_again(path):
    limits = Limits(blob_bytes=4096, hot_bytes=None, object_bytes=None)
    async with BrokerQueue(LocalFileSystemStorage(path), limits=limits) as queue, serving(queue) as served:
        answers = [await served.post("/v1/jobs", {"entrypoint": "mail", "text": "x" * 1000}) for _ in range(5)]
        assert (429, "QueueFullError") == answers[-1].problem
        assert "5" == answers[-1].headers["Retry-After"]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/calls"])
async def test_who_has_no_right_token_learns_nothing(served, path):
    for header in (None, "Bearer ", "Bearer wrong", f"Basic {TOKENS[Role.OPERATOR]}", "Bearer \x80\xff"):
        given = {} if header is None else {"Authorization": header}
        answer = await served.post(path, {"entrypoint": "mail"}, None, **given)
        assert (401, "NotSignedIn") == answer.problem
        assert "Bearer" == answer.headers["WWW-Authenticate"]


async def test_tokens_are_added_and_taken_back_while_the_broker_serves(served, tmp_path):
    path = tmp_path / "tokens"
    assert not any(token in path.read_text() for token in TOKENS.values())
    TokenFile.add(path, Role.VIEWER, "new", "a-new-token")
    assert 404 == (await served.get("/v1/stats", None, Authorization="Bearer a-new-token")).status
    assert 403 == (await served.post("/v1/jobs", {}, None, Authorization="Bearer a-new-token")).status
    kept = [line for line in path.read_text().splitlines() if line.endswith(" new")]
    path.write_text("\n".join(kept))
    assert (401, "NotSignedIn") == (await served.get("/v1/stats")).problem
    path.chmod(0o644)
    answer = await served.get("/v1/stats", None, Authorization="Bearer a-new-token")
    assert (503, "TokensUnreadable") == answer.problem
    path.unlink()
    assert (503, "TokensUnreadable") == (await served.get("/v1/stats")).problem


FOREIGN = [
    {"Host": "evil.example:PORT"},  # a name of a page's own site that now points here (DNS rebinding)
    {"Host": "evil.example"},
    {"Host": ""},
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1:9"},
    {"Origin": "null"},
    {"Origin": "https://evil.example", "Content-Type": "text/plain"},  # a browser sends it without asking first
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
]
OURS = [
    {"Host": "queue.example:PORT"},
    {"Origin": "https://queue.example"},
    {"Origin": "http://127.0.0.1:PORT", "Sec-Fetch-Site": "same-origin"},
]
VISITS = [
    {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
]
PARTS = [
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    *FOREIGN[:6],
]


async def test_a_page_of_another_site_reaches_nothing_even_if_no_token_is_needed(path, other):
    queue = BrokerQueue(LocalFileSystemStorage(path))
    async with queue, serving(queue, names=("queue.example",)) as served:
        port = served.url.rpartition(":")[2]

        async def ask(method, headers):
            given = {name: value.replace("PORT", port) for name, value in headers.items()}
            target, body = ("/v1/jobs", {"entrypoint": "mail"}) if method == "POST" else ("/v1/openapi.json", None)
            return await served.ask(method, target, body, None, **given)

        for headers in FOREIGN:
            answer = await ask("POST", headers)
            assert answer.problem in ((403, "ForeignOrigin"), (421, "HostNotAllowed"), (415, "NotJSON")), headers
        assert (
            "its Origin is null, and its Host is 127.0.0.1:" in (await ask("POST", {"Origin": "null"})).values["detail"]
        )
        assert not path.exists()
        for headers in OURS:
            assert 200 == (await ask("POST", headers)).status, headers
        for method, headers in [("GET", each) for each in (*VISITS, *OURS)]:
            assert 200 == (await ask(method, headers)).status, headers
        for headers in PARTS:
            assert (await ask("GET", headers)).status in (403, 421), headers
        answer = await served.ask("OPTIONS", "/v1/jobs", None, None, Origin=served.url)
        assert 405 == answer.status
        assert not any(name.lower().startswith("access-control") for name in answer.headers)


async def test_bodies_that_do_not_arrive_hold_no_room_whatever_they_declare(served):
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS[Role.WORKER]}\r\n"
    async with AsyncExitStack() as stack:
        for length, answer in ((LARGEST_BODY + 1, b" 413 "), *[(LARGEST_BODY, b" 100 ")] * 3):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
            stack.callback(writer.close)
            writer.write(f"{head}Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n".encode())
            assert answer in await reader.readline()
        for text in ("small", "x" * (256 << 10)):
            job = {"entrypoint": "mail", "text": text}
            assert 200 == (await served.post("/v1/jobs", job, Role.WORKER)).status


async def test_every_caller_has_room_while_others_send_all_that_they_can():
    intake = Intake(PATIENCE)

    async def body(name, size, held):
        """True if a body of this size is read beside the bodies in memory; False if it may be sent again later."""
        scope = {"headers": [(b"content-type", b"application/json")], "jqueue.caller": Caller(Role.WORKER, name)}
        pieces = [SMALL_MESSAGE] * (size // SMALL_MESSAGE) + [size % SMALL_MESSAGE]

        async def receive():
            return {"type": "http.request", "body": bytes(pieces.pop()), "more_body": bool(pieces)}

        try:
            return size == len(await held.enter_async_context(intake.body(scope, receive, LARGEST_BODY)))
        except Problem as problem:
            return problem.headers["Retry-After"] != "1"

    large = 1 << 20
    async with AsyncExitStack() as held, AsyncExitStack() as others:
        assert await body("one", LARGEST_BODY, held)
        for name in ("one", "two"):
            while await body(name, large, held):
                pass
        assert await body("three", large, others)
        for name in ("one", "two", "three"):
            assert await body(name, SMALL_MESSAGE, others)
        while await body("one", SMALL_MESSAGE, held):
            pass
        assert await body("two", 2, others)
    async with AsyncExitStack() as held:
        assert await body("two", LARGEST_BODY, held)


@pytest.mark.parametrize(("each_second", "seconds"), [(2 * SLOWEST, 128), (SLOWEST // 4, 26)])
@in_virtual_time
async def test_a_large_body_must_arrive_with_a_rate(each_second, seconds):
    scope = {"headers": [(b"content-type", b"application/json")], "jqueue.caller": Caller(Role.WORKER, "one")}
    begun, left = now(), LARGEST_BODY

    async def receive():
        nonlocal left
        await asyncio.sleep(1)
        left -= each_second
        return {"type": "http.request", "body": bytes(each_second), "more_body": left > 0}

    with suppress(Problem):
        async with Intake(PATIENCE).body(scope, receive, LARGEST_BODY):
            pass
    assert (each_second > SLOWEST, seconds) == (left == 0, int(now() - begun))


async def test_connections_without_a_token_take_no_room_from_the_others(path, tmp_path, monkeypatch):
    """As many as there may be at all do nothing: the oldest of them end, and each request with a token is answered."""
    monkeypatch.setattr(serving_module, "MOST_CONNECTIONS", 64)
    async with BrokerQueue(LocalFileSystemStorage(path)) as queue, serving(queue, token_file(tmp_path)) as served:
        assert 200 == (await served.post("/v1/jobs", {"entrypoint": "other"})).status  # this connection stays
        waiting = asyncio.create_task(served.post("/v1/claims?wait=20", {"entrypoints": ["mail"]}, Role.WORKER))
        idle = [await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2])) for _ in range(128)]
        for reader, _ in idle[: 128 - 64 // 4]:
            with suppress(ConnectionResetError):
                assert b"" == await asyncio.wait_for(reader.read(), 20)
        assert not any(reader.at_eof() for reader, _ in idle[-8:])
        async with aiohttp.ClientSession() as session:
            late = replace(served, session=session)
            for each in (served, late):
                assert 200 == (await each.post("/v1/jobs", {"entrypoint": "mail"})).status
        assert 200 == (await waiting).status
        for _, writer in idle:
            writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/stats HTTP/1.1\r\nX-Long: " + b"x" * (64 << 10),
        b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * (50 << 10) + b"\r\n\r\n",
        b"GET /v1/stats?" + b"x" * (50 << 10) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /api/session HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    ],
    ids=["unfinished", "headers", "query", "two lengths", "two lengths for the page"],
)
async def test_a_head_that_is_too_large_or_has_two_lengths_is_refused(served, head):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
    writer.write(head)
    answer = await asyncio.wait_for(reader.read(), 20)  # the connection ends: what follows may be another request's
    assert answer.startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_without_tokens_every_program_of_the_machine_is_an_operator(path):
    async with BrokerQueue(LocalFileSystemStorage(path)) as queue, serving(queue) as served:
        assert 200 == (await served.post("/v1/jobs", {"entrypoint": "mail"}, None)).status
        assert json.loads(OPENAPI.read_bytes()) == (await served.get("/v1/openapi.json", None)).values


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /v1/stats HTTP/1.1\r\nHost: localh",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
        b"",
    ],
    ids=["head", "body", "nothing"],
)
async def test_a_client_that_sends_too_slowly_is_left(path, sent):
    queue = BrokerQueue(LocalFileSystemStorage(path))
    async with queue, serving(queue, patience=0.2) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 20)
        assert answer == b"" or b" 408 " in answer.partition(b"\r\n")[0]
        writer.close()


@pytest.mark.skipif(not FILES.exists(), reason="only Linux lists the open files of a process there")
async def test_a_client_that_does_not_read_its_answer_is_left(path):
    queue = BrokerQueue(LocalFileSystemStorage(path))
    async with queue, serving(queue, patience=0.2) as served:
        large = {"entrypoint": "mail", "id": "one", "text": "x" * (8 << 20)}
        assert 200 == (await served.post("/v1/jobs", large)).status
        with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as client:
            before = len([*FILES.iterdir()])
            client.sendall(b"GET /v1/jobs/one HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(30):
                while len([*FILES.iterdir()]) <= before:  # the server accepts it
                    await asyncio.sleep(0.01)
                while len([*FILES.iterdir()]) > before:  # and gives it up
                    await asyncio.sleep(0.01)
            size = 0
            with suppress(ConnectionResetError):
                while data := await asyncio.to_thread(client.recv, 1 << 20):
                    size += len(data)
            assert size < 8 << 20
