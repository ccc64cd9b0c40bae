"""Outcomes of single rows: staged by the function of a batch, and told in the commit that ends the batch."""

import asyncio
import logging
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import JobStatus
from jqueue.domain.range_jobs import RangeFailure
from jqueue.spark.batch.outcomes import Outcome
from jqueue.spark.staging import PREFIX
from jqueue.spark.stream.end_batch import FAILED, _failure_of, _narrow, _of_failure, _of_result, _result_of, _rows
from jqueue.spark.stream.row_outcomes import OutcomeStore
from tests.spark.stream.deep_world import DeepWorld, filled
from tests.spark.stream.stream_driver import Killed

pytestmark = pytest.mark.wide

STEPS = range(31)


class TellingWorld(DeepWorld):
    """A query whose function tells outcomes of rows."""

    def __init__(self, folder, **options):
        super().__init__(folder, **options)
        self.folder = folder
        self.store = OutcomeStore(LocalFileSystemStorage(folder / "queue.json"))

    def open(self, options):
        storage = LocalFileSystemStorage(self.folder / "queue.json")
        return DirectQueue(storage, clock=self.clock, stale_timeout=options.claim_timeout)

    def tell(self, rows, outcomes):
        if rows:
            asyncio.run(self.store.write(rows[0]["holder"].rpartition("/")[2], outcomes))

    @property
    def staged(self):
        return [path.name for path in self.folder.iterdir() if PREFIX in path.name]


@pytest.fixture
def world(tmp_path):
    return filled(TellingWorld(tmp_path))


def found(world, job_id):
    return world.have(lambda queue: queue.find(job_id))


def test_rows_fail_by_their_outcomes_and_all_others_are_done(world):
    failing = dict(zip(world.enqueued[:5], ("retried", "dead", "snoozed", "handed_back", "retried"), strict=True))
    failing[world.enqueued[12]] = "retried"  # a single job
    uncharged = world.enqueued[3]  # it keeps its place, and comes again at once

    def function(batch, rows):
        ids = [row["id"] for row in rows if row["id"] in failing and row["attempt"] == 1]
        world.tell(rows, [Outcome(each, 0, failing[each], delay=600, error=f"failed {each[:4]}") for each in ids])

    assert world.live(function=function, audit=False)
    left = {job.id: job for job in world.jobs}
    assert failing.keys() - {uncharged} == left.keys()
    assert 2 == sum(uncharged in ids for ids in world.sink.batches.values())
    for job_id, job in left.items():
        kind = failing[job_id]
        assert (JobStatus.DEAD if kind == "dead" else JobStatus.QUEUED) == job.status
        assert (1, 0 if kind == "snoozed" else 1) == (job.attempt, job.failures)
        assert kind == "dead" or job.run_at is not None
        if kind in ("retried", "dead"):
            assert f"failed {job_id[:4]}" == job.error
    assert [] == world.staged


def test_results_are_kept_of_jobs_of_ranges_and_of_single_jobs(world):
    ranged, single, other = world.enqueued[0], world.enqueued[12], world.enqueued[1]

    def function(batch, rows):
        told = [Outcome(ranged, 0, "done", result={"a": 1}, keep_result=60.0), Outcome(single, 0, "done", result=[2])]
        told.append(Outcome(other, 0, "done", result="not kept"))
        ids = {row["id"] for row in rows}
        world.tell(rows, [each for each in told if each.job_id in ids])

    assert world.live(function=function, audit=False)
    assert [{"a": 1}, [2]] == [found(world, job_id).result for job_id in (ranged, single)]
    assert found(world, other).result is None
    assert [] == world.jobs


def test_the_commit_that_ends_a_batch_with_outcomes_claims_the_next(world):
    versions = []

    def function(batch, rows):
        versions.append(world.have(lambda queue: queue.read_state()).version)
        world.tell(rows, [Outcome(row["id"], 0, "dead") for row in rows[:2]])

    assert world.live(function=function, audit=False)
    assert [1, 1] == [after - before for before, after in pairwise(versions[1:])]
    assert 6 == len(world.jobs)


def test_outcomes_of_other_jobs_are_ignored_with_a_warning(world, caplog):
    with caplog.at_level(logging.WARNING, "jqueue"):
        assert world.live(function=lambda batch, rows: world.tell(rows, [Outcome("unknown", 0, "dead")]), audit=False)
    assert [] == world.jobs
    assert {"outcomes of 1 row are ignored: batch "} == {record.getMessage()[:37] for record in caplog.records}


def test_damaged_outcomes_end_no_batch(world):
    def function(batch, rows):
        world.tell(rows, [Outcome("x", 0, "dead")])
        for path in world.folder.glob(f"*{PREFIX}stream*"):
            path.write_bytes(path.read_bytes()[:-4])

    with pytest.raises(Exception, match="damaged or incomplete"):
        world.live(function=function, audit=False)
    assert 25 == len(world.jobs)


