"""The registry of claims: which claim a bare id stands for, and how much it remembers."""

from datetime import UTC, datetime

import pytest

from jqueue.core.calls import claim_registry
from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain.models import Claim, Job
from jqueue.operations import Ack

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def claimed(job_id, attempt):
    return Job(id=job_id, entrypoint="t", payload=b"", created_at=NOW, attempt=attempt)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_a_bare_id_stands_for_a_claim_only_while_it_is_the_only_one(order):
    registry = ClaimRegistry()
    registry.remember([claimed("a", attempt) for attempt in order])
    for attempt in order[:-1]:
        assert Claim("a", 0) == registry.find("a")
        registry.forget(Claim("a", attempt))
        assert registry.held(Claim("a", attempt)) is None
    assert Claim("a", order[-1]) == registry.find("a")
    registry.end(Claim("a", order[-1]))
    assert Claim("a", 0) == registry.find("a")


def test_a_claim_that_was_remembered_twice_is_one_claim():
    registry = ClaimRegistry()
    registry.remember([claimed("a", 1), claimed("a", 2), claimed("a", 1)])
    registry.forget(Claim("a", 1))
    assert Claim("a", 2) == registry.find("a")


@pytest.mark.parametrize("ended", [1, 2])
def test_an_ended_claim_that_is_held_again_stands_beside_the_others(ended):
    registry = ClaimRegistry()
    registry.remember([claimed("a", 1), claimed("a", 2)])
    registry.end(Claim("a", ended))
    registry.reopen([Ack(Claim("a", ended))])
    assert registry.held(Claim("a", 1)) is not registry.held(Claim("a", 2)) is not None
    assert Claim("a", 0) == registry.find("a")
    registry.forget(Claim("a", 3 - ended))
    assert Claim("a", ended) == registry.find("a")


def test_the_oldest_claims_are_dropped(monkeypatch):
    monkeypatch.setattr(claim_registry, "CLAIMS_KEPT", 8)
    monkeypatch.setattr(claim_registry, "ENDED_KEPT", 8)
    registry = ClaimRegistry()
    for number in range(100):
        registry.remember([claimed(f"{number}", 1)])
        registry.end(Claim(f"x{number}", 1))
    kept = [number for number in range(100) if registry.held(Claim(f"{number}", 1))]
    ended = [number for number in range(100) if registry.was_ended(Claim(f"x{number}", 1))]
    assert 8 <= len(kept) <= 10
    assert kept == ended == list(range(100 - len(kept), 100))


def test_a_job_that_is_claimed_again_and_again_and_never_ended_leaves_few_claims():
    registry = ClaimRegistry()
    for attempt in range(1, 2001):
        registry.remember([claimed("a", attempt)])
    kept = [attempt for attempt in range(1, 2001) if registry.held(Claim("a", attempt))]
    assert list(range(2000 - claim_registry.OLDER_KEPT, 2001)) == kept
    assert Claim("a", 0) == registry.find("a")
    for attempt in kept[1:]:
        registry.end(Claim("a", attempt))
    assert Claim("a", kept[0]) == registry.find("a")


def test_each_ended_claim_on_a_job_is_known():
    registry = ClaimRegistry()
    registry.remember([claimed("a", 1), claimed("a", 2)])
    for attempt in (1, 2, 3):  # the third was not handed out here
        registry.end(Claim("a", attempt))
    assert [False, True, True, True, False] == [registry.was_ended(Claim("a", attempt)) for attempt in range(5)]
    registry.reopen([Ack(Claim("a", attempt)) for attempt in (1, 3)])
    assert Claim("a", 1) == registry.find("a")
    assert [False, True, False] == [registry.was_ended(Claim("a", attempt)) for attempt in (1, 2, 3)]
