"""Both queues keep the queue contract while every waiting job is in a tiny segment."""

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.testing.queue_contract import QueueContract
from tests.contract.test_queue_contract import InVirtualTime
from tests.contract.tiny_segments import TinyBrokerQueue, TinyDirectQueue

FILLS_THE_BLOB = {
    "test_a_full_queue_keeps_the_job_that_was_to_be_replaced",
    "test_a_full_queue_takes_no_cron_entry",
    "test_a_full_queue_takes_no_job_and_still_serves_those_it_has",
    "test_the_limit_that_a_queue_has_holds_for_every_writer",
    "test_what_has_no_room_is_not_added_in_part",
    "test_what_has_no_room_may_make_the_queue_larger_for_every_writer",
}
"""Tests that enqueue until the blob is full. It never is, as the jobs do not stay in it."""

EDITS_A_WAITING_JOB = {
    "test_a_job_that_cannot_be_read_is_set_aside_and_served_once_mended",
    "test_no_repr_shows_a_payload",
    "test_the_id_of_a_job_that_cannot_be_read_is_not_given_again",
}
"""Tests that edit the line of a waiting job in the blob, which has none."""


def without_tests_of_the_blob(contract):
    """Remove the tests that are about waiting jobs in the blob itself."""
    for name in FILLS_THE_BLOB | EDITS_A_WAITING_JOB:
        assert hasattr(QueueContract, name), f"the contract has no test {name}"
        setattr(contract, name, None)
    return contract


@pytest.mark.wide
@without_tests_of_the_blob
class TestDirectQueueWithTinySegmentsInMemory(InVirtualTime):
    kind = TinyDirectQueue


@without_tests_of_the_blob
class TestBrokerQueueWithTinySegmentsInMemory(InVirtualTime):
    kind = TinyBrokerQueue


@pytest.mark.wide
@without_tests_of_the_blob
class TestDirectQueueWithTinySegmentsOnAFile(QueueContract):
    kind = TinyDirectQueue
    moment = 1.0  # each commit creates several files

    @pytest.fixture
    def make_storage(self, tmp_path):
        return lambda: LocalFileSystemStorage(tmp_path / "queue.json", lock_timeout=60)


@pytest.mark.wide
@without_tests_of_the_blob
class TestBrokerQueueWithTinySegmentsOnAFile(QueueContract):
    kind = TinyBrokerQueue
    moment = 1.0  # each commit creates several files

    @pytest.fixture
    def make_storage(self, tmp_path):
        return lambda: LocalFileSystemStorage(tmp_path / "queue.json", lock_timeout=60)
