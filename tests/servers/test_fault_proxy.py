"""The fault proxy applies its faults as planned, between a server and a client that see every byte."""

import asyncio
import http.client
from random import Random

import pytest

from tests.servers.accepting import accepting
from tests.servers.fault_kinds import (
    BlackHole,
    DropAnswer,
    HangAnswer,
    Late,
    Latency,
    Refuse,
    ReplaceAnswer,
    ResetRequest,
    TruncateAnswer,
    s3_error,
)
from tests.servers.fault_proxy import FaultProxy
from tests.servers.tiny_http import CLOSED, RESET, SECONDS, TinyServer, answer_with, connected


@pytest.fixture
async def server():
    tiny = TinyServer()
    async with await asyncio.start_server(accepting(tiny.serve), "127.0.0.1", 0) as listener:
        tiny.port = listener.sockets[0].getsockname()[1]
        yield tiny


@pytest.fixture
async def proxy(server):
    async with FaultProxy("127.0.0.1", server.port) as proxy:
        yield proxy
    running = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
    assert not [name for name in running if name.startswith("_Connection.")]


@pytest.fixture
async def client(proxy):
    async with connected(proxy) as client:
        yield client


def _put(body=b"hello", path="/a", more=""):
    return f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


HELLO = answer_with(b"hello")
GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
EXPECT = "Expect: 100-continue\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_sequential_and_pipelined_requests_use_one_connection_to_the_server(proxy, server, client):
    await client.get(_put(), HELLO)
    await client.get(_put(b"1") + GET + _put(b"22"), answer_with(b"1") + answer_with(b"") + answer_with(b"22"))
    assert [b"hello", b"1", b"", b"22"] == [body for *_, body in server.done]
    assert 1 == server.connections == proxy.connections
    assert (4, 3, 1) == (proxy.count(), proxy.count("PUT"), proxy.count("GET"))
    assert [("PUT", "/a", 5, 200, None)] == [(r.method, r.path, r.bytes, r.status, r.fault) for r in proxy.requests][:1]
    assert "x" == server.done[0][2]["host"] == proxy.requests[0].headers["host"]


async def test_bodies_in_chunks_pass_in_both_directions(server, client):
    body = b"5;a=b\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
    server.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"
    request = b"PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    await client.get(request, server.answer)
    await client.get(request, server.answer)
    assert [body, body] == [body for *_, body in server.done]


async def test_a_large_body_passes(server, client):
    body = Random(1).randbytes(3_000_000)
    await client.get(_put(body), answer_with(body))


async def test_a_100_continue_answer_is_passed_on(server, client):
    await client.get(_put(b"", more=EXPECT).replace(b": 0", b": 5"), CONTINUE)
    assert [] == server.done
    await client.get(b"hello", HELLO)
    await client.get(_put(), HELLO)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_answers_without_a_body_end_with_their_head(server, client, status):
    server.answer = f"HTTP/1.1 {status}\r\nContent-Length: 7\r\n\r\n".encode()
    await client.get(GET + GET, server.answer + server.answer)


async def test_the_answer_to_a_head_request_has_no_body(client):
    await client.get(_put().replace(b"PUT", b"HEAD"), answer_with(b"", 5))
    await client.get(_put(), HELLO)


async def test_an_answer_before_the_body_is_passed_on_at_once(server, client):
    server.on_head = answer_with(b"no", head="HTTP/1.1 412 Precondition Failed")
    await client.get(_put(b"", more=EXPECT).replace(b": 0", b": 5"), server.on_head)
    await client.get(b"hello" + _put(b"1"), server.on_head)
    await client.get(GET, server.on_head)
    assert [b"hello", b"1", b""] == [body for *_, body in server.done]


@pytest.mark.parametrize(
    "answer", [answer_with(b"hello", head="HTTP/1.1 200 OK\r\nConnection: close"), b"HTTP/1.0 200 OK\r\n\r\nhello"]
)
async def test_the_connection_ends_with_an_answer_that_closes_it(server, client, answer):
    server.answer, server.closes = answer, True
    client.send(_put())
    assert (answer, CLOSED) == await client.rest()


async def test_a_connection_that_the_server_closed_is_opened_again(proxy, server, client):
    server.closes = True
    await client.get(_put(), HELLO)
    await server.ended.wait()
    await client.get(_put(), HELLO)
    assert (1, 2) == (proxy.connections, server.connections)


async def test_a_client_that_leaves_within_a_body_sends_the_server_a_part(server, client):
    client.send(_put()[:-1])
    client.writer.write_eof()
    await server.ended.wait()
    assert [_put()[:-1]] == server.cut


