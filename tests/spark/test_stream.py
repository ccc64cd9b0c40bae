"""The streaming source, called as Spark calls it: each job is in one batch, and acked by the claim of the next."""

import logging
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from jqueue.domain.errors import InvalidJobError, InvalidURLError, JQueueError
from jqueue.domain.segments import JobFailure
from jqueue.operations import Enqueue
from jqueue.spark import end_batch
from tests.spark.spark_calls import call, enqueue, fill_segments, jobs_of, sent, version_of
from tests.spark.step_stores import Fault, told
from tests.spark.streams import KilledError, Stream, query_source

ALL, TEN = ReadAllAvailable(), ReadMaxRows(10)


def ids_between(reader, start, end):
    tasks = sent(reader)
    partitions = [sent(each) for each in reader.partitions(start, end)]
    return [job_id for each in partitions for rows in tasks.read(each) for job_id in rows.column("id").to_pylist()]


@pytest.fixture
def open_source(url):
    """Makes sources that have passed the first, empty batch of their query. Gives the source and its offset."""
    opened = []

    def make(place=url, columns=None, **options):
        reader = query_source(place, columns, **options)
        opened.append(reader)
        start = reader.initialOffset()
        assert start == reader.initialOffset() == reader.latestOffset(start, TEN)
        return reader, start

    yield make
    for reader in opened:
        reader.stop()


def single(url):
    """A queue of jobs that are claimed one by one, and a query on it."""
    return Stream(url, enqueue(url, [Enqueue("work", b"payload")] * 25), max_jobs_per_trigger=10)


def deep(url):
    """A queue whose jobs are claimed by ranges, but for a few, and a query on it."""
    ids = fill_segments(url, range(600)) + fill_segments(url, range(40), keep_result=60)
    return Stream(url, ids, max_jobs_per_trigger=300)


both = pytest.mark.parametrize("make", [single, pytest.param(deep, marks=pytest.mark.wide)])


# Every job once


@both
def test_a_query_drains_the_queue_in_batches_and_ends_while_others_enqueue(url, make):
    stream = make(url)

    def on_step(name):
        stream.audit()
        if name == "claimed":
            enqueue(url, [Enqueue("work", b"late"), Enqueue("work", b"urgent", priority=-1)])

    assert stream.run(on_step=on_step)
    sizes = [len(stream.batches[batch]) for batch in sorted(stream.batches)]
    assert ([0, 10, 10, 5] if make is single else [0, 300, 300, 40]) == sizes
    assert sorted(stream.ids) == sorted(stream.delivered)
    assert make is deep or stream.ids == stream.delivered
    assert {b"late", b"urgent"} == {job.payload for job in jobs_of(url) if job.id in stream.left}


@pytest.mark.wide
@both
def test_a_query_killed_at_any_step_and_restarted_delivers_every_job_in_one_batch(tmp_path, make):
    for number in range(0, 60, 3 if make is single else 8):
        (tmp_path / str(number)).mkdir()
        stream = make(f"{tmp_path}/{number}/queue.json")
        is_killed = not stream.run(kill_at=number, on_step=lambda name, stream=stream: stream.audit())
        stream.run(kill_at=(7 * number) % 11)  # and perhaps once more
        assert stream.run()
        assert sorted(stream.ids) == sorted(stream.delivered)
        assert [] == stream.left
        if not is_killed:
            break
    assert 20 < number < 58


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(2))
def test_no_job_is_lost_and_no_batch_grows_if_others_take_claims_at_random(url, seed):
    chance, stream = random.Random(seed), single(url)

    def disturb(name):
        stream.audit()
        if chance.random() < 0.15:
            stream.steal(chance.randrange(5))
        if chance.random() < 0.15:
            stream.ids += enqueue(url, [Enqueue("work", b"late")] * chance.randrange(1, 9))

    for _ in range(6):
        stream.run(kill_at=chance.randrange(20), on_step=disturb)
    while stream.left:
        assert stream.run()
        call(url, lambda queue: queue.requeue_stale(0))
    assert set(stream.ids) == set(stream.delivered) | stream.by_others
    before: dict[int, set[str]] = {}
    for batch, ids in stream.offered:
        assert set(ids) <= before.setdefault(batch, set(ids)), "a repeated batch has a new job"
        before[batch] &= set(ids)


