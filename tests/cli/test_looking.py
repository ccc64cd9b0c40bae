"""The commands that look: `ls`, `show`, `stats` and `history`."""

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from base64 import b64decode

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.header import WorkerRecord
from jqueue.domain.job import Progress
from jqueue.domain.operations.operator import Attend
from jqueue.operations import Enqueue, Heartbeat, RecordStep
from jqueue.runtime.system import process_name
from jqueue.testing import FakeClock
from jqueue.testing.faults import FaultyObjects
from tests.cli.commands import PATIENCE, SECRET, Blocking, deep, refused, rows, run, values
from tests.cli.hostile import HOSTILE, fill


@pytest.fixture
def filled(path):
    """A queue with a job in each phase."""
    return fill(path)


def heads(jobs):
    return [job["id"].partition("-")[0] for job in jobs]


# Jobs


def test_jobs_are_listed_with_everything_but_their_payloads(filled):
    jobs = rows("ls", filled)
    assert ["running", "ready", "last", "later", "dead", "done"] == heads(jobs)
    assert ["in_progress", "ready", "ready", "scheduled", "dead", "completed"] == [job["status"] for job in jobs]
    running, dead = jobs[0], jobs[4]
    assert (f"holder-{HOSTILE}", HOSTILE, 1, "TOGETHER", 7) == tuple(
        running[name] for name in ("holder", "entrypoint", "attempts", "concurrency_key", "payload_bytes")
    )
    assert (f"ValueError: {HOSTILE}", 1, None) == tuple(dead[name] for name in ("error", "max_attempts", "holder"))
    assert jobs[3]["seconds"] < 0 < jobs[0]["seconds"]
    titles, *lines = run("ls", filled).stdout.splitlines()
    assert ["id", "entrypoint", "status", "for", "attempts", "holder", "or", "error"] == titles.split()
    assert (6, True) == (len(lines), "ValueError: x" in lines[4])
    assert "no job matches\n" == run("ls", filled, "--entrypoint", "absent").stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--status", "running,dead"], ["running", "dead"]),
        (["--holder", f"holder-{HOSTILE}"], ["running"]),
        (["--error", "valueerror"], ["dead"]),
        (["--id", "l"], ["last", "later"]),
        (["--sort", "priority", "--reverse", "--status", "running,dead,completed"], ["done", "dead", "running"]),
    ],
)
def test_jobs_are_chosen_and_sorted(filled, options, expected):
    assert expected == heads(rows("ls", filled, *options))


@pytest.mark.parametrize("options", [[], ["--sort", "size", "--reverse"]])
def test_a_limited_list_of_a_deep_queue_has_the_first_jobs_of_the_whole_list(path, options):
    deep(path, mail=40, report=30)
    Blocking(path).enqueue("mail", b"large", priority=-1)
    whole = rows("ls", path, *options)
    assert 71 == len(whole)
    for limit in (1, 50, 1000):
        assert whole[:limit] == [
            {**job, "seconds": whole[number]["seconds"]}
            for number, job in enumerate(rows("ls", path, *options, "--limit", limit))
        ]
    assert 1 + 2 <= len(run("ls", path, *options, "--limit", "2").stdout.splitlines()) <= 1 + 3


@pytest.mark.parametrize("options", [[], ["--sort", "id"]])
def test_a_list_that_is_written_piece_by_piece_has_every_job(path, queue, options):
    queue.enqueue_many([Enqueue("mail")] * 1001)
    assert 1001 == len({job["id"] for job in rows("ls", path, *options)})
    assert 1 + 1001 == len(run("ls", path, *options).stdout.splitlines())


def test_a_job_is_shown_with_its_life(filled):
    shown = run("show", filled, "dead").stdout
    assert re.search(r"\nstatus +dead for .*\nattempts +1, 1 failed\nmost failures +1\n", shown)
    assert re.search(r"\nevents .*  enqueue\n  .* dequeue 1  by .*, waited .*\n  .* nack 1 +dead: ValueError: x", shown)
    assert re.search(r"\nlast error +ValueError: x(.*\n )+.*\ntraceback +mail.py:17 in x", shown)
    job = values("show", filled, "dead")
    assert (f"dead-{HOSTILE}", "dead", 1, 7) == tuple(
        job[name] for name in ("id", "status", "attempts", "payload_bytes")
    )
    assert ["enqueue", "dequeue", "nack"] == [event["event"] for event in job["events"]]
    assert "payload" not in job
    # A claim counts as a failure until it is acked or given back. That is not what users call a failure.
    assert [0, 0, 1] == [values("show", filled, each)["failures"] for each in ("running", "done", "dead")]


