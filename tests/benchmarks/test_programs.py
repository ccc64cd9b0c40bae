"""Running benchmarks: a failure stops no other program, the proxy adds latency, and each jqueue program runs."""

import asyncio
import os
import select
import sys
import time
from pathlib import Path

import pytest

from benchmarks.contest import Contestant, Row, against, alone, ours
from benchmarks.environments import Environment, EnvironmentUnavailableError
from benchmarks.figures import Target
from benchmarks.latency_proxy import LatencyProxy
from benchmarks.rows import all_rows
from benchmarks.runner import ProgramFailedError, run_program, run_row
from benchmarks.servers import Access

pytestmark = pytest.mark.wide

HERE = Environment("here", Path(sys.executable), {"python": "0"})


def test_a_failing_or_missing_contestant_does_not_stop_the_others(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys\n"
        "given = json.loads(sys.argv[1])\n"
        "if given.get('fail'): raise SystemExit('this is why')\n"
        "print(json.dumps({'x': given['value']}))\n"
    )

    def contestant(name, environment="here", **given):
        return Contestant(name, environment, program, given)

    def find(name):
        if name == "absent":
            raise EnvironmentUnavailableError("absent could not be installed")
        return HERE

    row = Row(
        "made",
        "up",
        (contestant("jqueue", value=4), contestant("fails", fail=True), contestant("gone", "absent", value=1)),
        (against("x", "fails", None, "x"), against("x", "gone", None, "x"), alone("x", Target(">=", 4), "x")),
    )
    told: list[str] = []
    advanced: list[int] = []
    result = run_row(row, 2, told.append, lambda: advanced.append(1), find)
    assert [{"x": 4}, {"x": 4}] == result.records["jqueue"].runs
    reasons = ["fails: failed with status 1: this is why", "gone: absent could not be installed", ""]
    assert reasons == [outcome.reason for outcome in result.outcomes]
    assert [None, None, True] == [outcome.met for outcome in result.outcomes]
    assert 6 == len(advanced)
    assert [1, 2] == [int(line.split("run ")[1][0]) for line in told if "jqueue, run" in line]


def test_a_program_that_exceeds_its_timeout_is_ended_with_its_children(tmp_path):
    program, pipe = tmp_path / "program.py", tmp_path / "pipe"
    os.mkfifo(pipe)
    program.write_text(
        "import subprocess, sys, time\n"
        f"held = open({str(pipe)!r}, 'wb', buffering=0)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], pass_fds=[held.fileno()])\n"
        "held.write(b'both have it')\n"
        "time.sleep(600)\n"
    )
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(ProgramFailedError, match="took longer"):
            run_program(Contestant("slow", "here", program, timeout=2), sys.executable, Access())
        os.set_blocking(reading, True)
        assert b"both have it" == os.read(reading, 100)
        assert select.select([reading], [], [], 30)[0], "a process still holds the pipe"
        assert b"" == os.read(reading, 100)
    finally:
        os.close(reading)


# The proxy that adds latency


async def test_the_proxy_adds_its_delay_each_way_and_keeps_the_order():
    delay = 0.05
    pieces = [os.urandom(size) for size in (1, 100_000, 10, 1_000_000, 3)]
    sent = b"".join(pieces)

    async def echo(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.write(b"the end")
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        with LatencyProxy("127.0.0.1", server.sockets[0].getsockname()[1], delay) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            start = time.monotonic()
            for piece in pieces:
                writer.write(piece)
            first = await reader.readexactly(1)
            elapsed = time.monotonic() - start
            assert sent == first + await reader.readexactly(len(sent) - 1)
            writer.write_eof()
            assert b"the end" == await reader.read()
            writer.close()
            await writer.wait_closed()
    assert elapsed >= 2 * delay


async def test_a_connection_to_a_closed_server_ends():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with LatencyProxy("127.0.0.1", port, 0.001) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionError):
            assert b"" == await reader.read()
            raise ConnectionError("it may also end without an error")
        writer.close()


# The programs of jqueue, with small parameters, in this environment

