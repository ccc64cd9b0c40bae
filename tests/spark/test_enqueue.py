"""Bulk enqueue and the streaming sink, called as Spark calls them: each row is one job, whatever is repeated."""

import asyncio
from functools import partial

import pytest
from pyspark.sql.types import BinaryType, DoubleType

from jqueue import BrokerQueue, CASConflictError, connect
from jqueue.domain.errors import (
    DeadlineExceededError,
    DuplicateJobError,
    InvalidJobError,
    InvalidURLError,
    StorageError,
    UnknownOutcomeError,
)
from tests.spark.spark_calls import (
    KEYED,
    PAYLOAD,
    Sink,
    Write,
    call,
    jobs_of,
    litter_of,
    schema,
    sent,
    source,
    texts_of,
    version_of,
    write,
)
from tests.spark.step_stores import Fault, killed_at, told

MANY = [b"%d" % number for number in range(1001)]
"""Payloads of jobs whose segments the commit names. Those of fewer jobs enter the queue's object."""

NIGHTLY = {"txn_app_id": "nightly", "txn_version": 17}

few_and_many = pytest.mark.parametrize("texts", [[b"a"], MANY], ids=["few", "many"])


# Repeated tasks, commits and programs


@few_and_many
def test_rows_are_in_the_queue_after_one_commit_in_their_order_and_nothing_is_left_beside_it(url, texts):
    write(url, [b"before"])
    version, bulk = version_of(url), Write(url)
    messages = [bulk.stage(texts), bulk.stage([b"x"], 1, 1)]
    assert [b"before"] == texts_of(url)
    bulk.commit(*messages)
    assert ([b"before", *texts, b"x"], [], version + 1) == (texts_of(url), litter_of(url), version_of(url))


@few_and_many
def test_of_several_attempts_of_a_task_the_one_that_spark_reports_counts(url, texts):
    bulk = Write(url)
    bulk.stage(texts, attempt=0)  # the executor was lost before its message arrived
    second = bulk.stage(texts, attempt=1)
    bulk.stage(texts, attempt=2)  # a speculative copy
    bulk.commit(second)
    assert (texts, []) == (texts_of(url), litter_of(url))
    bulk.commit(second)
    bulk.stage(texts, attempt=3)  # it comes late
    assert texts == texts_of(url)


def test_a_second_run_of_a_named_write_adds_nothing_and_an_older_one_is_left_out_and_told(url, caplog):
    caplog.set_level("INFO", "jqueue")
    for version, text in ((5, b"a"), (5, b"a"), (3, b"b"), (6, b"c")):
        write(url, [text], txn_app_id="nightly", txn_version=version)
    write(url, [b"d"], txn_app_id="hourly", txn_version=0)
    assert [b"a", b"c", b"d"] == texts_of(url)
    assert "Version 5 of nightly was already written: nothing was added" in caplog.messages
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("1 row was not written: the write is version 3 of nightly, and the queue has version 5. ")


def test_two_runs_of_a_named_write_at_the_same_time_add_its_rows_once(url):
    one, other = Write(url, **NIGHTLY), Write(url, **NIGHTLY)
    messages = [bulk.stage(MANY) for bulk in (one, other)]
    one.commit(messages[0])
    other.commit(messages[1])
    assert (MANY, []) == (texts_of(url), litter_of(url))


def test_a_write_without_rows_creates_no_queue_and_a_named_one_is_remembered(url, tmp_path):
    write(url, [])
    Write(url).commit()
    assert [] == list(tmp_path.iterdir())
    write(url, [], **NIGHTLY)
    write(url, [b"a"], **NIGHTLY)
    assert [] == texts_of(url)


