"""A client's connection to a broker by HTTP: what it sends, and what it makes of servers and proxies that misbehave."""

import asyncio
import logging
import pickle
import shutil
import socket
import ssl
import subprocess
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jqueue import BrokerQueue, connect, open_storage
from jqueue.adapters.http_link import BrokerDialer, HTTPLink
from jqueue.domain.errors import InvalidJobError, InvalidURLError, StorageFatalError
from jqueue.ports.sharing import LinkError, LinkRefusedError, NoBrokerError

TOKEN = "a-token-of-the-tests"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def piece(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def problem(status, detail="why", headers=""):
    body = f'{{"title":"Some","detail":"{detail}"}}'.encode()
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n{headers}"
    return head.encode() + b"\r\n" + body


@asynccontextmanager
async def server(*script, **options):
    """Serve connections by a script: bytes to send and seconds to wait, after the request has come."""
    requests, handling = list[tuple[bytes, bytes]](), set[Any]()

    async def connected(reader, writer):
        handling.add(asyncio.current_task())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            requests.append((head, await reader.readexactly(size)))
            for step in script:
                if isinstance(step, bytes):
                    writer.write(step)
                else:
                    await asyncio.sleep(step)
        finally:
            writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0, **options)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", requests
    finally:
        listening.close()
        for task in handling:
            task.cancel()


async def failure(url, message=b"{}", **options):
    link = HTTPLink(url, TOKEN, silence=0.3, **options)
    try:
        with pytest.raises(LinkError) as raised:
            await link.exchange(message)
        assert TOKEN not in str(raised.value)
        return raised.value
    finally:
        link.close()


async def exchange(link):
    """Send a message, get its answer, and close the connection."""
    assert link is not None
    try:
        assert await link.exchange(b"{}") == b"{}"
    finally:
        link.close()