@pytest.mark.parametrize("fault", [Refuse(), DropAnswer(), DropAnswer(reset=True), TruncateAnswer(head=0)])
async def test_a_dropped_or_refused_request_gets_no_answer(proxy, server, client, fault):
    proxy.next(fault, method="PUT")
    await client.get(GET, answer_with(b""))
    client.send(_put())
    assert (b"", RESET if getattr(fault, "reset", False) else CLOSED) == await client.rest()
    asked = not isinstance(fault, Refuse)
    assert [200, 200 if asked else None] == [request.status for request in proxy.requests]
    assert asked == (b"hello" in [body for *_, body in server.done])
    assert {type(fault): 1} == proxy.fired


async def test_a_connection_is_refused_before_anything_is_read(proxy, server):
    proxy.next(Refuse())
    async with connected(proxy) as client:
        assert (b"", CLOSED) == await client.rest()
    async with connected(proxy) as client:
        await client.get(_put(), HELLO)
    assert (1, 2, {Refuse: 1}) == (proxy.count(), proxy.connections, proxy.fired)


@pytest.mark.parametrize(
    ("fault", "status"), [(BlackHole(), None), (HangAnswer(), 200), (TruncateAnswer(1, then="hang"), 200)]
)
@pytest.mark.parametrize("leaves", [True, False])
async def test_a_hanging_fault_lasts_until_the_client_leaves_or_the_proxy_stops(
    proxy, server, client, fault, status, leaves
):
    proxy.next(fault)
    client.send(_put())
    if status:
        await proxy.until(lambda: proxy.requests and proxy.requests[0].status)
        assert [b"hello"] == [body for *_, body in server.done]
    if isinstance(fault, TruncateAnswer):
        await client.get(b"", HELLO[:-4])
    await client.is_silent()
    assert not proxy.requests[0].done
    if leaves:
        client.writer.close()
        await proxy.until(lambda: proxy.requests[0].done)
    else:
        await proxy.stop()
        assert (b"", CLOSED) == (await client.rest())
    assert status == proxy.requests[0].status
    assert (1 if status else 0) == len(server.done)


async def test_a_black_hole_does_not_ask_for_the_body(proxy, server, client):
    proxy.next(BlackHole())
    client.send(_put(more=EXPECT))
    await client.is_silent()
    assert [] == server.done


@pytest.mark.parametrize(
    ("fault", "passed"),
    [
        (ResetRequest(head=0), b""),
        (ResetRequest(head=20), _put(bytes(1000))[:20]),
        (ResetRequest(), _put(bytes(1000))[:-1000]),
        (ResetRequest(999), _put(bytes(1000))[:-1]),
        (ResetRequest(0.5), _put(bytes(1000))[:-500]),
    ],
)
async def test_a_request_can_be_cut_on_its_way_to_the_server(proxy, server, client, fault, passed):
    proxy.next(fault)
    client.send(_put(bytes(1000)))
    assert (b"", RESET) == await client.rest()
    await server.ended.wait()
    assert ([passed] if passed else []) == server.cut
    assert [] == server.done
    assert None is proxy.requests[0].status


async def test_a_request_passed_completely_before_the_reset_is_done(proxy, server, client):
    proxy.next(ResetRequest(1.0))
    client.send(_put())
    assert (b"", RESET) == await client.rest()
    await server.ended.wait()
    assert [b"hello"] == [body for *_, body in server.done]


async def test_a_request_can_be_cut_after_100_continue(proxy, server, client):
    proxy.next(ResetRequest(2))
    await client.get(_put(b"", more=EXPECT).replace(b": 0", b": 5"), CONTINUE)
    client.send(b"hello")
    assert (b"", RESET) == await client.rest()
    await server.ended.wait()
    assert [b"he"] == [cut[-2:] for cut in server.cut]


@pytest.mark.parametrize(
    ("fault", "got"),
    [
        (TruncateAnswer(0), HELLO[:-5]),
        (TruncateAnswer(0.5), HELLO[:-3]),
        (TruncateAnswer(4, then="reset"), HELLO[:-1]),
        (TruncateAnswer(head=10), HELLO[:10]),
        (TruncateAnswer(head=10, then="reset"), HELLO[:10]),
    ],
)
async def test_an_answer_can_be_cut(proxy, server, client, fault, got):
    proxy.next(fault)
    client.send(_put())
    assert (got, RESET if fault.then == "reset" else CLOSED) == await client.rest()
    assert (200, 1) == (proxy.requests[0].status, len(server.done))


@pytest.mark.parametrize("ask", [True, False])
@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (503, "SlowDown"), (429, "TooManyRequests")])
async def test_an_answer_can_be_replaced(proxy, server, client, ask, status, code):
    fault = s3_error(status, code, ask=ask)
    proxy.next(fault)
    await client.get(_put(), fault.encode("PUT", close=False))
    assert f"<Code>{code}</Code>".encode() in fault.body
    await client.get(_put(b"1"), answer_with(b"1"))
    assert [b"hello", b"1"][1 - ask :] == [body for *_, body in server.done]
    assert 200 * ask == (proxy.requests[0].status or 0)