@pytest.mark.parametrize("kill_at", STEPS)
def test_a_query_with_outcomes_can_be_killed_at_any_step(world, kill_at):
    told: dict[int, set[str]] = {}

    def function(batch, rows):
        """A third of the jobs fail at first. What the last run of a batch says counts."""
        told[batch] = {row["id"] for row in rows if row["id"] in unlucky and row["attempt"] == 1}
        world.tell(rows, [Outcome(job_id, 0, "retried", error="unlucky") for job_id in told[batch]])

    unlucky = set(world.enqueued[::3])
    assert not world.live(kill_at=kill_at, function=function, audit=False)
    for _ in range(3):  # jobs that failed are younger than the query, and come in the next run
        assert world.live(function=function, audit=False)
    assert [] == world.jobs
    deliveries = {job_id: sum(job_id in ids for ids in world.sink.batches.values()) for job_id in world.enqueued}
    assert {job_id: 2 if job_id in unlucky else 1 for job_id in world.enqueued} == deliveries
    assert unlucky == set().union(*told.values())
    assert [] == world.staged


def test_outcomes_of_claims_that_were_lost_before_a_late_restart_are_removed(world):
    def function(batch, rows):
        world.tell(rows, [Outcome(row["id"], 0, "dead") for row in rows[:1]])

    def step(name):
        if name == "done" and world.staged:
            raise Killed(name)

    assert not world.live(function=function, audit=False, on_step=step)
    world.have(lambda queue: queue.requeue_stale(0))
    assert world.live(audit=False)
    assert [] == world.staged


def test_outcomes_of_an_earlier_run_of_a_batch_are_forgotten_when_it_is_repeated(world):
    runs = []

    def function(batch, rows):
        if batch == 1:
            runs.append(len(rows))
            if len(runs) == 1:
                world.tell(rows, [Outcome(row["id"], 0, "dead") for row in rows])

    def step(name):
        if name == "told" and runs == [10]:
            raise Killed(name)

    assert not world.live(function=function, audit=False, on_step=step)
    assert world.staged
    assert world.live(function=function, audit=False)
    assert [10, 10] == runs
    assert [] == world.jobs, "the second run has told nothing, so all are done"
    assert [] == world.staged


# What `end_batch` collects


def test_failures_become_outcomes():
    given = {"a": ValueError("bad"), "b": RangeFailure("no", delay=3, dead=True), "c": RangeFailure(charge=False)}
    rows = list(_rows(given, "failed", FAILED, 3, _of_failure))
    a, b, c = (_failure_of(row, None) for row in rows)
    assert ("retried", "ValueError: bad", None) == (a.kind, a.error, a.delay)
    assert ("dead", "no", 3.0) == (b.kind, b.error, b.delay)
    assert "handed_back" == c.kind
    assert ("snoozed", 9.0) == ((late := _failure_of(rows[2], 9.0)).kind, late.delay)


class Chosen(str):
    """A column as `_narrow` asks for it: what it is called and cast to becomes its text."""

    def cast(self, kind):
        return Chosen(f"{self} {kind}")

    def alias(self, name):
        return Chosen(f"{self} {name}")


class Named:
    """A DataFrame that has these columns."""

    def __init__(self, *columns):
        self.columns = columns
        self.schema = {name: SimpleNamespace(dataType=None) for name in columns}

    def __getitem__(self, name):
        assert self.columns.count(name) == 1, "the name is ambiguous"
        return Chosen(name)

    def select(self, *columns):
        return set(columns)


def test_names_of_columns_may_be_in_upper_case_as_in_spark_and_others_are_ignored():
    given: Any = Named("ID", "Dead", "delay", "payload", "payload")
    chosen: Any = _narrow(given, FAILED)
    assert {"ID string id", "Dead boolean dead", "delay double delay"} == chosen


def test_results_become_outcomes():
    assert {"x": (1, 2)} != _result_of(_of_result("a", {"x": (1, 2)}), None).result == {"x": [1, 2]}
    assert (None, None) == (
        (none := _result_of({"id": "a", "result": "{}"}, None)).result,
        none.keep_result,
    )
    kept = _result_of({"id": "a", "result": '{"result": "text"}', "keep_result": 5.0}, 60.0)
    assert ("text", 5.0) == (kept.result, kept.keep_result)
    with pytest.raises(InvalidJobError, match=r"^the result of job 'a': "):
        _result_of(_of_result("a", object()), None)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"a": None, "b": None}, "more than 1 row of failed: make batches smaller"), ({"": None}, "a row without an id")],
)
def test_too_many_rows_and_rows_without_an_id_are_refused_in_one_line(given, said):
    with pytest.raises(InvalidJobError, match=said):
        list(_rows(given, "failed", FAILED, 1, _of_failure))
