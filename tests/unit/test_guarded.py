"""A guarded operation is done only if the queue is still as its caller has seen it."""

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.errors import ChangedMeanwhileError
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.rules import SetLimits
from jqueue.domain.rules import EntrypointRules


async def test_rules_are_changed_if_they_are_as_seen_and_left_alone_otherwise():
    queue = DirectQueue(InMemoryStorage())
    with pytest.raises(ChangedMeanwhileError):
        await queue.apply(
            Guarded(SetLimits("mail", running=6), entrypoint="mail", rules=EntrypointRules(max_running=5))
        )
    assert {} == (await queue.read_state()).entrypoints
    await queue.limit("mail", running=5)
    seen = (await queue.read_state()).entrypoints["mail"]
    await queue.apply(Guarded(SetLimits("mail", running=6), entrypoint="mail", rules=seen))
    assert 6 == (await queue.read_state()).entrypoints["mail"].max_running