async def test_a_replaced_answer_to_a_head_request_has_no_body(proxy, client):
    proxy.next(ReplaceAnswer(503, b"slow"))
    await client.get(b"HEAD /a HTTP/1.1\r\n\r\n", b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\n")
    await client.get(_put(), HELLO)


async def test_an_answer_without_the_server_does_not_ask_for_the_body(proxy, server, client):
    fault = ReplaceAnswer(503, ask=False)
    proxy.next(fault)
    client.send(_put(b"", more=EXPECT).replace(b": 0", b": 5"))
    assert (fault.encode("PUT", close=True), CLOSED) == await client.rest()
    assert [] == server.done


@pytest.mark.parametrize("constant", [True, False])
async def test_latency_holds_back_the_request_and_the_answer(proxy, server, client, constant):
    if constant:
        proxy.latency = 0.05
    else:
        proxy.next(Latency(0.05, 0.05))
    start = asyncio.get_running_loop().time()
    await client.get(_put(), HELLO)
    assert 0.1 <= asyncio.get_running_loop().time() - start


@pytest.mark.parametrize("more", ["", EXPECT])
async def test_a_late_request_is_done_after_the_client_has_left(proxy, server, client, more):
    proxy.next(Late(0.05))
    client.send(_put(b"", more=more).replace(b": 0", b": 5"))
    if more:
        await client.get(b"", CONTINUE)
    client.send(b"hello")
    await proxy.until(lambda: proxy.requests)
    client.writer.close()
    await proxy.until(lambda: proxy.requests[0].done)
    assert (200, [b"hello"]) == (proxy.requests[0].status, [body for *_, body in server.done])


async def test_faults_are_planned_for_the_next_or_every_nth_matching_request(proxy, client):
    slow, bad = ReplaceAnswer(503), ReplaceAnswer(500, ask=False)
    proxy.next(slow, method="PUT", path="/b", times=2)
    proxy.every(3, bad, method="PUT")
    for path in "aabbba":
        client.send(_put(path=f"/{path}?x") + GET)
    await proxy.until(lambda: proxy.count() == 12 and proxy.requests[-1].done)
    assert [None, None, slow, slow, None, bad] == [r.fault for r in proxy.requests if r.method == "PUT"]
    assert {None} == {r.fault for r in proxy.requests if r.method == "GET"}
    proxy.clear()
    await client.get(b"", b"")
    assert {ReplaceAnswer: 3} == proxy.fired


async def _faults_by_chance(server, seed):
    async with FaultProxy("127.0.0.1", server.port, seed=seed) as proxy, connected(proxy) as client:
        proxy.rate, proxy.kinds = 0.2, [ReplaceAnswer(503), ReplaceAnswer(500)]
        client.send(GET * 200)
        await proxy.until(lambda: proxy.count() == 200 and proxy.requests[-1].done)
        return [request.fault for request in proxy.requests]


async def test_the_seed_determines_the_random_faults(server):
    first = await _faults_by_chance(server, 1)
    assert first == await _faults_by_chance(server, 1) != await _faults_by_chance(server, 2)
    assert {None, ReplaceAnswer(503), ReplaceAnswer(500)} == set(first)
    assert 20 <= sum(fault is not None for fault in first) <= 60


async def test_clients_and_plans_may_be_in_other_threads(proxy, server):
    def work():
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=SECONDS)
        try:
            statuses = []
            for _ in range(20):
                proxy.next(ReplaceAnswer(503))
                connection.request("PUT", "/a", b"hello")
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)
            return statuses
        finally:
            connection.close()

    assert 3 * [20 * [503]] == await asyncio.gather(*(asyncio.to_thread(work) for _ in range(3)))
    assert (60, 60, 3) == (proxy.count("PUT"), len(server.done), proxy.connections)


async def test_the_proxy_restarts_on_the_same_port(proxy, server):
    port = proxy.port
    await proxy.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    await proxy.start()
    async with connected(proxy) as client:
        await client.get(_put(), HELLO)
    assert port == proxy.port


async def test_an_absent_server_closes_the_connection(server, unused_tcp_port):
    async with FaultProxy("127.0.0.1", unused_tcp_port) as proxy, connected(proxy) as client:
        client.send(_put())
        assert (b"", CLOSED) == await client.rest()


async def test_a_request_that_is_not_http_fails_the_proxy(server):
    proxy = FaultProxy("127.0.0.1", server.port)
    await proxy.start()
    async with connected(proxy) as client:
        client.send(b"\r\n\r\n")
        await client.rest()
    with pytest.raises(BaseExceptionGroup, match="the proxy failed"):
        await proxy.stop()