def test_a_query_with_the_trigger_once_takes_all_jobs(url):
    stream = single(url)
    for kill_at in (3, -1, -1):
        stream.run(trigger="once", kill_at=kill_at)
    assert (stream.ids, []) == (stream.delivered, stream.left)


@both
def test_one_write_acks_a_batch_and_claims_the_next_without_a_read(url, steps, make):
    stream = make(url)
    stream.url = steps
    writes = []
    with told(requests := Fault("", "lost", times=0)):
        stream.run(on_step=lambda name: writes.append((name, len(requests.names))))
    claims = [at for at, (name, _) in enumerate(writes) if name == "claimed"][2:-1]
    for at in claims:
        made = requests.names[writes[at - 1][1] : writes[at][1]]
        assert ["write queue.json"] == [each for each in made if each.endswith(" queue.json")]


@pytest.mark.parametrize("kind", ["lost", "unanswered"])
def test_a_claim_whose_request_fails_makes_one_batch(url, steps, kind):
    stream = single(url)
    stream.url = steps
    with told(Fault("^write queue.json", kind)):
        assert stream.run()
    assert (stream.ids, []) == (stream.delivered, stream.left)


# What is claimed


@pytest.mark.parametrize(("limit", "jobs"), [(TEN, 10), (ReadMaxRows(3), 3), (ALL, 25), (ReadMinRows(1), 12)])
def test_a_limit_of_spark_takes_precedence_over_the_option(url, open_source, limit, jobs):
    single(url)
    reader, start = open_source(maxJobsPerTrigger=12)
    assert ReadMaxRows(12) == reader.getDefaultReadLimit()
    assert jobs == len(ids_between(reader, start, reader.latestOffset(start, limit)))


def test_entrypoints_limits_pauses_and_priorities_hold_for_ranges_and_single_jobs(url, open_source):
    for name, priority in (("limited", 0), ("paused", 0), ("late", 5), ("other", 0)):
        fill_segments(url, range(300), name, priority=priority)

    async def settle(queue):
        await queue.limit("limited", running=7)
        await queue.pause("paused")

    call(url, settle)
    reader, start = open_source(entrypoint="limited,paused,late")
    ids = ids_between(reader, start, reader.latestOffset(start, ReadMaxRows(290)))
    names = [job.entrypoint for job in jobs_of(url) if job.id in ids]
    assert {"limited": 7, "late": 283} == {name: names.count(name) for name in names}


def test_rows_have_the_fields_of_the_claimed_jobs(url, open_source):
    fill_segments(url, range(300), headers={"trace": "af31"}, priority=3, max_attempts=5)
    enqueue(url, [Enqueue("work", b"hot", unique_key="key")])
    reader, start = open_source()
    end = reader.latestOffset(start, ALL)
    rows = {
        row["id"]: row for each in reader.partitions(start, end) for t in reader.read(each) for row in t.to_pylist()
    }
    names = (
        "entrypoint",
        "payload",
        "status",
        "priority",
        "attempt",
        "failures",
        "max_attempts",
        "unique_key",
        "holder",
    )
    jobs = {job.id: job for job in jobs_of(url)}
    assert jobs.keys() == rows.keys()
    for job_id, job in jobs.items():
        assert {name: getattr(job, name) for name in names} == {name: rows[job_id][name] for name in names}
        assert dict(job.headers) == dict(rows[job_id]["headers"])


@both
def test_a_batch_has_the_asked_number_of_partitions_and_they_show_no_content(url, open_source, make):
    make(url)
    reader, start = open_source(num_partitions=4)
    end = reader.latestOffset(start, ALL)
    partitions = reader.partitions(start, end)
    assert (3 if make is deep else 4) == len(partitions)  # a chunk of a segment is never cut
    assert "payload" not in repr(partitions)
    assert [] == reader.partitions(end, end)


def test_all_actions_on_a_batch_see_the_same_rows_although_others_have_its_jobs(url, open_source):
    stream = single(url)
    reader, start = open_source()
    end = reader.latestOffset(start, TEN)
    first = ids_between(reader, start, end)
    stream.steal(4)
    assert first == ids_between(reader, start, end) == stream.ids[:10]


