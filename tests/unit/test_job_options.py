"""The options of a job: as plain JSON, together, misspelled, and as a type checker sees them."""

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, InvalidJobError, Limits
from jqueue.domain.draft import Draft
from jqueue.domain.job_options import OPTIONS, SCHEDULE_OPTIONS
from jqueue.domain.models import QueueState
from jqueue.domain.operations.base import Preparation, claim_of
from jqueue.domain.operations.codec import decode_operation, encode_operation
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import Ack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.rules import SetSchedule
from jqueue.ports import JobQueue
from jqueue.sync import SyncQueue

BOUND = [each for each in OPTIONS.values() if each.needs or each.excludes]
GIVEN: dict[str, Any] = {
    "job_id": "a",
    "delay": timedelta(seconds=3),
    "run_at": datetime(2026, 1, 1, tzinfo=UTC),
    "expires_at": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    "max_attempts": 3,
    "headers": {"a": "b"},
    "unique_key": "k",
    "unique_for": 5,
    "timeout": 2.5,
    "on_conflict": "replace",
    "concurrency_key": "c",
    "concurrency_limit": 2,
    "fair_key": "f",
    "fair_weight": 0.25,
    "keep_result": 60.5,
    "group": "g",
    "after": ("p",),
    "on_dead": "run",
    "encoding": "named",
}


def test_an_enqueue_is_a_value_whose_options_become_json_and_come_back():
    plain, rich = Enqueue("resize", delay=None), Enqueue("resize", delay=3)
    assert plain == Enqueue("resize") != rich
    assert hash(rich) == hash(Enqueue("resize", delay=3))
    assert rich == pickle.loads(pickle.dumps(rich)) == copy.deepcopy(rich)
    assert OPTIONS.keys() == GIVEN.keys()
    whole = Enqueue("resize", **(GIVEN | {"delay": 3.0}))
    assert whole == decode_operation(encode_operation(whole))
    assert [option.default for option in OPTIONS.values()] == [getattr(plain, name) for name in OPTIONS]
    entry = SetSchedule("nightly", "0 2 * * *", "resize")
    assert [option.default for option in SCHEDULE_OPTIONS.values()] == [
        getattr(entry, name) for name in SCHEDULE_OPTIONS
    ]


class Text(str):
    """As Django, numpy and enums derive classes from the plain ones, whose objects no encoder of JSON takes."""


class Moment(datetime):
    pass


def derived(value):
    """Return an equal value of derived classes."""
    if isinstance(value, dict):
        return {derived(name): derived(text) for name, text in value.items()}
    if isinstance(value, datetime):
        return Moment.fromisoformat(value.isoformat())
    if isinstance(value, timedelta):
        return type("Length", (timedelta,), {})(seconds=value.total_seconds())
    if isinstance(value, tuple):
        return type("Several", (list,), {})(map(derived, value))
    return Text(value) if isinstance(value, str) else type("Number", (type(value),), {})(value)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda each: each.name)
def test_a_value_of_a_derived_class_is_stored_as_a_plain_one(option):
    partners = {option.needs: GIVEN[option.needs]} if option.needs else {}
    plain, other = partners | {option.name: GIVEN[option.name]}, partners | {option.name: derived(GIVEN[option.name])}
    preparation = Preparation(Limits(), 1.0, lambda: "new", claim_of)
    encoded = encode_operation(Enqueue("resize", **plain).prepared(preparation))
    assert encoded == encode_operation(Enqueue(Text("resize"), **other).prepared(preparation))


def test_an_operation_that_is_applied_to_a_state_is_checked_and_completed_first():
    state, now = QueueState(), datetime(2026, 1, 1, tzinfo=UTC)
    wrongs: list[Any] = [Enqueue("e"), Enqueue("", job_id="a"), Enqueue("e", job_id="a", priority=2**31), Ack("a")]
    for wrong in wrongs:
        with pytest.raises(InvalidJobError):
            wrong.apply(state, now)
    state, job = Enqueue("e", job_id="a", unique_key="k", unique_for=timedelta(hours=1)).apply(state, now)
    assert ("a", 3600.0) == (job.id, job.unique_for)
    state, [job] = Dequeue().apply(state, now)
    state, _ = Ack(job).apply(state, now)
    assert ((), {"a": 1}) == (state.jobs, state.finished)
    with pytest.raises(InvalidJobError, match="job_id"):
        Enqueue("e").change(Draft(state), now)


@pytest.mark.parametrize("option", BOUND, ids=lambda each: each.name)
async def test_options_that_belong_together_or_exclude_each_other_are_checked(option):
    partners: dict[str, Any] = {option.excludes: GIVEN[option.excludes]} if option.excludes else {}
    with pytest.raises(InvalidJobError, match=option.needs or option.excludes):
        await DirectQueue(InMemoryStorage()).enqueue("work", **partners, **{option.name: GIVEN[option.name]})


async def test_a_wrong_option_is_refused_although_an_equal_one_was_taken_and_a_misspelled_one_is_named():
    queue: Any = DirectQueue(InMemoryStorage())
    await queue.dequeue("work")
    wrongs: list[dict[str, Any]] = [{"batch_size": True}, {"batch_size": []}, {"claim_timeout": []}]
    for wrong in wrongs:
        with pytest.raises(InvalidJobError):
            await queue.dequeue("work", **wrong)
    with pytest.raises(TypeError, match="delya"):
        await queue.enqueue("work", delya=3)
    with pytest.raises(TypeError, match=r"enqueue\(\) missing 1 required positional argument: 'entrypoint'$"):
        await queue.enqueue()


async def test_the_headers_of_a_job_cannot_be_changed():
    job = await DirectQueue(InMemoryStorage()).enqueue("work", headers={"a": "b"})
    for change in (lambda headers: headers.update(a="c"), lambda headers: headers.pop("a")):
        with pytest.raises(TypeError, match="pass new ones to enqueue"):
            change(job.headers)
    assert {"a": "b"} == job.headers


async def checked_by_mypy(queue: JobQueue, broker: BrokerQueue, blocking: SyncQueue) -> None:
    """Show a type checker wrong arguments; never called. Each `type: ignore` is an error in a user's program."""
    await queue.enqueue("work", b"", 3, delay=timedelta(1), max_attempts=3, headers={"a": "b"}, deadline=3)
    await queue.enqueue("work", b"", 3, delya=3)  # type: ignore[call-arg]
    await broker.enqueue("work", max_attempts="3")  # type: ignore[arg-type]
    await broker.enqueue("work", on_conflict="ignore")  # type: ignore[arg-type]
    blocking.enqueue("work", b"", 3, delay=timedelta(1), max_attempts=3, headers={"a": "b"}, deadline=3)
    blocking.enqueue("work", max_attempts="3")  # type: ignore[arg-type]
    Enqueue("work", b"", delay=3, headers={"a": "b"})
    Enqueue("work", max_attempts="3")  # type: ignore[arg-type]