async def test_a_broker_that_sends_signs_of_life_is_waited_for():
    steps = [each for _ in range(8) for each in (0.1, piece(b" "))]
    async with server(OK, *steps, piece(b'{"version":3}'), piece(b"")) as (url, requests):
        link = HTTPLink(url, TOKEN, silence=0.3)
        assert (await link.exchange(b"x" * 200_000)).strip() == b'{"version":3}'
        link.close()
    [(head, body)] = requests
    assert head.startswith(b"POST /v1/calls HTTP/1.1")
    assert f"Authorization: Bearer {TOKEN}".encode() in head
    assert b"application/json" in head
    assert len(body) == 200_000


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ([OK, 9], "silent"),
        ([9], "silent"),
        ([1.0, OK, piece(b"{}"), piece(b"")], "a proxy holds back its answers"),
        ([OK, piece(b' {"version"')], "no whole answer"),
        ([], "no whole answer"),
        ([b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"], "502"),
        ([b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n"], "503"),
        ([problem(500)], "why"),
        ([b"nonsense\r\n\r\n"], "no whole answer"),
    ],
)
async def test_a_message_without_a_whole_answer_may_have_arrived(script, what):
    async with server(*script) as (url, _):
        error = await failure(url)
    assert what in str(error)
    assert (error.sent, isinstance(error, LinkRefusedError)) == (True, False)


async def test_a_refused_connection_has_sent_nothing():
    async with server() as (url, _):
        pass
    error = await failure(url)
    assert "cannot be reached" in str(error)
    assert not error.sent


async def test_a_broker_that_takes_no_message_is_silent():
    """The message is larger than what the kernel holds back for it."""

    with socket.create_server(("127.0.0.1", 0)) as listening:  # the kernel takes the connection
        error = await failure(f"http://127.0.0.1:{listening.getsockname()[1]}", b"x" * (40 << 20))
    assert ("silent" in str(error), error.sent) == (True, True)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (problem(401), "refuses the token"),
        (problem(403, "a producer may not do Pause"), "a producer may not do Pause"),
        (problem(413, "too large"), "too large"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "there is no broker"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", "there is no broker"),
    ],
)
async def test_a_refusal_is_final_and_nothing_was_done(answer, what):
    async with server(answer) as (url, requests):
        error = await failure(url)
    assert what in str(error)
    assert isinstance(error, LinkRefusedError)
    assert isinstance(error.error, StorageFatalError)
    assert (error.sent, len(requests)) == (False, 1)
    assert isinstance(error, NoBrokerError) == (what == "there is no broker")


async def test_a_wrong_value_is_the_error_of_the_queue():
    answer = problem(422).replace(b'"Some"', b'"InvalidJobError"').replace(b"Content-Length: 31", b"Content-Length: 42")
    async with server(answer) as (url, _):
        error = await failure(url)
    assert isinstance(error, LinkRefusedError)
    assert isinstance(error.error, InvalidJobError)


@pytest.mark.parametrize(("header", "seconds"), [("Retry-After: 7\r\n", 7), ("Retry-After: soon\r\n", 1), ("", 1)])
async def test_a_broker_with_too_much_to_do_is_left_alone_for_as_long_as_it_says(header, seconds):
    async with server(problem(429, headers=header)) as (url, _):
        error = await failure(url)
    assert (error.sent, error.pause) == (False, seconds)


async def test_closing_ends_exchanges_under_way():
    async with server(OK, 60) as (url, _):
        link = HTTPLink(url)
        waiting = asyncio.create_task(link.exchange(b"{}"))
        await asyncio.sleep(0.1)
        link.close()
        with pytest.raises(LinkError) as raised:
            await waiting
        assert raised.value.sent
        with pytest.raises(LinkError):
            await link.exchange(b"{}")


@pytest.mark.parametrize(
    ("given", "origin", "is_sent"),
    [
        (TOKEN, "{here}/queue", True),
        (TOKEN, None, False),
        (TOKEN, "http://localhost:{port}", False),
        (TOKEN, "https://127.0.0.1:{port}", False),
        ("{here}/#token=" + TOKEN, None, True),
        ("{here}/#token=" + TOKEN, "http://localhost:{port}", True),
        ("https://broker.example/#token=other {here}#token=" + TOKEN, None, True),
        ("http://127.0.0.1/#token=" + TOKEN, "{here}", False),
        ("{here}.example/#token=" + TOKEN, "{here}", False),
        ("http://[x/#token=" + TOKEN, None, False),
    ],
)
@pytest.mark.parametrize("in_environment", [True, False])
async def test_a_token_goes_only_to_the_origin_that_it_was_given_for(
    monkeypatch, given, origin, is_sent, in_environment
):
    """Other URLs come from the queue's object, which others may have written. No proxy of the environment is used."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with server(OK, piece(b"{}"), piece(b"")) as (here, requests):
        names = {"here": here, "port": here.rpartition(":")[2]}
        text, place = given.format(**names), origin and origin.format(**names)
        if in_environment:
            monkeypatch.setenv("JQUEUE_TOKEN", text)
        await exchange(await BrokerDialer(None if in_environment else text, origin=place)(here))
    assert is_sent == (f"Authorization: Bearer {TOKEN}\r\n".encode() in requests[0][0])
    assert is_sent == (b"Authorization" in requests[0][0])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_certificates_are_checked_against_the_given_file(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run([*request.split(), *names], capture_output=True, check=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with server(OK, piece(b"{}"), piece(b""), ssl=context) as (url, requests):
        port = url.rpartition(":")[2]
        for host, ca_file, is_trusted in (
            ("localhost", str(certificate), True),
            ("127.0.0.1", str(certificate), False),  # another name than that of the certificate
            ("localhost", None, False),
        ):
            link = await BrokerDialer(TOKEN, ca_file=ca_file)(f"https://{host}:{port}")
            if is_trusted:
                await exchange(link)
                continue
            with pytest.raises(LinkError, match=r"cannot be reached.*certificate") as raised:
                await exchange(link)
            assert not raised.value.sent
        assert len(requests) == 1, "the token went to a server that is not trusted"
    with pytest.raises(StorageFatalError, match="the file of certificates"):
        await BrokerDialer(ca_file=str(tmp_path / "missing.pem"))("https://localhost:1")


@pytest.mark.parametrize(
    "url", ["http://broker.example:8470", "ftp://127.0.0.1", "http://user@127.0.0.1", "no url", "https://", "http://[x"]
)
async def test_nothing_is_sent_to_a_url_that_is_not_safe(url, caplog):
    """Whoever can write the queue's object can write the URL there."""
    dial = BrokerDialer(TOKEN)
    with caplog.at_level(logging.WARNING):
        assert await dial(url) is None
        assert await dial(url) is None
    assert len(caplog.records) == 1


async def test_a_token_is_in_no_repr_and_no_pickle():
    dial = BrokerDialer(TOKEN, insecure=True)
    link = await dial("http://broker.example:8470")
    queue = connect("jqueue+https://broker.example:8470/queue", BrokerQueue, token=TOKEN)
    assert link is not None
    link.close()
    for each in (dial, link, queue, queue.storage):
        assert TOKEN not in repr(each)
    assert TOKEN.encode() not in pickle.dumps(queue)
    assert repr(pickle.loads(pickle.dumps(queue)).storage) == repr(queue.storage)
    with pytest.raises(InvalidJobError) as raised:
        BrokerDialer("two words")
    assert "two words" not in str(raised.value)


def test_urls_of_brokers():
    for url in ("jqueue+https://host:8470/queue", "jqueue+https://host", "jqueue+http://127.0.0.1:8470/queue"):
        storage: Any = open_storage(url)
        assert storage.url == url.removeprefix("jqueue+")
    one: Any = open_storage("jqueue+http://host:1/q", insecure=True)
    other: Any = open_storage("jqueue+http://host:1/q?insecure=true")
    assert one.url == other.url
    with pytest.raises(InvalidURLError, match=r"end the URL with \?insecure=true"):
        connect("jqueue+http://host:1/q")
    for wrong in ("jqueue+http://host:1/q", "jqueue+https://", "jqueue+https://a@host/q", "jqueue+https://host/q?x=1"):
        with pytest.raises(InvalidURLError):
            connect(wrong)


async def test_the_address_that_a_broker_prints_has_its_token():
    async with server(OK, piece(b"{}"), piece(b"")) as (url, requests):
        queue: Any = connect(f"jqueue+{url}/queue?insecure=true#token={TOKEN}", BrokerQueue)
        assert (f"{url}/queue", False) == (queue.storage.url, TOKEN in repr(queue))
        assert TOKEN.encode() not in pickle.dumps(queue)
        await exchange(await queue.storage.dial())
    assert f"Authorization: Bearer {TOKEN}".encode() in requests[0][0]
    for wrong in (TOKEN, f"secret={TOKEN}", "token="):
        with pytest.raises(InvalidURLError, match="#token=TOKEN") as raised:
            connect(f"jqueue+{url}#{wrong}")
        assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("url", ["s3://bucket/key", "gs://bucket/key", "az://account@box/key"])
async def test_a_queue_in_a_remote_store_finds_its_broker_with_the_token_of_connect(url):
    async with server(OK, piece(b"{}"), piece(b"")) as (place, requests):
        queue: Any = connect(url, BrokerQueue, token=f"{place}/#token={TOKEN}")
        assert TOKEN not in repr(queue)
        assert TOKEN.encode() not in pickle.dumps(queue)
        await exchange(await queue.storage.dial_url(place))
    assert TOKEN.encode() in requests[0][0]