@both
def test_jobs_that_others_have_taken_are_not_acked_and_one_line_has_their_number(url, open_source, caplog, make):
    stream = make(url)
    reader, start = open_source()
    end = reader.latestOffset(start, ReadMaxRows(280 if make is deep else 10))
    claimed = len(ids_between(reader, start, end))
    call(url, lambda queue: queue.requeue_stale(0))
    with caplog.at_level(logging.WARNING, "jqueue"):
        reader.latestOffset(end, TEN)
    said = [
        each for each in caplog.messages if each.startswith(f"{claimed} of {claimed} jobs of batch 1 went to other ")
    ]
    assert 1 == len(said)
    assert len(stream.ids) == len(stream.left)


def test_a_job_cancelled_during_its_batch_is_finished_with_it(url):
    stream = single(url)
    cancelled = stream.ids[3]
    stream.run(function=lambda batch, rows: batch == 1 and call(url, lambda q: q.cancel(cancelled, running=True)))
    assert (stream.ids, []) == (stream.delivered, stream.left)


def test_frequent_polls_of_spark_read_the_queue_once_for_each_poll_interval(url, steps, open_source):
    enqueue(url, [Enqueue("other", b"")])
    with told(requests := Fault("", "lost", times=0)):
        reader, start = open_source(steps, entrypoint="work", poll_interval=3600)
        for _ in range(100):
            assert start == reader.latestOffset(start, TEN)
    assert ["read queue.json"] * 2 == requests.names  # the first sees that there is a queue


@pytest.mark.wide
def test_claims_are_kept_alive_while_their_batch_runs_and_left_when_the_query_stops(url, open_source):
    """The batch runs until each claim was seen with a new heartbeat: a range and a single job."""
    fill_segments(url, range(300))
    enqueue(url, [Enqueue("work", b"hot", keep_result=60)])
    reader, start = open_source(claim_timeout=9)
    reader.latestOffset(start, ALL)
    first = {job.id: job.heartbeat_at for job in jobs_of(url)}
    while not all(job.heartbeat_at > first[job.id] for job in jobs_of(url)):
        time.sleep(0.1)
    reader.stop()
    version = version_of(url)
    reader.stop()
    assert (version, {9.0}, 301) == (version_of(url), {job.claim_timeout for job in jobs_of(url)}, len(first))


# Outcomes of single rows


def staged_beside(url):
    return [each.name for each in Path(url).parent.glob(f"{Path(url).name}.staged-*")]


def end_with(url, rows, **outcomes):
    """Call `end_batch` with an imitation of the DataFrame of these rows."""
    first = SimpleNamespace(id=rows[0]["id"], holder=rows[0]["holder"])
    batch: Any = SimpleNamespace(columns=["id", "holder"], select=lambda *_: SimpleNamespace(first=lambda: first))
    return end_batch(batch, url, **outcomes)


@both
def test_outcomes_of_rows_survive_a_kill_at_any_step_and_none_is_left_beside_the_queue(tmp_path, make):
    for number in range(1, 60, 3 if make is single else 8):
        (tmp_path / str(number)).mkdir()
        stream = make(f"{tmp_path}/{number}/queue.json")

        def fail_first(batch, rows, stream=stream):
            assert not rows or (1, 0) == end_with(stream.url, rows, failed={rows[0]["id"]: JobFailure("x", dead=True)})

        is_killed = not stream.run(kill_at=number, function=fail_first)
        assert stream.run(function=fail_first)
        firsts = {stream.batches[batch][0] for batch in stream.batches if stream.batches[batch]}
        assert (firsts, []) == (set(stream.left), staged_beside(stream.url))
        assert {("dead", "x")} == {(job.status, job.error) for job in jobs_of(stream.url) if job.id in firsts}
        if not is_killed:
            break


def test_outcomes_of_claims_that_were_lost_before_a_late_restart_are_removed(url):
    stream = single(url)

    def kill(name):
        if name == "done" and staged_beside(url):
            raise KilledError(name)

    assert not stream.run(on_step=kill, function=lambda _, rows: rows and end_with(url, rows, results={}))
    call(url, lambda queue: queue.requeue_stale(0))
    assert stream.run()
    assert [] == staged_beside(url)


def test_nothing_is_left_beside_the_queue_of_batches_whose_rows_all_succeed(url):
    stream = single(url)
    assert stream.run(function=lambda _, rows: rows and end_with(url, rows, failed={}))
    assert ([], []) == (stream.left, staged_beside(url))


