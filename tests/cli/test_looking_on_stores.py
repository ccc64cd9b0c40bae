"""Each command that looks, on a real S3 store and on the formats of older programs, with good and with bad input."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

import jqueue
from jqueue.cli.app import app
from jqueue.connect import connect_storage
from tests.cli.hostile import SECRET
from tests.cli.test_looking import LOOKING, OBJECTS

pytestmark = pytest.mark.wide

PREFIX = "looking"


def run(command, url, *arguments):
    given = [command, url, *map(str, [*LOOKING.get(command, []), *arguments])]
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, given, catch_exceptions=False)


def url_of(server, name, secret=None, bucket=None):
    keys = f"{server.access_key}:{quote(secret or server.secret_key)}"
    where = f"{bucket or server.bucket}/{PREFIX}/{name}.json"
    return f"s3://{keys}@{where}?region_name={server.region}&endpoint_url={quote(server.endpoint_url, safe='')}"


async def fill(url):
    async with jqueue.connect_queue(url, jqueue.DirectQueue) as queue:
        await queue.configure(history=86400)
        await queue.enqueue("mail", SECRET.encode(), job_id="dead-1", priority=-1)
        await queue.enqueue("mail", SECRET.encode(), job_id="ready-1")
        [job] = await queue.dequeue("mail")
        await queue.nack(job, error=ValueError("no address"), dead=True)
        await queue.schedule("nightly", "0 3 * * *", "mail")


@pytest.fixture(scope="module")
def good(seaweedfs):
    url = url_of(seaweedfs, "good")
    asyncio.run(fill(url))
    return url


def one_line(result, said):
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n")), result.output
    assert said in result.stderr
    assert SECRET not in result.stderr


@pytest.mark.parametrize("command", LOOKING)
def test_a_command_looks_at_a_queue_in_s3(good, command):
    result = run(command, good)
    assert (0, "") == (result.exit_code, result.stderr)
    assert SECRET not in result.stdout
    as_json = run(command, good, "--json").stdout
    assert (
        [json.loads(as_json)]
        if command in OBJECTS
        else [json.loads(line) for line in as_json.splitlines()] or (command == "workers")
    )


@pytest.mark.parametrize("command", LOOKING)
def test_a_missing_object_or_bucket_is_a_one_line_error(seaweedfs, command):
    one_line(run(command, url_of(seaweedfs, "missing")), "there is no queue at s3://")
    one_line(run(command, url_of(seaweedfs, "good", bucket="no-such-bucket")), "bucket")


@pytest.mark.parametrize("command", LOOKING)
def test_wrong_keys_are_a_one_line_error(seaweedfs, command):
    one_line(run(command, url_of(seaweedfs, "good", secret=SECRET)), "403")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"no queue, {SECRET}".encode(), "is not a queue"),
        (b'{"format": 3, "jobs": {}}', "has format 3, and this version of jqueue reads only format 2"),
    ],
    ids=["not a queue", "newer"],
)
def test_an_object_that_is_not_a_queue_of_ours_is_a_one_line_error(seaweedfs, content, said):
    name = f"other-{len(content)}"

    async def put():
        storage: Any = connect_storage(url_of(seaweedfs, name))
        await storage.write(content)
        await storage.release()

    asyncio.run(put())
    for command in LOOKING:
        one_line(run(command, url_of(seaweedfs, name)), said)


def test_jobs_are_exported_from_a_file_and_imported_into_s3(seaweedfs, tmp_path):
    source, dest = str(tmp_path / "queue.json"), url_of(seaweedfs, "imported")
    asyncio.run(fill(source))
    exported = tmp_path / "jobs.jsonl"
    assert 0 == run("export", source, "--output", exported).exit_code
    assert "2 jobs added\n" == run("import", dest, exported, "--create").stdout
    assert (
        "0 jobs added\n2 jobs left alone: jobs with these ids are in the queue\n"
        == run("import", dest, exported).stdout
    )
    assert sorted(exported.read_text().splitlines()) == sorted(run("export", dest).stdout.splitlines())


@pytest.fixture(
    params=[
        "vsqs://{}/queue?fsync=false",
        "dirq://{}/queue?fsync=false&kind=simple",
        "textq://{}/queue.tq?fsync=false",
    ]
)
def older(request, tmp_path):
    url = request.param.format(tmp_path)

    async def add():
        async with jqueue.connect(url) as queue:
            await queue.enqueue("mail", SECRET.encode())
            await queue.enqueue("mail", SECRET.encode())
            await queue.dequeue("mail")

    asyncio.run(add())
    return url


def test_jobs_of_older_formats_are_listed_and_shown(older):
    result = run("ls", older, "--json")
    assert (0, "") == (result.exit_code, result.stderr)
    jobs = [json.loads(line) for line in result.stdout.splitlines()]
    assert ["in_progress", "ready"] == sorted(job["status"] for job in jobs)
    shown = CliRunner().invoke(app, ["show", older, jobs[0]["id"], "--payload", "--json"])
    assert "aHVudGVyMg==" == json.loads(shown.stdout)["payload"]
    for command in ("stats", "workers"):
        assert (0, "") == ((ran := run(command, older)).exit_code, ran.stderr)


@pytest.mark.parametrize("command", ["history", "at", "schedules"])
def test_what_an_older_format_lacks_is_a_one_line_error(older, command):
    one_line(run(command, older), "the format of this queue has no ")