def test_the_steps_of_a_job_are_shown_without_their_results_and_kept_by_a_redrive_that_is_not_fresh(path, queue):
    queue.enqueue("mail", b"", job_id="one")
    [job] = queue.dequeue()
    queue.apply_each(RecordStep(job, "charge", 1, SECRET), RecordStep(job, "charge", 2, SECRET))
    assert re.search(r"\nsteps \(UTC\) +\d{4}-.*\d  charge\n +\d{4}-.*  charge, 2\n", run("show", path, "one").stdout)
    steps = values("show", path, "one")["steps"]
    assert [("charge", 1), ("charge", 2)] == [(step["name"], step["occurrence"]) for step in steps]
    assert steps[0]["at"] >= job.created_at.isoformat()
    for option, left in (("--yes", 2), ("--fresh", 0)):
        queue.nack(job, dead=True)
        assert "is queued again" in run("redrive", path, "one", option).stdout
        [job] = queue.dequeue()
        assert left == len(job.steps)


def test_the_progress_of_a_job_is_shown(path, queue):
    queue.enqueue("mail", b"", job_id="one")
    [job] = queue.dequeue(holder="me")
    queue.apply_each(Heartbeat((job,), progress=(Progress(1234, 9999, "page 3\x1b[2J"),)))
    progress = r"1,234 of 9,999, page 3\x1b[2J"
    assert re.search(rf"\nprogress +{re.escape(progress)}\n", run("show", path, "one").stdout)
    assert f"{progress}, me" in run("ls", path, COLUMNS="200").stdout
    shown = values("show", path, "one")["progress"]
    assert (1234, 9999, "page 3\x1b[2J") == (shown["done"], shown["total"], shown["text"])
    assert [shown] == [each["progress"] for each in rows("ls", path)]


def test_a_payload_and_a_result_are_shown_on_request_only(path, queue):
    queue.enqueue("mail", b"a\x1b[2J\xff", job_id="bytes")
    queue.enqueue("mail", '{\n\t"a": \u202e1}'.encode(), job_id="text", keep_result=60)
    assert "payload" not in values("show", path, "bytes")
    assert "\npayload       a\\x1b[2J\\xff\n" in run("show", path, "bytes", "--payload").stdout
    assert '\npayload       {\n                      "a": \\u202e1}\n' in run("show", path, "text", "--payload").stdout
    queue.ack(queue.dequeue("mail", batch_size=2)[1], result={"to": "ada"})
    assert re.search(r'\nresult +{"to": "ada"}\n', run("show", path, "text", "--payload").stdout)


def test_jobs_are_found_by_their_payloads_which_are_listed_on_request_only(path, queue):
    queue.enqueue("mail", b'{"to": "ada@example.org"}', job_id="ada")
    queue.enqueue("mail", "grüße\n\x1b[2J".encode() + b"\xff" + b"." * 100, job_id="bytes")
    assert ["ada"] == [job["id"] for job in rows("ls", path, "--payload", "ada@")]
    assert ["bytes"] == [job["id"] for job in rows("ls", path, "--payload", "grüße")]
    assert {"cancelled": "removed"}.items() <= values("cancel", path, "ada").items()
    assert 1 == values("cancel", path, "--payload", "grüße", "--dry-run")["matched"]
    queue.enqueue("mail", bytes(range(200)) * 1000, job_id="large")
    assert "payload" not in rows("ls", path)[0]
    shown = run("ls", path, "--payloads").stdout
    assert r" grüße \x1b[2J\xff...." in shown
    assert "....…\n" in shown.replace(" ", "")
    assert "(195.3 KiB in an object)" in shown
    [listed, large] = rows("ls", path, "--payloads")
    assert (b".", None) == (b64decode(listed["payload"])[-1:], large["payload"])
    assert "--payload takes text in UTF-8" in refused("ls", path, "--payload", "\udcff")


def test_a_text_is_found_as_json_escapes_it_and_payloads_that_are_not_searched_are_told(path, queue):
    value = {"to": 'Jürgen "J"'}
    for ascii_only in (True, False):
        queue.enqueue("mail", json.dumps(value, ensure_ascii=ascii_only).encode(), job_id=f"ascii-{ascii_only}")
    for text, found in (("Jürgen", 2), ('Jürgen "J"', 2), (r"J\u00fcrgen", 1), ("jürgen", 0)):
        assert found == len(rows("ls", path, "--payload", text)), text
    queue.enqueue("mail", bytes(range(200)) * 1000)
    for command in ("ls", "ls --json", "export", "cancel --dry-run"):
        assert "payloads in objects of their own were not" in run(*command.split(), path, "--payload", "J").stderr
    assert not run("ls", path, "--entrypoint", "mail").stderr