@both
def test_the_result_of_a_row_is_there_for_the_job_that_waits_for_it(url, make):
    stream = make(url)
    stream.options["entrypoint"] = "work"
    parent = stream.ids[0]
    enqueue(url, [Enqueue("child", b"", after=[parent])])
    assert stream.run(
        function=lambda _, rows: parent in {row["id"] for row in rows} and end_with(url, rows, results={parent: 5})
    )
    assert 5 == call(url, lambda queue: queue.result(parent))
    assert [b""] == [job.payload for job in call(url, lambda queue: queue.dequeue("child"))]


@both
def test_an_id_of_no_job_is_refused_and_one_line_has_the_number_of_rows_that_a_batch_does_not_have(url, caplog, make):
    stream = make(url)
    other = enqueue(url, [Enqueue("work", b"", delay=3600)])[0]

    def function(batch, rows):
        if batch == 1:
            with pytest.raises(InvalidJobError, match="the batch has no row with the id 'a typo'"):
                end_with(url, rows, failed=dict.fromkeys([other, "a typo"]))
            end_with(url, rows, failed=dict.fromkeys([rows[0]["id"], other], JobFailure("x", dead=True)))

    stream.run(function=function)
    assert ["outcomes of 1 row are ignored: batch 1 has no such jobs, or has lost them"] == caplog.messages
    assert {stream.batches[1][0]} == set(stream.left) - {other}


# Segments that cannot be read


def test_rows_that_tasks_cannot_read_are_handed_back_and_all_others_are_done(url, caplog):
    stream = Stream(url, fill_segments(url, range(600)), max_jobs_per_trigger=600)
    [segment] = Path(f"{url}.segments").iterdir()
    content = segment.read_bytes()

    def on_step(name):
        if name == "logged" and len(stream.offsets) == 2 and segment.exists():
            segment.unlink()

    stream.ids += enqueue(url, [Enqueue("other", b"")])
    stream.run(on_step=on_step)
    assert stream.ids[-1] in stream.delivered
    assert len(stream.delivered) == len(set(stream.delivered))
    [line] = [each for each in caplog.messages if "leases of batch 1" in each]
    assert segment.name in line
    segment.write_bytes(content)
    assert not any(job.failures for job in jobs_of(url))
    assert stream.run()
    assert sorted(stream.ids) == sorted(stream.delivered)


# Wrong calls


@pytest.mark.parametrize(
    ("place", "options", "words"),
    [
        ("", {}, "the URL of the queue is missing"),
        ("*.json", {}, "a stream reads one queue"),
        ("memory://queue", {}, "a queue in memory:// is in one process, and Spark has many"),
        (
            "jqueue+http://127.0.0.1:9/queue",
            {},
            "a broker or an older format takes none: give the URL",
        ),
        ("q.json", {"max_jobs_per_trigger": 0}, "option max_jobs_per_trigger takes a whole number from 1 to "),
        ("q.json", {"claim_timeout": 0.5}, "option claim_timeout takes a number of seconds, 1 or more, got"),
        ("q.json", {"startingOffsets": "x"}, "there is no option 'startingoffsets': the options are "),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_by_the_first_call(place, options, words):
    """The constructor raises no error, because Spark would hide it behind its own."""
    reader = query_source(place, StructType([StructField("id", StringType())]), **options)
    with pytest.raises((InvalidJobError, InvalidURLError)) as caught:
        reader.initialOffset()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_queue_that_does_not_exist_ends_the_query_in_one_line(url):
    reader = query_source(url, StructType([StructField("id", StringType())]))
    start = reader.initialOffset()
    assert start == reader.latestOffset(start, TEN)  # Spark notes the id first
    with pytest.raises(JQueueError, match=rf"^the queue of the streaming query failed: there is no queue at {url}.*$"):
        reader.latestOffset(start, TEN)
    reader.stop()
    assert not Path(url).exists()


def test_an_unknown_column_and_the_checkpoint_of_another_source_are_refused_in_one_line(url, open_source):
    with pytest.raises(InvalidJobError, match=r"^there is no column 'size' here.*$"):
        query_source(url, StructType([StructField("size", LongType())])).getDefaultReadLimit()
    reader, _ = open_source()
    for wrong in ({}, {"offset": 3}, [1], None, {"source": "a", "batch": "1", "claim": ""}):
        with pytest.raises(InvalidJobError, match=r"^the checkpoint holds an offset that is not of a queue.*$"):
            reader.latestOffset(wrong, TEN)
