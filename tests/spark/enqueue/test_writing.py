"""Bulk enqueue, called like Spark calls it, without Spark: tasks, commits and aborts, with repetitions."""

import asyncio
import errno
import os
import pickle
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.types import BinaryType, DoubleType, StringType

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, LocalFileSystemStorage, connect
from jqueue.domain.errors import (
    CASConflictError,
    DeadlineExceededError,
    DuplicateJobError,
    InvalidJobError,
    QueueMissingError,
    StorageError,
)
from jqueue.spark.enqueue.committing import TaskReport
from jqueue.spark.enqueue.writing import OPTIONS, bulk_enqueue
from jqueue.spark.option_parsing import parse_options
from jqueue.testing import virtual_time
from tests.spark.enqueue.bulk import (
    KEYED,
    Rough,
    batch,
    jobs_of,
    last_of,
    names_of,
    on,
    payloads,
    schema,
    staged_at,
    task,
    texts_of,
    without_entrypoint,
    write,
    writer,
)

pytestmark = pytest.mark.wide

MANY = [b"%d" % number for number in range(1001)]
"""Payloads of jobs whose segments are named; those of fewer jobs enter the blob."""

WAYS = pytest.mark.parametrize(
    ("copying", "texts"), [(True, [b"a"]), (False, [b"a"]), (False, MANY)], ids=["copied", "few", "named"]
)


def test_staged_jobs_are_in_the_queue_after_the_commit_and_no_staged_object_remains(url):
    bulk = writer(url, entrypoint="resize")
    reports = [
        bulk.stage([payloads(b"a", b"b"), payloads(b"c")], task(0, 0)),
        bulk.stage([payloads(b"d")], task(1, 1)),
    ]
    assert 2 == len(staged_at(url))
    assert [] == jobs_of(url)
    bulk.commit(reports)
    assert [("resize", text) for text in (b"a", b"b", b"c", b"d")] == [
        (job.entrypoint, job.payload) for job in jobs_of(url)
    ]
    assert [] == staged_at(url)


def test_a_writer_and_its_reports_can_be_pickled(file):
    bulk = pickle.loads(pickle.dumps(writer(file)))
    reports = pickle.loads(pickle.dumps([bulk.stage([payloads(b"a")], task())]))
    pickle.loads(pickle.dumps(bulk)).commit(reports)
    assert [b"a"] == texts_of(file)


def test_jobs_are_added_after_existing_jobs(url):
    write(url, b"a")
    write(url, b"b")
    assert [b"a", b"b"] == texts_of(url)


def test_a_retried_task_adds_its_jobs_once(url):
    bulk = writer(url)
    bulk.stage([payloads(b"a")], task(0, attempt=0))  # the executor was lost before its report arrived
    report = bulk.stage([payloads(b"a")], task(0, attempt=1))
    bulk.commit([report])
    assert [b"a"] == texts_of(url)
    assert [] == staged_at(url)


def test_one_of_two_concurrent_attempts_of_a_task_counts(file):
    bulk = writer(file)
    first, second = (bulk.stage([payloads(b"a")], task(0, attempt)) for attempt in (0, 1))
    assert names_of(first) != names_of(second)
    bulk.commit([second])
    assert [b"a"] == texts_of(file)


def test_a_late_attempt_changes_nothing(file):
    bulk = writer(file)
    bulk.commit([bulk.stage([payloads(b"a")], task(0, 0))])
    late = bulk.stage([payloads(b"a")], task(0, 1))
    write(file, b"b")
    assert ([b"a", b"b"], names_of(late)) == (texts_of(file), staged_at(file))


def test_copied_objects_of_a_late_attempt_are_removed_by_age(file, tmp_path):
    folder = tmp_path / "staged"
    elsewhere = {"stagingPath": str(folder)}
    bulk = writer(file, **elsewhere)
    bulk.commit([bulk.stage([payloads(b"a")], task(0, 0))])
    bulk.stage([payloads(b"a")], task(0, 1))
    write(file, b"b", **elsewhere)
    assert 1 == len([path for path in folder.iterdir() if path.suffix != ".lock"])
    write(file, b"c", stagingRetention="0", **elsewhere)
    assert ([b"a", b"b", b"c"], []) == (texts_of(file), list(folder.iterdir()))


