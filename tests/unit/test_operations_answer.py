"""Operations answer for themselves: what an operation needs, and what its result means, is said in its class alone."""

import pkgutil
from dataclasses import fields
from importlib import import_module
from inspect import getmembers, isclass

import pytest

from jqueue.domain import operations
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.operations import Operation
from jqueue.formats.queue import StoreQueue
from jqueue.ports.queue import Capabilities
from tests.unit.test_store_queue import Shelf

EVERY = sorted(
    {
        kind
        for module in pkgutil.iter_modules(operations.__path__, f"{operations.__name__}.")
        for _, kind in getmembers(import_module(module.name), isclass)
        if issubclass(kind, Operation)
    },
    key=lambda kind: kind.__name__,
)
CAPABILITIES = {field.name for field in fields(Capabilities)}


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_an_operation_needs_capabilities_that_there_are(kind):
    assert CAPABILITIES >= set(kind.always_needs)


class Sing(Operation):
    """An operation of which no queue has heard."""

    always_needs = ("schedules",)

    def change(self, draft, now):
        """Nothing is changed."""
        return "la"


async def test_an_operation_that_a_queue_has_not_heard_of_is_refused_by_what_it_needs():
    shelf = Shelf()
    shelf.capabilities = Capabilities(schedules=False)
    [refused] = await StoreQueue(shelf).apply_each(Sing())
    assert "no schedules" in str(refused)
    assert isinstance(refused, InvalidJobError)
    assert ["la"] == await StoreQueue(Shelf()).apply_each(Sing())