# Figures


def test_stats_count_the_jobs_of_each_entrypoint(path, queue):
    for _ in range(3):
        queue.enqueue("mail", b"")
    queue.enqueue("report", b"", delay=60)
    queue.dequeue("mail")
    queue.kill("dead", entrypoint="boom")
    queue.pause("boom")
    queue.limit("fetch", running=5, rate=100, per=60)
    queue.schedule("nightly", "30 2 * * *", "clean", timezone="Europe/Berlin")
    figures = values("stats", path)
    states = ("ready", "scheduled", "in_progress", "dead", "completed")
    assert (2, 1, 1, 1, 0) == tuple(figures[state] for state in states)
    assert (str(path), path.stat().st_size, []) == (figures["queue"], figures["size"], figures["warnings"])
    assert (5, 2) == (figures["totals"]["enqueued"], figures["totals"]["claimed"])
    assert figures["rates"]["last_hour"]["enqueued"] == pytest.approx(5 / 3600)
    shown = " ".join(run("stats", path).stdout.split())
    for part in ("boom (paused) 0 0 0 1 0", "mail 2 0 1 0 0", "all 2 1 1 1 0", "fetch 0 of 5 100 in 60 s"):
        assert part in shown
    assert "nightly clean 30 2 * * *" in shown
    assert "1 0 s (no record of a worker)" in shown
    [holder] = figures["workers_seen"]
    assert (1, False, None) == tuple(holder[name] for name in ("jobs", "worker", "entrypoints"))
    assert ["nightly"] == [entry["name"] for entry in figures["schedules"]]
    queue.pause("mail")
    assert "mail: 2 ready jobs wait: paused" in run("stats", path).stdout


def test_show_tells_all_reasons_why_a_job_waits_and_who_holds_its_key(path, queue):
    holder = queue.enqueue("mail", b"", concurrency_key="ada")
    queue.dequeue("mail")
    for number in range(2):
        queue.enqueue("mail", b"", job_id=f"before{number}")
    queue.enqueue("mail", b"", job_id="waits", concurrency_key="ada")
    queue.enqueue("mail", b"", job_id="later", delay=3600)
    queue.limit("mail", running=1, rate=1, per=86400)
    queue.pause("mail")
    paused, running, key, before = values("show", path, "waits")["why_waiting"]
    assert ("paused", "at its limit: 1 of 1 in progress") == (paused, running)
    assert key.startswith(f"its concurrency key is taken: 1 of 1 in progress: job {holder.id} of ")
    assert "2 ready jobs of this entrypoint come before it" == before
    assert "why it waits paused at its limit" in " ".join(run("show", path, "waits").stdout.split())
    assert "scheduled: ready in 59 min" == values("show", path, "later")["why_waiting"][0]
    assert [] == values("show", path, holder.id)["why_waiting"]
    queue.limit("mail", key_rate=1, key_per=60)
    queue.enqueue("mail", b"", job_id="rated", priority=-1, fair_key="eve")
    queue.resume("mail")
    [rated] = queue.dequeue("mail")
    assert "rated" == rated.id
    queue.enqueue("mail", b"", job_id="eve", fair_key="eve")
    assert values("show", path, "eve")["why_waiting"][0].startswith("its key is at its limit: 1 claim within 60 s, the")
    queue.ack(rated)
    queue.cancel("eve")
    queue.limit("mail", running=None, rate=None, per=None)
    assert ["nothing holds it back: it is next"] == values("show", path, "before0")["why_waiting"]
    record = WorkerRecord(name="w", at=time.time(), beat=60, slots=1, entrypoints=("mail",))
    queue.apply(Attend({"run": record}))
    queue.dequeue("mail", holder=record.holder)
    assert ["no free slot: 1 of 1 taken at 1 worker with the handler"] == values("show", path, "before1")["why_waiting"]


# The past


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], 12),
        (["--event", "nack,ack", "--event", "start"], 3),
        (["dead-"], 3),
    ],
)
def test_events_are_filtered_and_the_newest_is_first(filled, options, expected):
    events = rows("history", filled, *options)
    assert expected == len(events)
    assert sorted(events, key=lambda event: -event["number"]) == events
    shown = run("history", filled, *options).stdout.splitlines()
    assert (expected + 1 if expected else 1) == len(shown)


def test_a_queue_without_a_history_says_how_to_switch_it_on(path, queue):
    off = "this queue keeps no history: `jqueue configure URL --history 30d` switches it on, from then on"
    assert off == refused("history", path)


# Live