def test_a_short_retention_removes_no_outcomes_of_streams_and_batches(file, tmp_path):
    names = [".staged-stream-claim", ".staged-outcomes-batch-open", ".staged-outcomes-batch-0-0-a"]
    for name in [*names, ".staged-other-0-0-a"]:
        (tmp_path / f"queue.json{name}").write_bytes(b"")
    write(file, b"a", stagingRetention="0")
    assert sorted(names) == sorted(staged_at(file))


def test_a_repeated_commit_adds_nothing(url):
    bulk = writer(url)
    reports = [bulk.stage([payloads(b"a")], task())]
    bulk.commit(reports)
    bulk.commit(reports)
    assert [b"a"] == texts_of(url)


def test_a_repeated_commit_that_cannot_read_removes_no_jobs(file):
    store = Rough(LocalFileSystemStorage(file))
    bulk = on(writer(file), store, deadline=1.0)
    reports = [bulk.stage([payloads(*MANY)], task())]
    bulk.commit(reports)
    store.told["read"] = ["lost"] * 999
    with pytest.raises(StorageError):
        bulk.commit(reports)
    assert MANY == texts_of(file)


def test_an_abort_before_the_commit_removes_all_staged_objects(url):
    bulk = writer(url)
    report = bulk.stage([payloads(b"a")], task(0, 0))
    bulk.stage([payloads(b"b")], task(1, 1))  # Spark lost its report
    bulk.abort([report, None])
    assert ([], []) == (staged_at(url), jobs_of(url))


def test_an_abort_does_not_create_a_missing_queue(tmp_path):
    bulk = writer(str(tmp_path / "queue.json"))
    report = bulk.stage([payloads(b"a")], task(0, 0))
    bulk.abort([report, None])
    assert [] == [path for path in tmp_path.rglob("*") if not path.is_dir()]


def test_an_abort_without_staged_objects_writes_nothing(file, tmp_path):
    bulk = writer(file)
    bulk.abort([bulk.stage([], task(0, 0)), bulk.stage([], task(1, 1))])
    bulk.abort([])
    assert [] == list(tmp_path.iterdir())


def test_an_abort_leaves_staged_objects_of_other_writes(file):
    other, bulk = writer(file), writer(file)
    report = other.stage([payloads(b"a")], task())
    bulk.stage([payloads(b"b")], task())
    bulk.abort([None])
    other.commit([report])
    assert [b"a"] == texts_of(file)


def test_an_abort_after_a_successful_commit_removes_no_jobs(url, caplog):
    bulk = writer(url)
    report = bulk.stage([payloads(b"a")], task())
    bulk.commit([report])
    bulk.abort([report])
    assert [b"a"] == texts_of(url)


@WAYS
def test_a_commit_whose_answer_is_lost_is_recognised(file, copying, texts):
    storage = Rough(LocalFileSystemStorage(file), told={"write": ["unanswered"]})
    bulk = on(writer(file), storage, copying=copying)
    bulk.commit([bulk.stage([payloads(*texts)], task())])
    assert (texts, []) == (texts_of(file), staged_at(file))
    assert [] == storage.told["write"]


def test_a_segment_whose_answer_is_lost_is_staged_once(file):
    storage = Rough(LocalFileSystemStorage(file), told={"create": ["unanswered", "lost"]})
    bulk = on(writer(file), storage)
    report = bulk.stage([payloads(*MANY)], task())
    assert names_of(report) == staged_at(file)
    bulk.commit([report])
    assert MANY == texts_of(file)


@pytest.mark.parametrize("copying", [True, False])
def test_an_abort_that_may_not_list_removes_only_reported_objects(file, copying):
    store = Rough(LocalFileSystemStorage(file))
    bulk = on(writer(file), store, copying=copying)
    told, lost = (bulk.stage([payloads(b"a")], task(number, number)) for number in range(2))
    store.told["list"] = ["refused"] * 4
    bulk.abort([told, None])
    assert names_of(lost) == staged_at(file)


