"""The verdict of `jqueue doctor`, from its findings, in plain words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.checks import Finding
from jqueue.cli.probes import Outcome

SAFE = (
    "Safe. If several writers compete, exactly one wins and the others are told so. No acknowledged write is lost. A "
    "queue needs nothing else from a store."
)
UNSAFE = "Not safe. Do not keep a queue here: it would"
DAMAGED = "The store is safe, but the queue is damaged: workers would"
DEAF = "This store seems to ignore the conditions of writes."
TWO_STEPS = (
    "Use another store: this one checks the condition first and writes later, and another write can come between. "
    "No setting can change that."
)
RACES = {"racing_creators", "racing_increments"}

PLACES: dict[type, str] = {
    LocalFileSystemStorage: "A file serves the processes of one machine. Keep it on a local disk, not a network drive.",
    InMemoryStorage: "An in-memory queue belongs to one process and ends with it: use it for tests and trials.",
}
"""Advice on places, which no probe can see."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a storage.

    Attributes:
        safe: True if a queue may be kept there.
        text: the verdict in a sentence.
        harm: the harm that the store would do to a queue.
        advice: the steps to take.
    """

    safe: bool
    text: str
    harm: tuple[str, ...]
    advice: tuple[str, ...]


def judge(findings: Iterable[Finding], storage: object) -> Verdict:
    """Return the verdict on a storage."""
    results = {finding.check.name: finding.result for finding in findings}
    failed = {name: result for name, result in results.items() if result.outcome is Outcome.FAILED}
    advice = _once(text for result in (failed or results).values() for text in result.advice)
    if not failed:
        place = tuple(text for kind, text in PLACES.items() if isinstance(storage, kind))
        return Verdict(True, SAFE, (), advice + place)
    if failed.keys() == {"segments"}:
        return Verdict(False, DAMAGED, _once(result.harm for result in failed.values()), advice)
    if failed.keys() >= {"create_only", "stale_etag"}:
        advice = (DEAF, *advice)
    if failed.keys() <= RACES:
        advice = (TWO_STEPS,)
    return Verdict(False, UNSAFE, _once(result.harm for result in failed.values()), advice)


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, texts)))
