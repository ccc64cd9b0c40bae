"""`jqueue dashboard`: a server on this machine, and what it refuses to do for others."""

import asyncio
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.app import app

TOKEN = "operator-token-000000"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "queue.json"
    asyncio.run(DirectQueue(LocalFileSystemStorage(path)).enqueue("mail", b"hunter2", job_id="one"))
    return path


@contextmanager
def running(*arguments):
    """The command in a process: yields its process and its link, and stops it with Ctrl-C."""
    command = [sys.executable, "-m", "jqueue", "dashboard", *map(str, arguments)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()
        process.stderr.close()


def call(link, method, path, body=None, **headers):
    parts = urlsplit(link)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=60, context=trusting)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    content = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, content, {"X-Jqueue-Dashboard": "1", **headers})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def refused(*arguments):
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["dashboard", *map(str, arguments)])
    assert (2, "") == (result.exit_code, result.stdout)
    [line] = result.stderr.splitlines()
    return line


def test_the_link_opens_the_page_and_the_log_has_neither_token_nor_payload(path):
    with running(path) as (process, link):
        parts = urlsplit(link)
        token = parts.fragment.removeprefix("token=")
        assert ("127.0.0.1", 64) == (parts.hostname, len(token))
        assert 200 == call(link, "GET", "/")[0]
        assert 401 == call(link, "GET", "/api/overview")[0]
        assert 403 == call(link, "GET", "/", Host="evil.example")[0]
        status, headers, _ = call(link, "POST", "/api/session", {"token": token})
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert (200, f"jqueue-{parts.port}") == (status, cookie.partition("=")[0])
        values = json.loads(call(link, "GET", "/api/overview", Cookie=cookie)[2])
        assert ("operator", 1) == (values["role"], values["figures"]["ready"])
        assert b"hunter2" in call(link, "GET", "/api/job/payload?id=one", Cookie=cookie)[2]
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)
        assert (0, ("", "")) == (process.returncode, output)


@pytest.mark.wide
def test_a_token_file_and_tls(path, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operator {TOKEN}\nviewer viewer-token-000000\n")
    tokens.chmod(0o600)
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
        capture_output=True,
    )  # fmt: skip
    assert 0 == made.returncode, made.stderr
    options = ("--host", "0.0.0.0", "--token-file", tokens, "--tls-cert", certificate, "--tls-key", key)
    with running(path, *options) as (_, link):
        reached = link.replace("0.0.0.0", "127.0.0.1")
        assert link.startswith("https://")
        assert "token" not in link
        status, headers, _ = call(reached, "POST", "/api/session", {"token": TOKEN})
        assert (200, True) == (status, "secure" in headers["Set-Cookie"].lower())
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert 200 == call(reached, "GET", "/api/overview", Cookie=cookie)[0]


@pytest.mark.wide
def test_a_port_in_use_is_one_clear_line(path):
    with running(path) as (_, link):
        assert "cannot listen on 127.0.0.1" in refused(path, "--port", str(urlsplit(link).port))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "needs --token-file"),
        (("--host", "192.0.2.1", "--token-file", "TOKENS"), "needs --tls-cert and --tls-key"),
        (("--host", "example.org", "--insecure"), "needs --token-file"),
        (("--tls-cert", "TOKENS"), "give both"),
        (("--tls-cert", "nothing.pem", "--tls-key", "TOKENS"), "there is no file"),
        (("--token-file", "nothing"), "cannot be read"),
    ],
)
def test_options_that_would_show_the_queue_to_strangers_are_refused(path, tmp_path, options, said):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operator {TOKEN}\n")
    tokens.chmod(0o600)
    line = refused(path, *(str(tokens) if option == "TOKENS" else option for option in options))
    assert said in line
    assert TOKEN not in line


def test_a_queue_that_does_not_exist_is_refused(tmp_path):
    assert "there is no queue" in refused(tmp_path / "nothing.json")


def test_a_file_that_is_not_a_queue_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert "not a queue" in refused(tmp_path / "notes.txt")