@WAYS
class TestACommitWithAnUnknownOutcome:
    """The write was sent, the store refuses all reads, and Spark gives up."""

    @pytest.fixture
    def store(self, file):
        return Rough(LocalFileSystemStorage(file))

    @pytest.fixture
    def given_up(self, file, store, copying, texts):
        write(file, b"before")
        bulk = on(writer(file), store, deadline=30.0, copying=copying)
        report = bulk.stage([payloads(*texts)], task())
        store.told |= {"write": ["last"]}
        with pytest.raises(StorageError):
            bulk.commit([report])
        store.told.clear()
        return bulk, report

    def test_its_staged_objects_are_left(self, given_up, file):
        assert names_of(given_up[1]) == staged_at(file)

    def test_the_abort_changes_nothing_if_the_commit_landed(self, given_up, file, store, caplog, texts):
        bulk, report = given_up
        asyncio.run(store.land())
        bulk.abort([report])
        unused = [] if texts is MANY else names_of(report)
        assert ([b"before", *texts], unused) == (texts_of(file), staged_at(file))
        assert any("that Spark gave up is in the queue: its commit succeeded" in each for each in caplog.messages)

    def test_the_abort_prevents_a_late_commit_from_landing(self, given_up, file, store):
        bulk, report = given_up
        bulk.abort([report])
        with pytest.raises(Exception, match="changed it"):
            asyncio.run(store.land())
        assert ([b"before"], []) == (texts_of(file), staged_at(file))

    def test_the_abort_removes_nothing_and_raises_nothing_if_it_cannot_read(self, given_up, file, store, caplog):
        bulk, report = given_up
        store.told |= {"read": ["refused"] * 99}
        bulk.abort([report])
        assert names_of(report) == staged_at(file)
        assert caplog.messages[-1].startswith("An aborted write leaves staged jobs behind, which are removed later")


@WAYS
class TestACommitResolvedAfterItsDeadline:
    """The write was sent, and the store is unreachable until after the deadline, but back before the commit returns."""

    class Away:
        """Loses all requests after the first one until a time."""

        def __init__(self, until):
            self.until = until
            self.answered = False

        def __bool__(self):
            return asyncio.get_running_loop().time() < self.until

        def pop(self, _):
            self.answered, before = True, self.answered
            return "lost" if before else None

    @pytest.fixture
    def store(self):
        return Rough(InMemoryStorage())

    @pytest.fixture
    def commit(self, store, file, copying, texts):
        def commit(what_happens):
            bulk = on(writer(file), store, deadline=100.0, copying=copying)
            report = bulk.stage([payloads(*texts)], task())
            store.told |= {"write": [what_happens], "read": self.Away(until=120.0)}
            self.staged = names_of(report)
            return virtual_time.run(bulk.enqueue.commit([report], bulk.write_id, bulk.transaction))

        return commit

    async def found(self, store):
        """The payloads in the queue, and the staged objects that it does not name."""
        queue = DirectQueue(store.storage)
        jobs = []
        with suppress(QueueMissingError):
            jobs += [job.payload async for job in queue.iterate_jobs()]
        named = (await queue.read_state()).segments
        kept = {f".segments/{name}" for name in named}
        listed = [each for prefix in (".staged-", ".segments/") for each in await store.storage.list_beside(prefix)]
        return jobs, [each.suffix for each in listed if each.suffix not in kept]

    def test_a_commit_that_landed_is_found(self, store, commit, copying, texts):
        assert len(texts) == commit("unanswered").added
        removed_by_age = [] if copying or texts is MANY else self.staged
        assert (texts, removed_by_age) == asyncio.run(self.found(store))

    def test_a_commit_that_did_not_land_never_will_and_its_staged_objects_are_removed(self, store, commit):
        with pytest.raises(DeadlineExceededError):
            commit("late")
        assert ([], []) == asyncio.run(self.found(store))
        with pytest.raises(CASConflictError):
            asyncio.run(store.land())


