"""The error for a misspelled option suggests the right name, wherever options are given by name."""

import inspect
import re
from typing import Any

import pytest

import jqueue
import jqueue.operations
import jqueue.worker
from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, QueueSet, connect
from jqueue.core.group_commit import GroupCommitLoop
from jqueue.core.queue_options import QueueOptions
from jqueue.formats.queue import StoreQueue
from jqueue.operations import Enqueue
from jqueue.sync import SyncQueue

QUEUES = (BrokerQueue, DirectQueue, GroupCommitLoop, StoreQueue, QueueSet, SyncQueue)
NOT_MADE_BY_USERS = {
    "BatchContext", "BatchHandler", "Claim", "Context", "Handler", "HandlerOptions", "Job", "JobQueue", "JobStatus",
    "KeepAlive", "ObjectStoragePort", "QueueState", "RangeClaim", "RunReport",
}  # fmt: skip


def options_of(function):
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return []  # as a set of queues hands on to its queues
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY or each.default is not each.empty]


def asked_for(call, *names):
    """Misspell each option, and return the callable and the option that each error names."""
    named = []
    for name in names:
        parameters = inspect.signature(call).parameters.values()
        given = [None for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
        with pytest.raises(TypeError) as caught:
            result = call(*given, **{f"{name}x": 1})
            result.send(None)  # the first step of a coroutine
        found = re.match(rf"(\w+): there is no option '{name}x': did you mean '(\w+)'\?", str(caught.value))
        assert found, caught.value
        named.append(found.groups())
    return named


CONSTRUCTORS = {queue.__name__: queue for queue in QUEUES} | {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (jqueue, jqueue.operations, jqueue.worker, jqueue.sync)
    for name in module.__all__
    if inspect.isclass(getattr(module, name)) and name not in NOT_MADE_BY_USERS
}


@pytest.mark.parametrize("kind", CONSTRUCTORS.values(), ids=CONSTRUCTORS)
def test_the_option_of_a_constructor_that_was_meant_is_named(kind):
    options = [] if issubclass(kind, jqueue.JQueueError) else options_of(kind)
    assert [(kind.__name__, option) for option in options] == asked_for(kind, *options)


def is_verb(name, verb):
    kinds = [each.kind for each in inspect.signature(verb).parameters.values()]
    return not name.startswith("_") and inspect.Parameter.KEYWORD_ONLY in kinds


def made(kind):
    if kind is QueueSet:
        return QueueSet(BrokerQueue(InMemoryStorage()))
    return connect("vsqs:///tmp/none") if kind is StoreQueue else kind(InMemoryStorage())


@pytest.mark.parametrize("kind", QUEUES, ids=lambda kind: kind.__name__)
def test_the_option_of_a_verb_that_was_meant_is_named(kind):
    queue = made(kind)
    for name, verb in inspect.getmembers(kind, inspect.isfunction):
        options = options_of(verb) if is_verb(name, verb) else []
        assert [(name, option) for option in options] == asked_for(getattr(queue, name), *options)


def test_a_setting_given_to_connect_is_checked_as_well():
    with pytest.raises(
        TypeError, match=r"^BrokerQueue: there is no option 'pollinterval': did you mean 'poll_interval'"
    ):
        connect("queue.json", BrokerQueue, pollinterval=3)


@pytest.mark.parametrize("kind", QUEUES, ids=lambda kind: kind.__name__)
def test_the_help_of_a_queue_shows_its_options_and_what_they_mean(kind):
    for name in inspect.signature(QueueOptions).parameters:
        assert name in inspect.signature(kind).parameters
        assert f"{name}: " in (inspect.getdoc(kind) or "").partition("Options:")[2]


async def test_the_error_for_missing_arguments_does_not_name_an_inner_class():
    queue: Any = DirectQueue(InMemoryStorage())
    kind: Any = BrokerQueue
    with pytest.raises(TypeError, match=r"^enqueue\(\) missing 1 required positional argument: 'entrypoint'$"):
        await queue.enqueue()
    with pytest.raises(TypeError, match=r"^BrokerQueue\(\) missing 1 required positional argument: 'storage'$"):
        kind()


def test_a_type_error_that_arises_later_is_left_as_it_is():
    class Wrong(dict):
        def items(self):
            raise TypeError("mine")

    operation: Any = Enqueue("x", b"", job_id="a", headers=Wrong())
    with pytest.raises(TypeError, match=r"^mine$"):
        operation.change(None, None)


def test_verbs_stay_coroutine_functions():
    assert inspect.iscoroutinefunction(BrokerQueue.enqueue)
