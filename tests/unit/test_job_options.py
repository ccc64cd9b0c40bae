"""Each option of a job is defined once, and every list of options, every verb and every queue agrees with it."""

import copy
import inspect
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_type_hints

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, InvalidJobError, JobQueue, QueueSet
from jqueue.domain.job_options import ALL_OPTIONS, OPTIONS, STORED, options_of_plain, plain_options
from jqueue.domain.models import Job
from jqueue.domain.operations import Enqueue
from jqueue.formats.queue import StoreQueue
from jqueue.ports.queue import Consumer, Operator, Producer, SupportsApply, SupportsPeek
from jqueue.sync import SyncQueue
from jqueue.worker.handler_options import HandlerArguments, HandlerOptions

BOUND = [each for each in OPTIONS.values() if each.needs or each.excludes]
QUEUES = (BrokerQueue, DirectQueue, StoreQueue, QueueSet, SyncQueue)
GIVEN: dict[str, Any] = {
    "job_id": "a",
    "delay": timedelta(seconds=3),
    "run_at": datetime(2026, 1, 1, tzinfo=UTC),
    "expires_at": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    "max_attempts": 3,
    "headers": {"a": "b"},
    "unique_key": "k",
    "unique_for": 5,
    "on_conflict": "replace",
    "concurrency_key": "c",
    "concurrency_limit": 2,
    "keep_result": 60.5,
}


@pytest.mark.parametrize("verb", [BrokerQueue.enqueue, JobQueue.enqueue, SyncQueue.enqueue, Enqueue])
def test_a_verb_shows_and_describes_each_option_with_its_default_and_its_type(verb):
    parameters = inspect.signature(verb).parameters
    assert ["entrypoint", "payload", "priority", *OPTIONS] == [
        name for name in parameters if name not in ("self", "deadline")
    ]
    for name, option in OPTIONS.items():
        assert option.default == parameters[name].default
        assert verb is Enqueue or option.type == parameters[name].annotation
        assert f"    {name}: {option.description}\n" in f"{inspect.getdoc(verb)}\n"
    for option in STORED.values():
        if option.field not in ("id", None):
            assert option.unset == Job.model_fields[option.field].default


@pytest.mark.parametrize("kind", QUEUES, ids=lambda kind: kind.__name__)
def test_every_queue_has_every_verb_of_its_ports_with_its_documentation(kind):
    ports = (SupportsApply, Producer, Consumer, Operator, SupportsPeek)
    of_its_own = {"dequeue", "apply", "apply_each", "redrive", "find"} if kind is QueueSet else set()
    for port in ports:
        for name, verb in vars(port).items():
            public = inspect.isfunction(verb) and not name.startswith("_")
            if public and (name in dir(JobQueue) or hasattr(kind, name)):
                assert getattr(kind, name) is not verb, name
                assert name in of_its_own or inspect.getdoc(verb) == inspect.getdoc(getattr(kind, name)), name


def test_an_enqueue_is_a_value_whose_options_become_json_and_come_back():
    plain, rich = Enqueue("resize", delay=None), Enqueue("resize", delay=3)
    assert plain == Enqueue("resize") != rich
    assert hash(rich) == hash(Enqueue("resize", delay=3))
    assert rich == pickle.loads(pickle.dumps(rich)) == copy.deepcopy(rich)
    assert OPTIONS.keys() == GIVEN.keys()
    encoded = plain_options(GIVEN)
    assert {"2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+01:00"} == {encoded["run_at"], encoded["expires_at"]}
    assert {**GIVEN, "delay": 3.0} == options_of_plain(encoded)
    assert {} == plain_options({name: option.default for name, option in OPTIONS.items()})


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
    with pytest.raises(TypeError, match=r"^enqueue\(\) missing 1 required positional argument: 'entrypoint'$"):
        await queue.enqueue()


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


def test_a_handler_takes_its_options_by_name_with_the_types_that_they_have_for_a_job():
    types = get_type_hints(HandlerOptions)
    assert get_type_hints(HandlerArguments) == types
    shared = {"priority", "max_attempts", "concurrency_limit", "keep_result"}
    assert {name: ALL_OPTIONS[name].type for name in shared} == {name: types[name] for name in shared}