def test_a_rerun_with_the_same_transaction_stages_nothing_and_adds_nothing(url, caplog):
    options = {"txnAppId": "nightly", "txnVersion": "17"}
    write(url, b"a", **options)
    caplog.set_level("INFO", "jqueue")
    again = writer(url, **options)
    report = again.stage([payloads(b"a")], task())
    assert (None, 0) == (report.name, report.jobs)
    again.commit([report])
    assert [b"a"] == texts_of(url)
    assert "Version 17 of nightly was already written: nothing was added" in caplog.messages


def test_a_version_below_the_last_one_of_a_transaction_is_ignored(file):
    for version, text in [("5", b"a"), ("4", b"b"), ("6", b"c"), ("0", b"d")]:
        write(file, text, txnAppId="nightly", txnVersion=version)
    write(file, b"e", txnAppId="hourly", txnVersion="0")
    assert [b"a", b"c", b"e"] == texts_of(file)
    assert (6, 0) == (last_of(file, "nightly"), last_of(file, "hourly"))


def test_two_concurrent_runs_of_a_transaction_add_its_jobs_once(file):
    options = {"txnAppId": "nightly", "txnVersion": "1"}
    one, other = writer(file, **options), writer(file, **options)
    reports = [bulk.stage([payloads(b"a")], task()) for bulk in (one, other)]
    one.commit(reports[:1])
    other.commit(reports[1:])
    assert ([b"a"], []) == (texts_of(file), staged_at(file))


def test_a_write_without_rows_writes_nothing(tmp_path):
    bulk = writer(str(tmp_path / "queue.json"))
    bulk.commit([bulk.stage([], task(0)), bulk.stage([payloads()], task(1, 1))])
    bulk.commit([])
    assert [] == list(tmp_path.iterdir())


def test_a_named_write_without_rows_is_recorded(file):
    write(file, txnAppId="nightly", txnVersion="3")
    assert 3 == last_of(file, "nightly")
    write(file, b"a", txnAppId="nightly", txnVersion="3")
    assert [] == texts_of(file)


def test_an_unnamed_write_is_recorded_for_one_day(file):
    bulk = write(file, b"a")
    assert 1 == last_of(file, f"spark-write:{bulk.write_id}")
    assert 86400.0 == bulk.transaction.keep
    assert 60.0 == writer(file, txnAppId="a", txnVersion="1", txnRetention="60").transaction.keep


def test_a_job_with_a_taken_unique_key_is_left_out(file, caplog):
    caplog.set_level("INFO", "jqueue")
    for rows in ([(b"a", "k"), (b"b", None), (b"c", "k")], [(b"d", "k"), (b"e", "l")]):
        bulk = writer(file, KEYED)
        bulk.commit([bulk.stage([batch(KEYED, *rows)], task())])
    assert {b"a", b"b", b"e"} == set(texts_of(file))
    assert ["2 jobs added; 1 left out: unique key already taken"] == caplog.messages[:1]


def test_a_taken_unique_key_fails_the_write_with_on_conflict_raise(file):
    write(file, b"a")
    bulk = writer(file, KEYED, onConflict="raise")
    report = bulk.stage([batch(KEYED, (b"b", "k"), (b"c", "k"))], task())
    with pytest.raises(DuplicateJobError, match="Unique key 'k' is taken"):
        bulk.commit([report])
    assert ([b"a"], []) == (texts_of(file), staged_at(file))


def test_a_delay_counts_from_the_start_of_the_write(file):
    columns = schema(payload=BinaryType(), delay=DoubleType())
    before = datetime.now(UTC)
    bulk = writer(file, columns)
    begun = datetime.now(UTC)
    bulk.commit([bulk.stage([batch(columns, (b"a", 3600.0), (b"b", None))], task())])
    waits, ready = jobs_of(file)
    assert timedelta(hours=1) == waits.run_at - waits.created_at
    assert before <= waits.created_at <= begun
    assert (waits.created_at, None) == (ready.created_at, ready.run_at)


def test_a_delay_of_copied_jobs_counts_from_the_commit(file, tmp_path):
    bulk = writer(file, delay="3600", stagingPath=str(tmp_path / "staged"))
    report = bulk.stage([payloads(b"a")], task())
    committed = datetime.now(UTC)
    bulk.commit([report])
    [job] = jobs_of(file)
    assert timedelta(hours=1) == job.run_at - job.created_at
    assert committed <= job.created_at


