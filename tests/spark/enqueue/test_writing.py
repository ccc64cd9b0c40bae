"""Bulk enqueue, driven as Spark drives it but without Spark: tasks, commit and abort, each in any number."""

import asyncio
import pickle
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.types import BinaryType, DoubleType, StringType

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, LocalFileSystemStorage, connect
from jqueue.domain.errors import DeadlineExceededError, DuplicateJobError, InvalidJobError, StorageError
from jqueue.spark.enqueue.committing import TaskReport
from jqueue.spark.enqueue.writing import OPTIONS, bulk_enqueue
from jqueue.spark.option_parsing import take
from jqueue.testing import virtual_time
from tests.spark.enqueue.bulk import (
    KEYED,
    Rough,
    batch,
    jobs_of,
    last_of,
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


def test_what_tasks_stage_is_in_the_queue_after_the_commit_and_nothing_is_left_beside_it(url):
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


def test_the_writer_and_its_reports_travel_between_processes(file):
    bulk = pickle.loads(pickle.dumps(writer(file)))
    reports = pickle.loads(pickle.dumps([bulk.stage([payloads(b"a")], task())]))
    pickle.loads(pickle.dumps(bulk)).commit(reports)
    assert [b"a"] == texts_of(file)


def test_jobs_are_added_to_a_queue_that_has_some(url):
    write(url, b"a")
    write(url, b"b")
    assert [b"a", b"b"] == texts_of(url)


def test_a_task_that_is_tried_again_adds_nothing_twice(url):
    bulk = writer(url)
    bulk.stage([payloads(b"a")], task(0, attempt=0))  # its executor was lost before the report arrived
    report = bulk.stage([payloads(b"a")], task(0, attempt=1))
    bulk.commit([report])
    assert [b"a"] == texts_of(url)
    assert [] == staged_at(url)


def test_of_two_attempts_that_run_side_by_side_one_counts(file):
    bulk = writer(file)
    first, second = (bulk.stage([payloads(b"a")], task(0, attempt)) for attempt in (0, 1))
    assert first.name != second.name
    bulk.commit([second])
    assert [b"a"] == texts_of(file)


def test_an_attempt_that_outlives_the_commit_changes_nothing_and_goes_by_age(file):
    bulk = writer(file)
    bulk.commit([bulk.stage([payloads(b"a")], task(0, 0))])
    late = bulk.stage([payloads(b"a")], task(0, 1))
    write(file, b"b")
    assert ([b"a", b"b"], [late.name]) == (texts_of(file), staged_at(file))
    write(file, b"c", stagingRetention="0")
    assert ([b"a", b"b", b"c"], []) == (texts_of(file), staged_at(file))


def test_a_commit_that_is_repeated_adds_nothing(url):
    bulk = writer(url)
    reports = [bulk.stage([payloads(b"a")], task())]
    bulk.commit(reports)
    bulk.commit(reports)
    assert [b"a"] == texts_of(url)


def test_an_abort_before_the_commit_removes_all_that_was_staged(url):
    bulk = writer(url)
    report = bulk.stage([payloads(b"a")], task(0, 0))
    bulk.stage([payloads(b"b")], task(1, 1))  # Spark lost its report
    bulk.abort([report, None])
    assert ([], []) == (staged_at(url), jobs_of(url))


def test_an_abort_before_any_commit_leaves_a_queue_that_does_not_exist_alone(tmp_path):
    bulk = writer(str(tmp_path / "queue.json"))
    bulk.stage([payloads(b"a")], task(0, 0))
    bulk.abort([None, None])
    assert [] == list(tmp_path.iterdir())


def test_an_abort_of_which_nothing_was_staged_leaves_the_queue_alone(file, tmp_path):
    bulk = writer(file)
    bulk.abort([bulk.stage([], task(0, 0)), bulk.stage([], task(1, 1))])
    bulk.abort([])
    assert [] == list(tmp_path.iterdir())


def test_an_abort_leaves_what_other_writes_have_staged(file):
    other, bulk = writer(file), writer(file)
    report = other.stage([payloads(b"a")], task())
    bulk.stage([payloads(b"b")], task())
    bulk.abort([None])
    other.commit([report])
    assert [b"a"] == texts_of(file)


def test_an_abort_after_a_commit_that_succeeded_takes_nothing_back(url, caplog):
    bulk = writer(url)
    report = bulk.stage([payloads(b"a")], task())
    bulk.commit([report])
    bulk.abort([report])
    assert [b"a"] == texts_of(url)


def test_a_commit_whose_answer_is_lost_looks_and_finds_itself(file):
    storage = Rough(LocalFileSystemStorage(file), told={"write": ["unanswered"]})
    bulk = on(writer(file), storage)
    bulk.commit([bulk.stage([payloads(b"a")], task())])
    assert [b"a"] == texts_of(file)


def test_an_abort_that_may_not_list_removes_what_it_was_told_of(file):
    bulk = on(writer(file), Rough(LocalFileSystemStorage(file), told={"list": ["refused"] * 4}))
    told, lost = (bulk.stage([payloads(b"a")], task(number, number)) for number in range(2))
    bulk.abort([told, None])
    assert [lost.name] == staged_at(file)


class TestACommitOfWhichNobodyKnows:
    """Its write was sent, the store is away, and Spark gives up."""

    @pytest.fixture
    def store(self, file):
        return Rough(LocalFileSystemStorage(file))

    @pytest.fixture
    def given_up(self, file, store):
        write(file, b"before")
        bulk = on(writer(file), store)
        report = bulk.stage([payloads(b"a")], task())
        store.told |= {"write": ["late"], "read": [None, *["lost"] * 999]}
        with pytest.raises(StorageError):
            bulk.commit([report])
        store.told.clear()
        return bulk, report

    def test_what_it_has_staged_is_left(self, given_up, file):
        assert [given_up[1].name] == staged_at(file)

    def test_if_it_has_landed_the_abort_leaves_all_as_it_is(self, given_up, file, store, caplog):
        bulk, report = given_up
        asyncio.run(store.land())
        bulk.abort([report])
        assert ([b"before", b"a"], [report.name]) == (texts_of(file), staged_at(file))
        assert "A write of 1 job that Spark gave up is in the queue: its commit succeeded" in caplog.messages

    def test_if_it_has_not_the_abort_sees_to_it_that_it_never_will(self, given_up, file, store):
        bulk, report = given_up
        bulk.abort([report])
        with pytest.raises(Exception, match="changed it"):
            asyncio.run(store.land())
        assert ([b"before"], []) == (texts_of(file), staged_at(file))

    def test_if_the_abort_cannot_look_it_removes_nothing_and_raises_nothing(self, given_up, file, store, caplog):
        bulk, report = given_up
        store.told |= {"read": ["lost"] * 999}
        bulk.abort([report])
        assert [report.name] == staged_at(file)
        assert caplog.messages[-1].startswith("An aborted write leaves staged jobs behind, which are removed later")


class TestACommitThatIsAskedForAgain:
    """Its write was sent, and the store is away beyond the deadline, and back before Spark is told."""

    class Away:
        """After the first request, all are lost until then."""

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

    def commit(self, store, what_happens, file):
        bulk = on(writer(file), store, deadline=100.0)
        report = bulk.stage([payloads(b"a")], task())
        store.told |= {"write": [what_happens], "read": self.Away(until=120.0)}
        return virtual_time.run(bulk.enqueue.commit([report], bulk.write_id, bulk.transaction))

    def left(self, store):
        return asyncio.run(store.storage.list_beside(".staged-"))

    def jobs(self, store):
        return asyncio.run(DirectQueue(store.storage).read_state()).jobs

    def test_it_is_found(self, store, file):
        receipt = self.commit(store, "unanswered", file)
        assert (1, 1, []) == (receipt.added, len(self.jobs(store)), self.left(store))

    def test_or_it_never_will_be_and_what_was_staged_is_removed(self, store, file):
        with pytest.raises(DeadlineExceededError):
            self.commit(store, "late", file)
        assert ((), []) == (self.jobs(store), self.left(store))


def test_a_rerun_with_the_same_transaction_stages_nothing_and_adds_nothing(url, caplog):
    options = {"txnAppId": "nightly", "txnVersion": "17"}
    write(url, b"a", **options)
    caplog.set_level("INFO", "jqueue")
    again = writer(url, **options)
    report = again.stage([payloads(b"a")], task())
    assert (None, 0) == (report.name, report.jobs)
    again.commit([report])
    assert [b"a"] == texts_of(url)
    assert "Version 17 of nightly was written before: nothing is added" in caplog.messages


def test_versions_of_a_transaction_only_grow(file):
    for version, text in [("5", b"a"), ("4", b"b"), ("6", b"c"), ("0", b"d")]:
        write(file, text, txnAppId="nightly", txnVersion=version)
    write(file, b"e", txnAppId="hourly", txnVersion="0")
    assert [b"a", b"c", b"e"] == texts_of(file)
    assert (6, 0) == (last_of(file, "nightly"), last_of(file, "hourly"))


def test_two_runs_at_the_same_time_add_their_jobs_once(file):
    options = {"txnAppId": "nightly", "txnVersion": "1"}
    one, other = writer(file, **options), writer(file, **options)
    reports = [bulk.stage([payloads(b"a")], task()) for bulk in (one, other)]
    one.commit(reports[:1])
    other.commit(reports[1:])
    assert ([b"a"], []) == (texts_of(file), staged_at(file))


def test_a_write_without_rows_touches_nothing(tmp_path):
    bulk = writer(str(tmp_path / "queue.json"))
    bulk.commit([bulk.stage([], task(0)), bulk.stage([payloads()], task(1, 1))])
    bulk.commit([])
    assert [] == list(tmp_path.iterdir())


def test_a_write_without_rows_is_remembered_if_it_has_a_name(file):
    write(file, txnAppId="nightly", txnVersion="3")
    assert 3 == last_of(file, "nightly")
    write(file, b"a", txnAppId="nightly", txnVersion="3")
    assert [] == texts_of(file)


def test_a_write_without_a_name_is_remembered_no_longer_than_its_abort_can_take(file):
    bulk = write(file, b"a")
    assert 1 == last_of(file, f"spark-write:{bulk.write_id}")
    assert 86400.0 == bulk.transaction.keep
    assert 60.0 == writer(file, txnAppId="a", txnVersion="1", txnRetention="60").transaction.keep


def test_a_unique_key_that_is_taken_leaves_its_job_out(file, caplog):
    caplog.set_level("INFO", "jqueue")
    for rows in ([(b"a", "k"), (b"b", None), (b"c", "k")], [(b"d", "k"), (b"e", "l")]):
        bulk = writer(file, KEYED)
        bulk.commit([bulk.stage([batch(KEYED, *rows)], task())])
    assert {b"a", b"b", b"e"} == set(texts_of(file))
    assert ["2 jobs added; 1 not added, as their unique keys are taken"] == caplog.messages[:1]


def test_a_unique_key_that_is_taken_is_an_error_if_so_told_and_nothing_is_added(file):
    write(file, b"a")
    bulk = writer(file, KEYED, onConflict="raise")
    report = bulk.stage([batch(KEYED, (b"b", "k"), (b"c", "k"))], task())
    with pytest.raises(DuplicateJobError, match="Unique key 'k' is taken"):
        bulk.commit([report])
    assert ([b"a"], []) == (texts_of(file), staged_at(file))


def test_a_delay_counts_from_the_commit(file):
    columns = schema(payload=BinaryType(), delay=DoubleType())
    bulk = writer(file, columns)
    report = bulk.stage([batch(columns, (b"a", 3600.0), (b"b", None))], task())
    committed = datetime.now(UTC)
    bulk.commit([report])
    waits, ready = jobs_of(file)
    assert timedelta(hours=1) == waits.run_at - waits.created_at
    assert committed <= waits.created_at
    assert ready.run_at is None


def test_a_queue_that_others_write_at_the_same_time_gets_all(url):
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


def test_staged_objects_that_are_gone_are_an_error_and_nothing_is_added(file):
    bulk = writer(file)
    reports = [bulk.stage([payloads(b"a")], task(number, number)) for number in range(2)]
    asyncio.run(LocalFileSystemStorage(file).beside(reports[0].name).remove())
    with pytest.raises(StorageError, match="1 of 2 staged objects are gone"):
        bulk.commit(reports)
    assert [] == jobs_of(file)


def test_a_row_that_cannot_be_a_job_fails_its_task_and_stages_nothing(file):
    columns = schema(payload=BinaryType(), entrypoint=StringType())
    bulk = without_entrypoint(file, columns)
    with pytest.raises(InvalidJobError, match="row 1 of partition 4: entrypoint is null"):
        bulk.stage([batch(columns, (b"a", "x"), (b"b", None))], task(4))
    assert [] == staged_at(file)


def test_staged_objects_may_have_a_folder_of_their_own(tmp_path, file):
    folder = tmp_path / "staging"
    bulk = writer(file, stagingPath=str(folder))
    report = bulk.stage([payloads(b"a")], task())
    assert [] == staged_at(file)
    assert any(report.name in path.name for path in folder.iterdir())
    bulk.commit([report])
    assert ([b"a"], []) == (texts_of(file), list(folder.iterdir()))


def test_no_text_of_a_writer_shows_the_secrets_of_its_url():
    options = {"path": "s3://id:secret@bucket/queue.json", "stagingPath": "s3://id:secret@bucket/staging"}
    options["entrypoint"] = "resize"
    enqueue = bulk_enqueue(options, take(options, OPTIONS), KEYED)
    assert "secret" not in repr(enqueue)


def test_a_message_of_somebody_else_is_left_alone(file):
    bulk = writer(file)
    report = bulk.stage([payloads(b"a")], task())
    assert isinstance(report, TaskReport)
    bulk.commit([None, report])
    assert [b"a"] == texts_of(file)