@pytest.mark.wide
@few_and_many
def test_a_named_write_killed_at_any_request_and_run_again_adds_each_row_once(tmp_path, texts):
    """Its tasks and its commit are killed before a request to the store."""

    def run(url):
        bulk = Write(url, **NIGHTLY)
        bulk.commit(*[bulk.stage(part, place, place) for place, part in enumerate((texts, [b"x"]))])

    for number in range(0, 100, 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        url = f"{folder}/queue.json"
        is_killed = killed_at(number, partial(run, f"steps://{url}"))
        assert texts_of(url) in ([], [*texts, b"x"]), "all rows or none"
        run(url)
        assert [*texts, b"x"] == texts_of(url)
        if not is_killed:
            break
    assert 5 < number < 97


def test_a_commit_beside_busy_writers_adds_all_rows(url):
    bulk = Write(url)
    message = bulk.stage(MANY)

    async def busy(done):
        async with connect(url, BrokerQueue) as queue:
            count = 0
            while not done.is_set() or not count:
                await queue.enqueue("other", b"")
                count += 1
            return count

    async def both():
        done = asyncio.Event()
        others = [asyncio.create_task(busy(done)) for _ in range(2)]
        await asyncio.to_thread(bulk.commit, message)
        done.set()
        return sum(await asyncio.gather(*others))

    assert asyncio.run(both()) + len(MANY) == len(jobs_of(url))


# Failures


@few_and_many
@pytest.mark.parametrize("pattern", ["write queue.json$", "create_object"])
def test_a_request_whose_answer_is_lost_is_done_once(url, steps, pattern, texts):
    with told(fault := Fault(pattern, "unanswered")):
        write(steps, texts)
    assert (0, texts, []) == (fault.left, texts_of(url), litter_of(url))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("create_object", "partition 3 was staged up to its row 1,001: "),
        ("list_beside", "1,001 rows in 1 segment were staged"),
    ],
)
def test_a_write_that_its_deadline_ends_says_how_far_it_was_and_adds_nothing(url, steps, pattern, words):
    bulk = Write(steps, deadline=3)
    with told(Fault(pattern, "lost", times=1000)), pytest.raises(DeadlineExceededError) as caught:
        bulk.commit(bulk.stage(MANY, partition=3))
    assert str(caught.value).startswith(words)
    assert "the connection was reset" in str(caught.value)
    assert [] == texts_of(url)


@few_and_many
@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_of_unknown_outcome_is_found_by_the_abort_or_never_lands(url, steps, caplog, lands, texts):
    caplog.set_level("INFO", "jqueue")
    write(url, [b"before"])
    bulk = Write(steps)
    message = bulk.stage(texts)
    commit, away = Fault("^write queue.json$", "late"), Fault("^read(_if_changed)? queue.json$", "refused", times=0)

    def lose(name, request):
        away.left = 99 if name == "write queue.json" else away.left
        return commit(name, request)

    with told(lose), told(away), pytest.raises(StorageError) as caught:
        bulk.commit(message)
    assert isinstance(caught.value, UnknownOutcomeError)
    if lands:
        asyncio.run(commit.land())
        bulk.abort(message)
        assert [b"before", *texts] == texts_of(url)
        assert any("that Spark gave up is in the queue: its commit succeeded" in each for each in caplog.messages)
    else:
        bulk.abort(message)
        with pytest.raises(CASConflictError):
            asyncio.run(commit.land())
        assert ([b"before"], []) == (texts_of(url), litter_of(url))


@few_and_many
def test_an_abort_removes_what_tasks_have_staged_and_creates_no_queue(url, tmp_path, texts):
    other, bulk = Write(url), Write(url)
    theirs, message = other.stage(texts), bulk.stage(texts)
    bulk.stage(texts, 1, 1)  # Spark lost its message
    bulk.abort(message, None)
    assert not (tmp_path / "queue.json").exists()
    other.commit(theirs)
    other.abort(theirs)
    assert (texts, []) == (texts_of(url), litter_of(url))


@few_and_many
def test_rows_that_are_gone_before_the_commit_fail_it_and_nothing_is_added(url, tmp_path, texts):
    bulk = Write(url)
    messages = [bulk.stage(texts), bulk.stage(texts, 1, 1)]
    next(path for path in tmp_path.rglob("*staged*") if path.is_file()).unlink()
    with pytest.raises(StorageError, match="1 of 2 staged segments are gone"):
        bulk.commit(*messages)
    bulk.abort(*messages)  # as Spark does after a commit that fails
    assert ([], []) == (texts_of(url), litter_of(url))


# Rows and the queue


def test_rows_whose_unique_key_is_taken_are_left_out_or_fail_the_write(url, caplog):
    caplog.set_level("INFO", "jqueue")
    write(url, [(b"a", "k"), (b"b", None), (b"c", "k")], KEYED)
    write(url, [(b"d", "k"), (b"e", "l")], KEYED)
    assert {b"a", b"b", b"e"} == set(texts_of(url))
    assert "2 jobs added; 1 left out: unique key already taken" == caplog.messages[0]
    with pytest.raises(DuplicateJobError, match="Unique key 'k' is taken"):
        write(url, [(b"f", "new"), (b"g", "k")], KEYED, on_conflict="raise")
    assert 3 == len(texts_of(url))


def test_a_delay_counts_from_the_start_of_the_write(url):
    columns = schema(payload=BinaryType(), delay=DoubleType())
    write(url, [(b"a", 3600.0), (b"b", None)], columns)
    waits, ready = jobs_of(url)
    assert 3600 == (waits.run_at - waits.created_at).total_seconds()
    assert (waits.created_at, None) == (ready.created_at, ready.run_at)


