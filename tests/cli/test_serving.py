"""`jqueue dashboard`, `serve` and `metrics`: servers on this machine, and what they refuse to do for others."""

import base64
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from jqueue.server.access import Role, TokenFile
from tests.cli.commands import PATIENCE, SECRET, refused, run
from tests.telemetry.samples import samples_of

pytestmark = pytest.mark.wide

TOKEN = "operator-token-000000"


@contextmanager
def running(*arguments, command="dashboard", descriptors=1024):
    """The command in a process: yields its process and its link, and stops it with Ctrl-C."""
    words = [sys.executable, "-m", "jqueue", command, *map(str, arguments)]
    words = ["sh", "-c", 'ulimit -n "$0"; exec "$@"', str(descriptors), *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = process.stdout.readline() if command != "metrics" else process.stderr.readline()
            yield process, line.split()[-1]
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)


def call(link, method, path, body=None, **headers):
    """The status, the headers and the content of an answer."""
    parts = urlsplit(link)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    connection = (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=PATIENCE, context=trusting)
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
    )
    content = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, content, {"X-Jqueue-Dashboard": "1", **headers})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_the_link_opens_the_page_and_the_log_has_neither_token_nor_payload(path, queue):
    queue.enqueue("mail", SECRET.encode(), job_id="one")
    with running(path) as (process, link):
        parts = urlsplit(link)
        token = parts.fragment.removeprefix("token=")
        assert ("127.0.0.1", 64) == (parts.hostname, len(token))
        assert 200 == call(link, "GET", "/")[0]
        assert 401 == call(link, "GET", "/api/overview")[0]
        assert 421 == call(link, "GET", "/", Host="evil.example")[0]
        assert f"cannot listen on 127.0.0.1:{parts.port}" in refused("dashboard", path, "--port", parts.port)
        status, headers, _ = call(link, "POST", "/api/session", {"token": token})
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert (200, f"jqueue-{parts.port}") == (status, cookie.partition("=")[0])
        overview = json.loads(call(link, "GET", "/api/overview", Cookie=cookie)[2])
        assert ("operator", 1) == (overview["role"], overview["ready"])
        assert SECRET.encode() in call(link, "GET", "/api/job/payload?id=one", Cookie=cookie)[2]
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=PATIENCE)
        assert (0, ("", "")) == (process.returncode, output)


@pytest.fixture
def tokens(tmp_path):
    """A file with the hash of `TOKEN`."""
    file = tmp_path / "tokens"
    TokenFile.add(file, Role.OPERATOR, "ada", TOKEN)
    return file


