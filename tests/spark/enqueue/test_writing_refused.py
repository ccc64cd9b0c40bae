"""Refusals of bulk enqueue: too many bytes, with the sizes, and wrong options or columns before a task starts."""

import asyncio
from functools import partial

import pytest
from pyspark.sql.types import BinaryType, StringType

from jqueue import DirectQueue, Limits, LocalFileSystemStorage, connect
from jqueue.domain.errors import InvalidJobError, InvalidURLError, QueueFullError, StorageError
from jqueue.domain.operations import bulk as bulk_operation
from tests.spark.enqueue.bulk import Rough, jobs_of, on, payloads, schema, staged_at, task, write, writer

pytestmark = pytest.mark.wide


@pytest.fixture
def elsewhere(tmp_path):
    """Options of a write whose commit copies its rows."""
    (tmp_path / "staged").mkdir()
    return {"stagingPath": str(tmp_path / "staged")}


class TestTooMuch:
    """Rows that the commit copies, and that exceed the limit of a queue, are refused with their size and the limit."""

    @pytest.fixture
    def copying(self, file, elsewhere):
        return partial(writer, file, maxBlobBytes="10000", **elsewhere)

    def test_a_task_that_exceeds_the_limit_alone_stages_nothing(self, copying):
        bulk = copying()
        with pytest.raises(QueueFullError, match=r"partition 0 alone has \d+ bytes .* and the queue takes 9000"):
            bulk.stage([payloads(*[b"x" * 100] * 100)], task())
        assert [] == copied_of(bulk)

    def test_the_first_task_beyond_the_limit_stages_nothing_and_raises_an_error(self, copying):
        bulk = copying()
        rows = [b"x" * 100] * 12
        done = [bulk.stage([payloads(*rows)], task(number, number)) for number in range(2)]
        size = sum(report.size for report in done) * 3 // 2
        with pytest.raises(QueueFullError) as caught:
            bulk.stage([payloads(*rows)], task(2, 2))
        assert (
            f"the jobs of the first 3 partitions take {size} bytes together, and the queue takes 9000: write fewer at "
            "a time, or raise the option maxBlobBytes" == str(caught.value)
        )
        assert sorted(report.name for report in done) == sorted(copied_of(bulk))

    def test_attempts_of_one_task_count_once(self, file, copying):
        bulk = copying()
        rows = [b"x" * 100] * 12
        *_, last = [bulk.stage([payloads(*rows)], task(0, attempt)) for attempt in range(4)]
        bulk.commit([last, bulk.stage([payloads(*rows)], task(1, 9))])
        assert (24, []) == (len(jobs_of(file)), copied_of(bulk))

    def test_a_commit_beyond_the_limit_reads_nothing_and_removes_its_staged_objects(self, file, copying):
        bulk = copying()
        store = Rough(LocalFileSystemStorage(file), told={"list": ["refused"] * 3})
        on(bulk, store)
        reports = [bulk.stage([payloads(*[b"x" * 100] * 12)], task(number, number)) for number in range(3)]
        size = sum(report.size for report in reports)
        with pytest.raises(QueueFullError) as caught:
            bulk.commit(reports)
        assert (
            f"36 jobs take {size} bytes together, and the queue takes 9000: write fewer at a time, or raise the option "
            "maxBlobBytes" == str(caught.value)
        )
        assert not any(kind.startswith("read") for kind, _ in store.calls)
        assert ([], []) == (staged_at(file), jobs_of(file))

    def test_a_nearly_full_queue_refuses_the_commit_and_is_unchanged(self, file, copying):
        write(file, *[b"x" * 100] * 12, maxBlobBytes="10000")
        bulk = copying()
        report = bulk.stage([payloads(*[b"x" * 100] * 18)], task())
        with pytest.raises(QueueFullError, match=r"no room for 18 jobs of \d+ bytes in total.*option maxBlobBytes"):
            bulk.commit([report])
        assert (12, []) == (len(jobs_of(file)), copied_of(bulk))

    def test_a_larger_payload_can_be_allowed(self, file):
        with pytest.raises(InvalidJobError, match="row 0 of partition 0: payload is 1048577 bytes"):
            writer(file).stage([payloads(b"x" * ((1 << 20) + 1))], task())
        write(file, b"x" * ((1 << 20) + 1), maxPayloadBytes=str(2 << 20))
        assert 1 == len(jobs_of(file))


class TestSegmentsHaveNoLimit:
    """Rows in segments are written whatever the limit of the queue, and do not change it."""

    @pytest.mark.parametrize("rows", [18, 1100], ids=["few", "many"])
    def test_a_nearly_full_queue_takes_rows_in_segments(self, file, rows):
        asyncio.run(settings_of(file, blob_bytes=10_000))
        write(file, *[b"x" * 100] * 12)
        write(file, *[b"x" * 100] * rows, maxBlobBytes="20000")
        assert (12 + rows, 10_000) == (len(jobs_of(file)), blob_bytes_of(file))

    def test_too_many_segments_are_refused_and_removed(self, file, monkeypatch):
        monkeypatch.setattr(bulk_operation, "SEGMENTS_KEPT", 0)
        bulk = writer(file)
        report = bulk.stage([payloads(*[b"x"] * 1100)], task())
        with pytest.raises(QueueFullError, match=r"no room for 1 more segment of jobs.*Wait until workers"):
            bulk.commit([report])
        assert ([], []) == (jobs_of(file), staged_at(file))


