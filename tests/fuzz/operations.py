"""The target `operations`: arguments of any type and size, given to the verbs of a real queue.

A call returns a result or raises our own error; what it stored can be read back unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any

from jqueue import Claim, Job, JobStatus
from jqueue.domain.errors import JQueueError
from jqueue.operations import Ack, Enqueue, Nack
from jqueue.testing.virtual_time import run
from tests.fuzz.choices import Choices
from tests.fuzz.oracles import read_written, require
from tests.fuzz.seeds import NOW, blobs
from tests.fuzz.session import Session


class LostZone(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> str | None:
        return None


class SilentError(Exception):
    """An exception with an empty text."""

    def __str__(self) -> str:
        return ""


class OddMapping(Mapping[Any, Any]):
    """Headers that are not a dict."""

    def __getitem__(self, name: Any) -> Any:
        return name

    def __iter__(self) -> Iterator[Any]:
        return iter(("a", "b"))

    def __len__(self) -> int:
        return 2


NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 7, 2**31 - 1, 2**31, -(2**31) - 1, 2**53, 2**63 - 1, 2**63, 10**5000, True, False),
    *(0.0, -0.0, 1.5, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan, Decimal("0.1"), 1j),
)
TEXTS: tuple[Any, ...] = (
    *("", "mail", "job-1", "job-3", "job-4", "mail:eve", "dead", "queued", "replace", "raise", " ", "a b", "é", "名"),
    *("\0", "\n", "\ud800", "\u2028", "\x85", "\u00ad", "😀", "x" * 512, "x" * 513, "é" * 256, "é" * 257, '"', "\\"),
)
TIMES: tuple[Any, ...] = (
    *(NOW, datetime.min, datetime.max, datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))),
    datetime(1969, 7, 20, 20, 17, 40, 1, timezone(timedelta(hours=23, minutes=59, seconds=59, microseconds=999_999))),
    NOW.replace(tzinfo=LostZone()),
    *(timedelta(), timedelta.max, timedelta.min, timedelta(microseconds=1), timedelta(days=36600)),
)
claim: Any = Claim  # takes wrong arguments

OTHERS: tuple[Any, ...] = (
    *(None, b"", b"x" * 300, bytearray(b"abc"), memoryview(b"abcdef")[::2], memoryview(bytes(8)).cast("Q")),
    *([], ["mail"], ("mail", ""), {"mail"}, {}, {"a": "b"}, {"": ""}, {"a": "\ud800"}, {"a": 1}, {1: "a"}),
    *(OddMapping(), {"a": "x" * 17_000}, object(), ..., int, SilentError(), ValueError("\ud800")),
    *(JobStatus.QUEUED, JobStatus.DEAD),
    *(Claim("job-3", 2), Claim("job-3", 0), Claim("", 2**70), Claim("job-3", True), Claim("\ud800", 1), range(3)),
    *(claim([], 1), claim("job-3", None), claim(None, math.nan), [Claim("job-3", 2)], [[]]),
)

WAITS = (None, 0, 1.5, True, -1, math.nan, math.inf, "1", timedelta(seconds=3), timedelta.max)
"""Values of `wait`. A wait of a century takes a while even in virtual time."""

TIMING = ["delay", "run_at", "expires_at", "deadline"]
ENQUEUE = ["job_id", "max_attempts", "headers", "unique_key", "unique_for", "on_conflict", *TIMING]
VERBS: Mapping[str, tuple[int, list[str]]] = {
    "enqueue": (3, ENQUEUE),
    "dequeue": (1, ["batch_size", "wait", "claim_timeout", "deadline"]),
    "ack": (1, ["deadline"]),
    "nack": (1, ["delay", "error", "dead", "charge", "deadline"]),
    "heartbeat": (1, ["deadline"]),
    "ack_many": (1, ["deadline"]),
    "nack_many": (1, ["delay", "error", "dead", "charge"]),
    "heartbeat_many": (1, ["deadline"]),
    "cancel": (1, ["deadline"]),
    "redrive": (1, ["entrypoint", "deadline"]),
    "purge": (0, ["status", "entrypoint", "older_than"]),
    "requeue_stale": (1, ["deadline"]),
    "read_state": (0, ["deadline"]),
    "stats": (0, ["deadline"]),
    "apply": (1, ["deadline"]),
}
"""Verb -> number of positional arguments, and names of keyword arguments."""

USUAL: Mapping[str, Callable[[Choices], Any]] = {
    "on_conflict": lambda choices: choices.pick(("return", "raise", "replace")),
    "headers": lambda choices: {choices.pick(TEXTS): choices.pick(TEXTS) for _ in range(choices.below(3))},
    "run_at": lambda choices: choices.pick(TIMES),
    "expires_at": lambda choices: choices.pick(TIMES),
    "dead": lambda choices: choices.one_in(2),
    "charge": lambda choices: choices.one_in(2),
    "status": lambda choices: choices.pick((*JobStatus, "dead", "queued")),
    "unique_key": lambda choices: choices.pick(TEXTS),
    "job_id": lambda choices: choices.pick(TEXTS),
    "entrypoint": lambda choices: choices.pick(TEXTS),
    "error": lambda choices: choices.pick((*TEXTS, *OTHERS)),
}
"""Argument name -> choice of a value that mostly has the right type. Any other argument is a duration or a number."""


def operations_target(data: bytes) -> None:
    """Make the calls that the choices name.

    Raises:
        Finding: a promise was broken. Any other exception is a finding too.
    """
    choices = Choices(data)
    run(_program(Session(choices.pick((b"", blobs()[0], blobs()[8]))), choices))


async def _program(session: Session, choices: Choices) -> None:
    for _ in range(1 + choices.below(6)):
        verb = choices.pick(tuple(VERBS))
        places, names = VERBS[verb]
        arguments = [_first(verb, place, choices, session.claimed) for place in range(places)]
        options = {name: _argument(name, choices) for name in names if choices.one_in(3)}
        try:
            result = await session.call(verb, *arguments, hurried=True, **options)
        except TypeError as error:
            if "not iterable" in str(error) and verb in ("ack_many", "nack_many", "heartbeat_many"):
                continue  # a TypeError of Python itself, before anything is sent
            raise
        if isinstance(result, JQueueError):
            continue
        if verb == "enqueue":
            state = read_written(await session.content())
            stored = state.find(result.id)
            require(
                stored == result or result.status is JobStatus.COMPLETED or (stored is None and result.expires_at),
                "what enqueue returned is not what is stored",
            )


def _first(verb: str, place: int, choices: Choices, claimed: list[Job]) -> Any:
    """Return a positional argument, mostly a sensible one."""
    if choices.one_in(4):
        return _anything(choices)
    if verb == "enqueue":
        return (choices.pick(TEXTS), choices.take(5), choices.below(9) - 4)[place]
    if verb in ("dequeue", "cancel", "redrive"):
        return choices.pick((None, *TEXTS))
    if verb == "requeue_stale":
        return choices.pick((*NUMBERS, *TIMES))
    reference = choices.pick((*claimed, *(job.id for job in claimed), *OTHERS, *TEXTS))
    if verb == "apply":
        return choices.pick((Ack(reference), Nack(reference), Enqueue(choices.pick(TEXTS), b"")))
    return [reference, *claimed[:2]] if verb.endswith("many") else reference


def _argument(name: str, choices: Choices) -> Any:
    """Return a keyword argument, mostly of the right type and often at an edge."""
    if name == "wait":
        return choices.pick(WAITS)
    if choices.one_in(4):
        return _anything(choices)
    usual = USUAL.get(name)
    return choices.pick((*NUMBERS, *TIMES)) if usual is None else usual(choices)


def _anything(choices: Choices) -> Any:
    return choices.pick((*NUMBERS, *TEXTS, *TIMES, *OTHERS))