def test_a_commit_beside_other_writers_adds_all_jobs(url):
    bulk = writer(url)
    report = bulk.stage([payloads(*(b"%d" % number for number in range(100)))], task())

    async def busy(done):
        async with connect(url, BrokerQueue) as queue:
            count = 0
            while not done.is_set():
                await queue.enqueue("other", b"")
                count += 1
            return count

    async def both():
        done = asyncio.Event()
        others = [asyncio.create_task(busy(done)) for _ in range(3)]
        await asyncio.to_thread(bulk.commit, [report])
        done.set()
        return sum(await asyncio.gather(*others))

    assert asyncio.run(both()) + 100 == len(jobs_of(url))


def test_a_missing_copied_object_is_an_error_and_nothing_is_added(file):
    storage = LocalFileSystemStorage(file)
    bulk = on(writer(file), lambda _: storage, copying=True)
    reports = [bulk.stage([payloads(b"a")], task(number, number)) for number in range(2)]
    asyncio.run(storage.beside(reports[0].name).remove())
    with pytest.raises(StorageError, match="1 of 2 staged objects are gone"):
        bulk.commit(reports)
    assert ([], []) == (jobs_of(file), staged_at(file))


@pytest.mark.parametrize("texts", [[b"a"], MANY], ids=["few", "named"])
def test_a_missing_staged_segment_is_an_error_and_nothing_is_added(file, texts):
    bulk = writer(file)
    reports = [bulk.stage([payloads(*texts)], task(number, number)) for number in range(2)]
    asyncio.run(LocalFileSystemStorage(file).remove_object(names_of(reports[0])[0]))
    with pytest.raises(StorageError, match="1 of 2 staged segments are gone"):
        bulk.commit(reports)
    assert ([], []) == (jobs_of(file), staged_at(file))


def test_an_invalid_row_fails_its_task_and_stages_nothing(file):
    columns = schema(payload=BinaryType(), entrypoint=StringType())
    bulk = without_entrypoint(file, columns)
    with pytest.raises(InvalidJobError, match="row 1 of partition 4: entrypoint is null"):
        bulk.stage([batch(columns, (b"a", "x"), (b"b", None))], task(4))
    assert [] == staged_at(file)


def test_a_full_disk_fails_a_task_in_one_line_and_leaves_nothing(file, tmp_path, monkeypatch):
    bulk = writer(file, deadline="0.1")
    with monkeypatch.context() as patch:
        patch.setattr("jqueue.runtime.posix_files.os.write", _disk_full)
        with pytest.raises(StorageError) as caught:
            bulk.stage([payloads(*MANY)], task())
    line = str(caught.value)
    assert ("Could not write the object: ", 1) == (line[:28], len(line.splitlines()))
    assert "the disk is full; free some space" in line
    assert [] == [path for path in tmp_path.rglob("*") if not path.is_dir()]
    bulk.commit([bulk.stage([payloads(*MANY)], task(0, 1))])
    assert MANY == texts_of(file)


def _disk_full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_staged_objects_can_be_in_their_own_folder(tmp_path, file):
    folder = tmp_path / "staging"
    bulk = writer(file, stagingPath=str(folder))
    report = bulk.stage([payloads(b"a")], task())
    assert [] == staged_at(file)
    assert any(report.name in path.name for path in folder.iterdir())
    bulk.commit([report])
    assert ([b"a"], []) == (texts_of(file), list(folder.iterdir()))


def test_the_repr_of_a_writer_shows_no_secrets():
    options = {"path": "s3://id:secret@bucket/queue.json", "stagingPath": "s3://id:secret@bucket/staging"}
    options["entrypoint"] = "resize"
    enqueue = bulk_enqueue(options, parse_options(options, OPTIONS), KEYED)
    assert "secret" not in repr(enqueue)


def test_a_message_of_another_kind_is_ignored(file):
    bulk = writer(file)
    report = bulk.stage([payloads(b"a")], task())
    assert isinstance(report, TaskReport)
    bulk.commit([None, report])
    assert [b"a"] == texts_of(file)