class TestARaisedLimit:
    """`maxBlobBytes` is stored in the queue if copied rows need it, and then applies to every writer."""

    LARGE = Limits().enqueue_bytes // 20

    def test_a_client_with_default_limits_can_write_after_the_limit_was_raised(self, file, elsewhere):
        sizes = {"maxBlobBytes": str(200 << 20), "maxPayloadBytes": str(8 << 20)}
        write(file, *[b"x" * self.LARGE] * 18, **sizes, **elsewhere)
        assert 200 << 20 == blob_bytes_of(file)
        asyncio.run(enqueue_by_default(file))
        write(file, b"one more", **elsewhere)
        assert 20 == len(jobs_of(file))

    def test_a_raised_limit_is_stored_only_if_the_rows_need_it(self, file, elsewhere):
        write(file, b"x", maxBlobBytes=str(200 << 20), **elsewhere)
        assert blob_bytes_of(file) is None

    def test_a_larger_limit_of_the_queue_is_kept(self, file, elsewhere):
        write(file, *[b"x" * 100] * 30, maxBlobBytes="20000", **elsewhere)
        asyncio.run(settings_of(file, blob_bytes=100_000))
        write(file, *[b"x" * 100] * 30, maxBlobBytes="20000", **elsewhere)
        assert (60, 100_000) == (len(jobs_of(file)), blob_bytes_of(file))

    def test_tasks_use_the_limit_of_the_queue(self, file, elsewhere):
        asyncio.run(settings_of(file, blob_bytes=5000))
        with pytest.raises(QueueFullError, match="the queue takes 4500"):
            writer(file, **elsewhere).stage([payloads(*[b"x" * 100] * 100)], task())


def copied_of(bulk):
    """The names of the objects that the commit of a writer would copy."""
    return staged_at(bulk.enqueue.staging.url)


def blob_bytes_of(file):
    return asyncio.run(settings_of(file)).blob_bytes


async def settings_of(file, **changes):
    async with connect(file, DirectQueue) as queue:
        return await queue.configure(**changes)


async def enqueue_by_default(file):
    async with connect(file, DirectQueue) as queue:
        await queue.enqueue("resize", b"by default")


class TestRefusedBeforeATaskStarts:
    """Errors on the driver, in one line."""

    def refused(self, error, url, *args, **options):
        with pytest.raises(error) as caught:
            writer(url, *args, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_overwrite_is_refused(self, file):
        said = self.refused(InvalidJobError, file, overwrite=True)
        assert said.startswith(
            'a queue cannot be overwritten: that would lose jobs that others work on. Use mode("append")'
        )

    def test_a_column_of_a_wrong_type_is_refused(self, file):
        said = self.refused(InvalidJobError, file, schema(payload=BinaryType(), priority=StringType()))
        assert "column 'priority' is string: it must be a whole number" == said

    def test_an_app_id_without_a_version_is_refused(self, file):
        wanted = "give txnAppId and txnVersion together: the application, and the number of its write"
        assert wanted == self.refused(InvalidJobError, file, txnAppId="a")
        assert wanted == self.refused(InvalidJobError, file, txnVersion="1")

    def test_an_invalid_version_is_refused(self, file):
        assert "option txnVersion takes a whole number from 0" in self.refused(
            InvalidJobError, file, txnAppId="a", txnVersion="-1"
        )

    def test_an_unprintable_name_is_refused(self, file):
        assert "option entrypoint must be printable" in self.refused(InvalidJobError, file, entrypoint="a\nb")
        assert "option txnAppId must be printable" in self.refused(
            InvalidJobError, file, txnAppId="\t.", txnVersion="1"
        )

    def test_an_unknown_option_of_a_write_is_refused(self, file):
        assert "there is no option 'entryPiont'" in self.refused(InvalidJobError, file, entryPiont="a")

    @pytest.mark.parametrize("url", ["", "s3:/bucket/key", "ftp://host/queue", "memory://jobs"])
    def test_a_wrong_url_of_a_write_is_refused(self, url):
        self.refused(InvalidURLError, url)

    def test_a_wrong_staging_url_is_refused_without_being_shown(self, file):
        assert "secret" not in self.refused(InvalidURLError, file, stagingPath="s3://id:secret@/x")

    def test_an_unreadable_queue_is_refused_for_a_named_write(self, tmp_path):
        (tmp_path / "queue.json").write_text("no queue")
        self.refused(StorageError, str(tmp_path / "queue.json"), txnAppId="a", txnVersion="1")
