"""The verbs of a queue are documented in the ports, and every queue has each of them, with that documentation."""

import inspect

import pytest

from jqueue import BrokerQueue, DirectQueue, QueueSet
from jqueue.domain.job_options import EnqueueOptions, ScheduleOptions, options_of
from jqueue.domain.operations import DequeueOptions
from jqueue.formats.queue import StoreQueue
from jqueue.ports.queue import Consumer, JobQueue, Operator, Producer, SupportsApply, SupportsPeek
from jqueue.sync import SyncQueue

QUEUES = (BrokerQueue, DirectQueue, StoreQueue, QueueSet, SyncQueue)
VERBS = {
    name: verb
    for port in (SupportsApply, Producer, Consumer, Operator, SupportsPeek)
    for name, verb in vars(port).items()
    if inspect.isfunction(verb) and not name.startswith("_")
}
OF_THEIR_OWN = {"dequeue", "apply", "apply_each", "redrive", "find"}
"""Verbs that a set of queues does differently from one queue, and documents itself."""

LISTS = {"enqueue": EnqueueOptions, "dequeue": DequeueOptions, "schedule": ScheduleOptions}


def verbs_of(kind):
    names = VERBS if issubclass(kind, SupportsPeek) or kind is SyncQueue else {*dir(JobQueue), "find"} & VERBS.keys()
    return {name: getattr(kind, name) for name in names}


def test_the_ports_have_thirty_one_verbs():
    assert {"enqueue", "dequeue", "ack", "cancel", "peek", "apply"} < VERBS.keys()
    assert 31 == len(VERBS)


@pytest.mark.parametrize("kind", QUEUES, ids=lambda kind: kind.__name__)
def test_every_queue_implements_every_verb(kind):
    owners = {name: next(base for base in kind.__mro__ if name in vars(base)) for name in verbs_of(kind)}
    assert [] == [name for name, owner in owners.items() if getattr(owner, "_is_protocol", False)]


@pytest.mark.parametrize("kind", QUEUES, ids=lambda kind: kind.__name__)
def test_a_verb_is_documented_as_in_its_port(kind):
    others = OF_THEIR_OWN if kind is QueueSet else set()
    for name, verb in verbs_of(kind).items():
        if name not in others:
            assert inspect.getdoc(VERBS[name]) == inspect.getdoc(verb), name


@pytest.mark.parametrize("kind", QUEUES, ids=lambda kind: kind.__name__)
def test_every_public_name_of_a_queue_has_a_docstring(kind):
    public = [name for name in dir(kind) if not name.startswith("_")]
    assert [] == [name for name in public if not inspect.getdoc(getattr(kind, name))]


@pytest.mark.parametrize("kind", QUEUES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("verb", LISTS)
def test_the_help_of_a_verb_lists_its_options(kind, verb):
    text = inspect.getdoc(getattr(kind, verb)) or ""
    for name, option in options_of(LISTS[verb]).items():
        assert f"    {name}: {option.description}" in text
        assert name in inspect.signature(getattr(kind, verb)).parameters