def read_until(descriptor, part, seen=b""):
    """Return the output of the terminal up to now, once it has a part."""
    end = time.monotonic() + PATIENCE
    while part not in seen and time.monotonic() < end:
        ready, _, _ = select.select([descriptor], [], [], 1)
        try:
            seen += os.read(descriptor, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
    assert part in seen
    return seen


@pytest.mark.wide
def test_a_live_screen_follows_the_queue_and_a_signal_ends_it_with_a_clean_terminal(filled):
    keyboard, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    left_out = ("COLUMNS", "LINES", "FORCE_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    process = subprocess.Popen(
        [sys.executable, "-m", "jqueue", "ls", "--watch", "--interval", "0.2", filled],
        stdin=terminal, stdout=terminal, stderr=terminal, env={**environment, "TERM": "xterm", "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(terminal)
    try:
        seen = read_until(keyboard, b"holder-x")
        Blocking(filled).enqueue("one-more-entrypoint")
        seen = read_until(keyboard, b"one-more", seen)
        filled.write_text("damaged")
        seen = read_until(keyboard, b"cannot be read", seen)
        process.send_signal(signal.SIGTERM)
        seen = read_until(keyboard, b"\x1b[?25h", seen)
        assert 0 == process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
    assert b"\x1b[?1049l" in seen
    assert b"Traceback" not in seen
    assert b"\x1b[2J\x1b]0;" not in seen


def test_the_history_names_the_user_of_a_command_and_not_the_worker_as_the_one_who_asked(path, queue):
    queue.configure(history=3600)
    queue.enqueue("mail", b"", job_id="job")
    queue.dequeue("mail", holder="worker-1")
    run("cancel", path, "job", "--running", "--yes", LOGNAME="alice")
    [event] = rows("history", path, "--event", "cancel")
    host = process_name().rpartition(":")[0]
    assert ("worker-1", f"alice@{host}") == (event["holder"], event["asked_by"])
    shown = run("history", path, "--event", "cancel", COLUMNS="300").stdout
    assert f"in progress, claimed by worker-1, asked for by alice@{host}" in shown


def test_stats_since_a_time_count_the_failures_and_times_of_that_time_by_entrypoint(url_of):
    clock = FakeClock()
    storage = FaultyObjects(InMemoryStorage(clock=clock))

    async def fail(queue, entrypoint, times, ran):
        for _ in range(times):
            await queue.enqueue(entrypoint, b"")
            [job] = await queue.dequeue(entrypoint)
            clock.advance(ran)
            await queue.nack(job, error="no", dead=True)

    async def work():
        async with DirectQueue(storage, clock=clock) as queue:
            await queue.configure(history=86400)
            await fail(queue, "mail", 5, 100)
            await fail(queue, "sum", 1, 100)
            clock.advance(7200)
            await fail(queue, "mail", 1, 0.01)
            await fail(queue, "sum", 3, 0.01)

    asyncio.run(work())
    url = url_of(storage)
    assert ["mail", "sum"] == list(values("stats", url, "--sort", "failed")["entrypoints"])
    figures = values("stats", url, "--since", "1h", "--sort", "failed")
    parts = figures["entrypoints"].items()
    found = [(name, each["totals"]["failed"], each["run_seconds"]["p95"]) for name, each in parts]
    assert [("sum", 3, 0.016), ("mail", 1, 0.016)] == found
    assert (4, 4, 4) == tuple(figures["totals"][kind] for kind in ("enqueued", "claimed", "failed"))
    assert re.search(r"(?m)^sum +3 +3 ", run("stats", url, "--since", "1h").stdout)
    assert "the history begins at" in run("stats", url, "--since", "2d").stderr


def test_stats_since_a_time_without_a_history_come_from_the_counters_of_an_hour(path, queue):
    queue.kill("a", "b", entrypoint="mail")
    figures = values("stats", path, "--since", "1h")
    assert (2, 0) == (figures["totals"]["failed"], figures["run_seconds"]["count"])
    assert "1m, 1h or 1d" in refused("stats", path, "--since", "2h")


def test_stats_say_what_the_object_is_made_of(path, queue):
    queue.enqueue("mail", b"x" * 30_000)
    queue.kill("done")
    queue.ack(queue.dequeue("mail")[0])
    queue.enqueue("mail", b"y" * 20_000, unique_key="k" * 300)
    figures = values("stats", path)
    assert path.stat().st_size == figures["size"] == sum(figures["bytes"].values())
    assert ["dead jobs", "ready jobs"] == list(figures["bytes"])[:2]
    assert {"the rest", "ids of done jobs", "writers and workers", "limits and counters"} <= figures["bytes"].keys()
    assert re.search(r"(?m)^ready jobs +26\.\d KiB", run("stats", path).stdout)
