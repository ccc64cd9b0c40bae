"""`jqueue metrics URL`: the figures of a queue for Prometheus, once or at each scrape."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

from jqueue import BrokerQueue, LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.sync import SyncQueue
from tests.telemetry.samples import samples_of


@pytest.fixture
def path(tmp_path):
    """A file with 3 jobs, one of them claimed."""
    path = tmp_path / "queue.json"
    with SyncQueue(BrokerQueue(LocalFileSystemStorage(path))) as queue:
        for _ in range(3):
            queue.enqueue("mail", b"SECRET")
        queue.dequeue("mail")
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["metrics", *map(str, arguments)], catch_exceptions=False)


def test_the_figures_are_printed_once_and_no_payload(path):
    result = run(path)
    found = samples_of(result.stdout)
    assert (0, 2, 1) == (
        result.exit_code,
        found["jqueue_jobs", "mail", "ready"],
        found["jqueue_jobs", "mail", "in_progress"],
    )
    assert (3, 1) == (found["jqueue_enqueued_total", "mail"], found["jqueue_wait_seconds_count", "mail"])
    assert "SECRET" not in result.stdout
    assert ("jqueue_commits_total",) not in found  # of this process, which commits nothing


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "there is no queue at"), ("[]", "cannot be read"), ('{"format": 99}', "format")],
)
def test_a_url_without_a_queue_is_one_line_and_status_2(tmp_path, text, message):
    path = tmp_path / "other.json"
    if text:
        path.write_text(text)
    result = run(path)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))


@pytest.mark.parametrize("address", ["9464", "here", "127.0.0.1:", "127.0.0.1:99999", "192.0.2.1:9464"])
def test_an_address_that_cannot_be_listened_on_is_one_line_and_status_2(path, address):
    result = run(path, "--listen", address)
    assert (2, 1) == (result.exit_code, result.stderr.count("\n"))


def test_without_the_extra_the_command_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "jqueue.telemetry.prometheus", raising=False)
    result = run(path)
    assert (2, True) == (result.exit_code, 'pip install "jqueue[metrics]"' in result.stderr)


@pytest.mark.wide
def test_each_scrape_reads_the_queue_until_the_command_is_stopped(path):
    command = [sys.executable, "-m", "jqueue", "metrics", str(path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split()[-1]
            assert 2 == samples_of(get(url))["jqueue_jobs", "mail", "ready"]
            with SyncQueue(BrokerQueue(LocalFileSystemStorage(path))) as queue:
                queue.enqueue("mail", b"")
            assert 3 == samples_of(get(url))["jqueue_jobs", "mail", "ready"]
            os.rename(path, f"{path}.away")
            assert {"jqueue_up": 0, "jqueue_build_info": 1} == {key[0]: v for key, v in samples_of(get(url)).items()}
            os.rename(f"{path}.away", path)
            assert 3 == samples_of(get(url))["jqueue_jobs", "mail", "ready"]
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(url.replace("/metrics", "/"))
        finally:
            process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30)


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()
