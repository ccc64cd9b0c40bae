"""`jqueue enqueue` and `jqueue init`: every option of a job is a flag, and a payload of any size is taken."""

import asyncio
import os
import threading
from datetime import UTC, datetime, timedelta

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.enqueue import Flags
from jqueue.cli.job_flags import flag_of
from jqueue.domain.job_options import ALL_OPTIONS, options_of
from tests.cli.commands import Blocking, refused, run, text, values


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def queue(path):
    run("init", path)
    return Blocking(path)


GIVEN = {
    "priority": ("-5", -5),
    "job_id": ("mine", "mine"),
    "delay": ("15m", None),
    "run_at": ("2030-01-02T03:04", datetime(2030, 1, 2, 3, 4, tzinfo=UTC)),
    "expires_at": ("2030-01-02T03:04+01:00", datetime(2030, 1, 2, 2, 4, tzinfo=UTC)),
    "unique_for": ("60", 60),
    "on_conflict": ("raise", None),
    "unique_key": ("k", "k"),
    "headers": ("a=b=c", {"a": "b=c"}),
    "max_attempts": ("3", 3),
    "concurrency_key": ("c", "c"),
    "concurrency_limit": ("2", 2),
    "keep_result": ("2h", 7200),
}
"""For each option of a job, the text of its flag, and the value that the job then keeps."""


def test_every_option_of_a_job_is_a_flag():
    assert ALL_OPTIONS.keys() == GIVEN.keys() == options_of(Flags).keys()


@pytest.mark.parametrize("name", GIVEN)
def test_a_flag_sets_the_option_of_the_job(path, queue, name):
    option = ALL_OPTIONS[name]
    typed, kept = GIVEN[name]
    needed = [] if option.needs is None else [flag_of(option.needs, ALL_OPTIONS[option.needs]), "x"]
    job_id = text("enqueue", path, "mail", f"{flag_of(name, option)}={typed}", *needed)
    job = queue.jobs()[job_id]
    if option.field is not None:
        assert kept == getattr(job, option.field)
    elif name == "delay":
        assert timedelta(minutes=15) == job.run_at - job.created_at


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--delay", "tomorrow"], "--delay takes seconds, or a number with a unit: 60, 90s, 15m, 12h, 30d or 2w"),
        (["--delay=-1"], "--delay takes seconds"),
        (["--run-at", "noon"], "--run-at takes a time such as 2026-11-23T08:00 (in UTC)"),
        (["--header", "no-text"], "--header takes NAME=TEXT, and may be repeated"),
        (["--delay", "1", "--run-at", "2030-01-01"], "give either delay or run_at, not both"),
        (["--on-conflict", "ask"], "on_conflict must be one of"),
        (["--max-attempts", "0"], "max_attempts must be from 1"),
        (["--file", "absent"], "the file of the payload cannot be read: No such file or directory"),
        (["--file", "absent", "--header", "a=b", "text"], "give the payload as an argument or with --file, not both"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_line(path, queue, flags, said):
    assert refused("enqueue", path, "mail", *flags).startswith(said)
    assert {} == queue.jobs()


@pytest.mark.parametrize("size", [0, 5, 70_000, 3_000_000])
@pytest.mark.parametrize("source", ["stdin", "file", "file on stdin"])
def test_a_payload_of_any_size_is_taken_from_a_file_or_the_standard_input(path, queue, tmp_path, source, size):
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    (tmp_path / "payload").write_bytes(content)
    arguments = {"stdin": ["-"], "file": ["--file", tmp_path / "payload"], "file on stdin": ["--file", "-"]}[source]
    stdin = None if source == "file" else content
    job_id = text("enqueue", path, "mail", *arguments, stdin=stdin)

    async def read(opened):
        [job] = (await opened.read_state()).jobs
        return b"".join([piece async for piece in opened.open_payload(job)])

    assert content == asyncio.run(read(DirectQueue(LocalFileSystemStorage(path))))
    assert (size > 65_536) is (queue.jobs()[job_id].payload_object is not None)


def test_a_payload_in_the_arguments_is_text(path, queue):
    text("enqueue", path, "mail", '{"to": "ü"}')
    [job] = queue.jobs().values()
    assert '{"to": "ü"}'.encode() == job.payload


@pytest.mark.parametrize("flags", [["--job-id", "one"], ["--unique-key", "k"]])
def test_a_job_that_is_there_already_is_named_and_not_added_again(path, queue, flags):
    first = values("enqueue", path, "mail", *flags)
    again = values("enqueue", path, "mail", *flags)
    assert (True, False) == (first["added"], again["added"])
    assert first["id"] == again["id"]
    result = run("enqueue", path, "mail", *flags)
    assert (0, f"{first['id']}\n") == (result.exit_code, result.stdout)
    assert result.stderr.startswith("jqueue: no job was added: ")
    assert 1 == len(queue.jobs())


def test_a_job_that_has_finished_is_not_added_again(path, queue):
    text("enqueue", path, "mail", "--job-id", "one")
    queue.ack(queue.dequeue()[0].claim)
    assert "has finished already" in run("enqueue", path, "mail", "--job-id", "one").stderr
    assert {} == queue.jobs()


def test_a_taken_key_is_an_error_if_that_was_asked_for(path, queue):
    text("enqueue", path, "mail", "--unique-key", "k")
    assert "Unique key 'k' is taken" in refused("enqueue", path, "mail", "--unique-key", "k", "--on-conflict", "raise")


def test_the_first_enqueue_creates_the_queue_and_says_so_and_a_folder_only_on_request(path):
    created = run("enqueue", path, "mail")
    assert (0, f"jqueue: there was no queue at {path}: this job created it\n") == (created.exit_code, created.stderr)
    assert [created.stdout.strip()] == list(Blocking(path).jobs())
    text("enqueue", path, "mail")  # nothing to say
    missing = path.parent / "folder" / "queue.json"
    assert "does not exist; correct the path, or add --create" in refused("enqueue", missing, "mail")
    assert not missing.parent.exists()
    assert 0 == run("enqueue", missing, "mail", "--create").exit_code
    assert 1 == len(Blocking(missing).jobs())


def test_init_creates_an_empty_queue_and_leaves_an_existing_one_alone(path):
    assert values("init", path) == {"queue": str(path), "created": True}
    Blocking(path).enqueue("mail", b"")
    before = path.read_bytes()
    assert f"there is a queue at {path} already: it was left as it is" == refused("init", path)
    assert before == path.read_bytes()


def test_an_id_from_a_blob_cannot_command_the_terminal(path, queue):
    text("enqueue", path, "mail", "--job-id", "innocent", "--unique-key", "k")
    path.write_text(path.read_text().replace("innocent", r"\u001b[2Jevil"))
    result = run("enqueue", path, "mail", "--unique-key", "k")
    assert r"\x1b[2Jevil" in result.stdout
    assert "\x1b" not in result.output


def test_a_payload_is_read_once_from_a_pipe_that_is_named_as_a_file(path, queue, tmp_path):
    """The shell writes `--file <(command)` so: the pipe cannot be read twice."""
    content = bytes(range(256)) * 1000
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
    writer.start()
    job_id = text("enqueue", path, "mail", "--file", tmp_path / "pipe")
    writer.join()
    assert len(content) == queue.jobs()[job_id].payload_object.size