@pytest.fixture
def certified(tmp_path):
    """A private key and its certificate."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    subprocess.run([*request.split(), "-keyout", key, "-out", certificate], capture_output=True, check=True)
    return key, certificate


# The broker


def test_a_crowd_without_a_token_takes_no_descriptor_that_the_broker_needs(path, queue):
    queue.enqueue("mail", b"")
    with ExitStack() as stack:
        process, link = stack.enter_context(running(path, "--listen", "127.0.0.1:0", command="serve", descriptors=256))
        parts = urlsplit(link)
        headers = {
            "Authorization": f"Bearer {parts.fragment.removeprefix('token=')}",
            "Content-Type": "application/json",
        }
        for _ in range(2):
            process.send_signal(signal.SIGSTOP)  # all of them come at once
            for _ in range(500):
                stranger = stack.enter_context(socket.socket())
                stranger.setblocking(False)
                stranger.connect_ex((parts.hostname, parts.port))
            process.send_signal(signal.SIGCONT)
            assert 200 == call(link, "POST", "/v1/jobs", {"entrypoint": "mail"}, **headers)[0]
        process.send_signal(signal.SIGINT)
        assert "" == process.communicate(timeout=PATIENCE)[1]


def test_the_broker_has_tls_tokens_and_an_end_that_says_nothing_of_either(path, certified, tmp_path):
    key, certificate = certified
    file = tmp_path / "new" / "tokens"
    file.parent.mkdir()
    token = run("serve", "--token-file", file, "--new-token", "operator", "--token-name", "me").stdout.strip()
    assert (0o600, 64, False) == (file.stat().st_mode & 0o777, len(token), token in file.read_text())
    options = ("--listen", "0.0.0.0:0", "--token-file", file, "--tls-cert", certificate, "--tls-key", key)
    with running(path, *options, command="serve") as (process, link):
        link = link.replace("0.0.0.0", "127.0.0.1")
        signed = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        assert 401 == call(link, "GET", "/v1/jobs/one")[0]
        job = {"entrypoint": "mail", "id": "one", "text": SECRET}
        assert 200 == call(link, "POST", "/v1/jobs", job, **signed)[0]
        assert SECRET.encode() in call(link, "GET", "/v1/jobs/one", **signed)[2]
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=PATIENCE)
        assert (0, "") == (process.returncode, out)
        assert "there is no queue at" in errors
        assert all(line.startswith("jqueue: ") for line in errors.splitlines())
        assert not any(secret in errors for secret in (token, SECRET))
    assert SECRET in path.read_text() or base64.b64encode(SECRET.encode()).decode() in path.read_text()
    assert token not in path.read_text()


def test_a_broker_on_this_machine_wants_the_token_of_its_address(path):
    with running(path, "--listen", "127.0.0.1:0", command="serve") as (process, link):
        address, _, token = link.partition("#token=")
        assert ("http://127.0.0.1:", 64) == (address.rstrip("/").rstrip("0123456789"), len(token))
        for header in ("", "Bearer wrong"):
            assert 401 == call(link, "GET", "/v1/stats", Authorization=header)[0]
        assert 401 == call(link, "GET", "/api/overview")[0]
        assert 200 == call(link, "POST", "/api/session", {"token": token})[0]
        shown = run("enqueue", f"jqueue+{link}", "mail", SECRET)
        assert (0, False) == (shown.exit_code, token in shown.output)
        assert "needs a token" in run("stats", f"jqueue+{address}").output
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=PATIENCE)
        assert not any(secret in out + errors for secret in (token, SECRET))
    with running(path, "--listen", "127.0.0.1:0", "--insecure", command="serve") as (process, link):
        assert "#" not in link
        until = time.monotonic() + PATIENCE
        while not any(each.is_socket() for each in path.parent.iterdir()):  # programs on the same file find it so
            assert time.monotonic() < until
            time.sleep(0.01)
        assert 200 == call(link, "GET", "/v1/stats")[0]
        process.send_signal(signal.SIGTERM)
        assert "everyone who reaches this address" in process.communicate(timeout=PATIENCE)[1]


def test_a_broker_has_probes_and_metrics_and_logs_once_when_its_store_fails_and_is_back(path, queue):
    def until(page, status):
        end = time.monotonic() + PATIENCE
        while (answer := call(probes, "GET", page))[0] != status:
            assert time.monotonic() < end, answer
            time.sleep(0.02)
        return answer[2]

    queue.enqueue("mail", b"")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        probes = f"http://127.0.0.1:{free.getsockname()[1]}"
    options = ["--listen", "127.0.0.1:0", "--health", urlsplit(probes).netloc, "--log-format", "json"]
    with running(path, *options, command="serve") as (process, _):
        assert {"status": "ready", "clients": 0}.items() <= json.loads(until("/readyz", 200)).items()
        os.rename(path, f"{path}.away")
        path.mkdir()
        for _ in range(3):
            assert "the store cannot be read" in json.loads(until("/readyz", 503))["status"]
        assert 200 == call(probes, "GET", "/healthz")[0]
        assert 0 == samples_of(call(probes, "GET", "/metrics")[2])["jqueue_up",]
        path.rmdir()
        os.rename(f"{path}.away", path)
        until("/readyz", 200)
        found = samples_of(call(probes, "GET", "/metrics")[2])
        assert (1, 0) == (found["jqueue_jobs", "mail", "ready"], found["jqueue_broker_clients",])
        process.send_signal(signal.SIGTERM)
        lines = [json.loads(line)["message"] for line in process.stderr or ()]
    told = [line for line in lines if " cannot be used" in line or "answers again" in line]
    assert 2 == len(told), lines


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("dashboard --host 0.0.0.0", "needs --token-file"),
        ("dashboard --host 192.0.2.1 --token-file TOKENS", "needs --tls-cert and --tls-key"),
        ("dashboard --host example.org --insecure", "needs --token-file"),
        ("dashboard --tls-cert nothing.pem --tls-key TOKENS", "there is no file"),
        ("serve --listen 0.0.0.0:0", "needs --token-file"),
        ("serve --listen 0.0.0.0:0 --token-file TOKENS", "needs --tls-cert and --tls-key"),
        ("serve --listen nowhere", "an address to listen on is HOST:PORT"),
        ("serve --token-file PLAIN", "line 1 of the token file is wrong"),
        ("serve --token-file nothing", "the token file cannot be read"),
        ("serve --tls-cert TOKENS", "give both --tls-cert and --tls-key"),
        ("serve --new-token worker", "--new-token needs --token-file"),
        ("serve --new-token boss --token-file TOKENS", "--new-token takes a role: producer, worker, viewer, operator"),
    ],
)
def test_options_that_would_let_strangers_in_are_refused(path, queue, tokens, tmp_path, options, reason):
    plain = tmp_path / "plain"
    plain.touch(0o600)
    plain.write_text(f"operator {TOKEN}\n")
    command, *given = options.replace("TOKENS", str(tokens)).replace("PLAIN", str(plain)).split()
    assert reason in (message := refused(command, path, *given))
    assert TOKEN not in message


# Metrics


def test_the_metrics_are_printed_once_and_no_payload(path, queue):
    for _ in range(3):
        queue.enqueue("mail", SECRET.encode())
    queue.dequeue("mail")
    samples = samples_of(run("metrics", path).stdout)
    assert (2, 1) == (samples["jqueue_jobs", "mail", "ready"], samples["jqueue_jobs", "mail", "in_progress"])
    assert (3, 1) == (samples["jqueue_enqueued_total", "mail"], samples["jqueue_wait_seconds_count", "mail"])
    assert ("jqueue_commits_total",) not in samples  # of this process, which commits nothing


@pytest.mark.wide
def test_each_scrape_reads_the_queue_until_the_command_is_stopped(path, queue):
    def scraped(url):
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return samples_of(answer.read())

    queue.enqueue("mail", b"")
    with running(path, "--listen", "127.0.0.1:0", command="metrics") as (process, url):
        assert 1 == scraped(url)["jqueue_jobs", "mail", "ready"]
        queue.enqueue("mail", b"")
        assert 2 == scraped(url)["jqueue_jobs", "mail", "ready"]
        os.rename(path, f"{path}.away")
        down = scraped(url)
        assert (0, 2) == (down["jqueue_up",], down["jqueue_jobs", "mail", "ready"])
        os.rename(f"{path}.away", path)
        assert 2 == scraped(url)["jqueue_jobs", "mail", "ready"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scraped(url.replace("/metrics", "/"))
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(PATIENCE)