def test_rows_have_no_limit_of_bytes_and_a_payload_has_one_that_an_option_raises(url):
    async def small(queue):
        await queue.configure(blob_bytes=10_000)

    call(url, small)
    for rows in ([b"x" * 100] * 12, [b"x" * 100] * 18, [b"x" * 100] * 1100):
        write(url, rows)
    assert 1130 == len(jobs_of(url))
    large = b"x" * ((1 << 20) + 1)
    with pytest.raises(InvalidJobError, match=r"row 0 of partition 0: payload is 1048577 bytes; .* max_payload_bytes"):
        write(url, [large])
    write(url, [large], max_payload_bytes=2 << 20)
    assert 1131 == len(jobs_of(url))


# The streaming sink


def test_each_batch_of_a_stream_is_added_once_under_any_repetition(url):
    sink = Sink(url)
    sink.stage(0, b"a")  # then the driver was killed
    for number, text in enumerate([b"a", b"b", b"c"]):
        message = sink.stage(number, text, attempt=1)
        sink.commit(number, message)
        sink.commit(number, message)
        sink.commit(number, sink.stage(number, text))
        sink.abort(number, message)
    sink.commit(3)
    sink.commit(4, sink.stage(4))
    assert ([b"a", b"b", b"c"], []) == (texts_of(url), litter_of(url))


def test_a_stream_is_known_by_its_query_or_by_its_txn_app_id(url, caplog):
    for query, options in (
        ("one", {}),
        ("other", {}),
        ("third", {"txn_app_id": "in"}),
        ("fourth", {"txn_app_id": "in"}),
    ):
        sink = Sink(url, query, **options)
        sink.commit(0, sink.stage(0, query.encode()))
    assert [b"one", b"other", b"third"] == texts_of(url)
    sink = Sink(url, "one")
    for number in (5, 3):
        sink.commit(number, sink.stage(number, b"%d" % number))
    assert b"5" == texts_of(url)[-1]
    [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warning.startswith(
        "1 row was not written: the write is version 3 of spark-stream:one, and the queue has version 5"
    )
    with pytest.raises(InvalidJobError, match="which query they belong to: give the option txn_app_id"):
        Sink(url, query=None).stage(0, b"a")


def test_an_abort_removes_the_rows_of_its_batch_alone(url):
    sink = Sink(url)
    later, message = sink.stage(11, b"later"), sink.stage(1, b"a")
    sink.abort(1, message, None)
    sink.commit(11, later)
    assert ([b"later"], []) == (texts_of(url), litter_of(url))


# Wrong calls are refused on the driver, before a task starts


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": ""}, "the URL of the queue is missing"),
        ({"URL": "s3://key:secret@b/k"}, "the option url names another queue than the path does"),
        ({"entryPiont": "a"}, "there is no option 'entrypiont'"),
        ({"delay": "nan"}, "option delay takes a number of seconds, 0 or more, got 'nan'"),
        ({"on_conflict": "replace"}, "option on_conflict takes return or raise, got 'replace'"),
        ({"entrypoint": None}, "the entrypoint is missing: add a column entrypoint, or the option entrypoint"),
        ({"txn_app_id": "a"}, "give txn_app_id and txn_version together"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_that_says_what_is_right(url, options, words):
    place = options.get("path", url)
    with pytest.raises((InvalidJobError, InvalidURLError)) as caught:
        Write(place, **{name: value for name, value in options.items() if name != "path"})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_options_have_any_case_and_overwriting_is_refused(url):
    write(url, [b"a"], PRIORITY=7, maxAttempts=3)
    assert [(7, 3)] == [(job.priority, job.max_attempts) for job in jobs_of(url)]
    with pytest.raises(InvalidJobError, match="cannot be overwritten: that would lose jobs"):
        Write(url, overwrite=True)
    with pytest.raises(InvalidJobError, match="cannot be overwritten with every batch: use outputMode"):
        source(url, entrypoint="a").streamWriter(PAYLOAD, True)
    with pytest.raises(InvalidJobError, match="there is no option 'txn_version'"):
        source(url, entrypoint="a", **NIGHTLY).streamWriter(PAYLOAD, False)


def test_a_key_in_a_url_is_in_no_text_of_a_writer():
    writer = source("s3://id:hunter2@bucket/queue.json", entrypoint="a").streamWriter(PAYLOAD, False)
    assert "hunter2" not in repr(sent(writer)) + repr(vars(writer))
