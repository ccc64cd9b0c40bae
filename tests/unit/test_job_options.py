"""`jqueue.domain.job_options` defines each option of a job once, and every list of options agrees with it."""

import copy
import dataclasses
import inspect
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_type_hints

import pytest

from jqueue import BrokerQueue, InMemoryStorage, InvalidJobError, JobQueue
from jqueue.domain.job_options import (
    ALL_OPTIONS,
    OPTIONS,
    STORED,
    RepeatedOptions,
    options_of,
    options_of_plain,
    plain_options,
)
from jqueue.domain.models import Job, Schedule
from jqueue.domain.operations import Enqueue
from jqueue.ports.queue import Capabilities
from jqueue.sync import SyncQueue
from jqueue.worker.handler_options import HandlerArguments, HandlerOptions

BOUND = [each for each in OPTIONS.values() if each.needs or each.excludes]
VERBS = (BrokerQueue.enqueue, JobQueue.enqueue, SyncQueue.enqueue)
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


def unset_of(field):
    return Job.model_fields[field].default


@pytest.mark.parametrize("option", STORED.values(), ids=STORED)
def test_a_stored_option_is_a_field_of_the_job(option):
    assert option.field in Job.model_fields
    if option.field != "id":
        assert option.unset == unset_of(option.field)


@pytest.mark.parametrize("name", options_of(RepeatedOptions))
def test_an_option_of_the_jobs_of_a_cron_entry_is_a_field_of_it_like_that_of_a_job(name):
    entry, job = Schedule.model_fields[name], Job.model_fields[name]
    assert repr(entry) == repr(job)


@pytest.mark.parametrize("option", ALL_OPTIONS.values(), ids=ALL_OPTIONS)
def test_the_capability_of_an_option_exists(option):
    assert option.capability in (None, *(field.name for field in dataclasses.fields(Capabilities)))
    assert option.description.endswith((".", '"'))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__qualname__)
def test_a_verb_shows_each_option_with_its_default_and_its_type(verb):
    parameters = inspect.signature(verb).parameters
    own = ["entrypoint", "payload", "priority"]
    assert ["self", *own, *OPTIONS, "deadline"] == list(parameters)
    for name, option in OPTIONS.items():
        assert (option.default, option.type) == (parameters[name].default, parameters[name].annotation)


def test_the_help_of_a_verb_describes_each_option():
    for text in (inspect.getdoc(BrokerQueue.enqueue), inspect.getdoc(Enqueue)):
        assert text is not None
        assert [] == [
            name for name, option in OPTIONS.items() if f"\n    {name}: {option.description}\n" not in f"{text}\n"
        ]


def test_an_enqueue_has_each_option_as_a_field():
    fields = {field.name: field.default for field in dataclasses.fields(Enqueue)}
    assert ["entrypoint", "payload", "priority", *OPTIONS] == list(fields)
    assert {name: option.default for name, option in OPTIONS.items()}.items() <= fields.items()
    assert list(fields) == list(inspect.signature(Enqueue).parameters)


def test_an_enqueue_keeps_what_differs_from_a_default_and_is_a_value():
    plain, rich = Enqueue("resize", delay=None), Enqueue("resize", delay=3)
    assert (plain.has_options, plain.delay, plain) == (False, None, Enqueue("resize"))
    assert (rich.has_options, rich.delay, hash(rich)) == (True, 3, hash(Enqueue("resize", delay=3)))
    assert rich != plain == dataclasses.replace(rich, delay=None)  # type: ignore[call-arg]
    assert rich == pickle.loads(pickle.dumps(rich)) == copy.deepcopy(rich)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rich.priority = 4  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"Enqueue\(\) missing 1 required positional argument: 'entrypoint'"):
        Enqueue()  # type: ignore[call-arg]


def test_all_options_become_json_and_come_back():
    assert OPTIONS.keys() == GIVEN.keys()
    said = plain_options(GIVEN)
    assert {"2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+01:00"} == {said["run_at"], said["expires_at"]}
    assert {**GIVEN, "delay": 3.0} == options_of_plain(said)
    assert {} == plain_options({name: option.default for name, option in OPTIONS.items()})


@pytest.mark.parametrize("option", BOUND, ids=lambda each: each.name)
async def test_options_that_belong_together_or_exclude_each_other_are_checked(option):
    partners: dict[str, Any] = {option.excludes: GIVEN[option.excludes]} if option.excludes else {}
    async with BrokerQueue(InMemoryStorage()) as queue:
        with pytest.raises(InvalidJobError, match=option.needs or option.excludes):
            await queue.enqueue("work", **partners, **{option.name: GIVEN[option.name]})


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
    assert {field.name for field in dataclasses.fields(HandlerOptions)} == types.keys()
    shared = {"priority", "max_attempts", "concurrency_limit", "keep_result"}
    assert shared == types.keys() & ALL_OPTIONS.keys()
    assert {name: ALL_OPTIONS[name].type for name in shared} == {name: types[name] for name in shared}