BRIEF = {"in_flight": 4, "seconds": 0.05, "warm_seconds": 0, "payload_bytes": 64}
FORMATS = {"jobs": 20, "in_flight": 4, "payload_bytes": 64}
PROGRAMS_RUN = [
    ("depth", {**BRIEF, "storage": "memory", "depth": 5}, "operations_per_second"),
    ("depth", {**BRIEF, "storage": "file", "depth": 5, "limit": True}, "limit_operations_per_second"),
    ("short", {**BRIEF, "storage": "file", "depth": 5, "turns": 2}, "operations_per_second_without_segments"),
    ("phases", {"storage": "file", "jobs": 20, "in_flight": 4, "payload_bytes": 64}, "jobs_per_second"),
    ("worker", {"storage": "file", "jobs": 20, "warm_jobs": 5, "in_flight": 4, "payload_bytes": 64}, "jobs_per_second"),
    ("commits", {**BRIEF, "depth": 3}, "bare_commits_per_second"),
    ("direct", {**BRIEF, "depth": 5}, "operations_per_second"),
    ("memory", {"jobs": 500, "payload_bytes": 64, "traced": True}, "bytes_per_job"),
    ("memory", {"jobs": 500, "payload_bytes": 64, "traced": False}, "bytes_per_job"),
    ("fair", {**BRIEF, "storage": "file", "processes": 2, "seconds": 0.3}, "operations_per_second"),
    ("contention", {"seeds": 1, "trials": [["PATIENCE", 0.0, "4 writers, 1 ms", "failed_per_commit"]]}, "PATIENCE"),
    ("stalls", {**BRIEF, "depth": 20, "repeats": 1}, "work_longest"),
    ("formats", {**FORMATS, "url": "vsqs://{folder}/queue", "headers": True}, "jobs_per_second"),
    ("formats", {**FORMATS, "url": "vsqs://{folder}/queue?fsync=false", "headers": False}, "jobs_per_second"),
    ("deep", {"storage": "file", "depth": 20, "in_flight": 3, "seconds": 0.1, "payload_bytes": 64}, "claim_ms"),
    ("bulk", {"storage": "file", "rows": 20, "payload_bytes": 64}, "rows_per_second"),
]


@pytest.mark.parametrize(("program", "given", "figure"), PROGRAMS_RUN)
def test_a_jqueue_program_runs(program, given, figure):
    found = run_program(ours(program, given, timeout=60), sys.executable, Access())
    assert figure in found
    assert found.get("errors", 0) == 0


ON_S3 = [
    ("worker", {"jobs": 20, "warm_jobs": 5, "in_flight": 4, "payload_bytes": 64}, "jobs_per_second"),
    ("depth", {**BRIEF, "depth": 5, "round_trip": True}, "round_trip_seconds"),
    ("idle", {"samples": 1, "other_process": False, "poll_interval": 0.1}, "round_trips"),
    ("idle", {"samples": 1, "other_process": True, "poll_interval": 0.1}, "enqueue_milliseconds"),
]


@pytest.mark.parametrize(("program", "given", "figure"), ON_S3)
def test_a_jqueue_program_runs_on_an_object_store(program, given, figure, seaweedfs, request):
    place = {
        "storage": "s3",
        "url": seaweedfs.endpoint_url,
        "bucket": seaweedfs.bucket,
        "region": seaweedfs.region,
        "key": f"benchmarks-{abs(hash(request.node.name))}",
    }
    keys = {"AWS_ACCESS_KEY_ID": seaweedfs.access_key, "AWS_SECRET_ACCESS_KEY": seaweedfs.secret_key}
    found = run_program(ours(program, given, timeout=60), sys.executable, Access(place, keys))
    assert found[figure] > 0


SMALL = {"rows": 20, "payload_bytes": 64, "batch": 10, "batch_jobs": 5, "standing": 5, "writers": 1, "rounds": 1}
DEEP = {"storage": "file", "payload_bytes": 64, "rows": 40, "warm_rows": 4}
ON_SPARK = [
    ("pipeline", {"storage": "file", **SMALL}, "contended_seconds"),
    (
        "deep_pipeline",
        {**DEEP, "part": "enqueue", "few_rows": 4, "in_flight": 3, "seconds": 0.1, "short": 10},
        "worker_per_second",
    ),
    ("deep_pipeline", {**DEEP, "part": "commit", "writers": 1, "commits": 2}, "commit_ms"),
    ("deep_pipeline", {**DEEP, "part": "batch"}, "in_arrow_per_second"),
    ("deep_pipeline", {**DEEP, "part": "stream", "batch": 20}, "streamed_per_second"),
    ("deep_pipeline", {**DEEP, "part": "snapshot"}, "count_seconds"),
    ("deep_pipeline", {**DEEP, "part": "archive"}, "empty_archive_seconds"),
]


@pytest.mark.full
@pytest.mark.parametrize(("program", "given", "figure"), ON_SPARK)
def test_a_jqueue_program_runs_on_spark(program, given, figure):
    assert run_program(ours(program, given, timeout=300), sys.executable, Access())[figure] > 0


@pytest.mark.parametrize("row", all_rows(), ids=lambda row: f"{row.name}-{row.title}".replace(" ", "_"))
def test_every_jqueue_program_of_a_row_is_run_in_this_file(row):
    tried = {program for program, _, _ in (*PROGRAMS_RUN, *ON_S3, *ON_SPARK)}
    assert {each.program.stem for each in row.contestants if not each.is_peer} <= tried
