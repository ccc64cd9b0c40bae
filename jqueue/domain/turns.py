"""Turns among keys: jobs of one entrypoint and priority with different fair keys are served in turn.

The turn of a job is its `sequence`, given when the job is enqueued, as in start-time fair queueing: the place behind
the last job of its key, or behind the last claimed job if that is later. So jobs of different keys share places. First
in, first out is the same rule with one key. Jobs without a key are one key together.

A job with a weight below 1 stands several places behind the last job of its key, so the key gets a turn in one of
several rounds. No weight is above 1: a job cannot stand less than one place behind another one of its key.

A *clock* for an entrypoint and a priority exists only while jobs with a key wait. Without one, a job takes the place
behind all jobs of the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from jqueue.domain.draft import Draft
from jqueue.domain.header import Header

FAIR_KEYS_KEPT = 4096
"""Maximum number of keys whose last places are kept. At this number, jobs of new keys take turns as if without one."""


Turn = tuple[str, int, str]
"""An entrypoint, a priority and a key: their jobs stand in one line."""


def clock_of(entrypoint: str, priority: int) -> str:
    """Return the name of a clock."""
    return f"{priority}:{entrypoint}"


def step_of(weight: float | None) -> int:
    """Return the number of places by which a job of a weight stands behind the last job of its key."""
    return 1 if weight is None else round(1 / weight)


def next_sequence(draft: Draft, job: Any, now: datetime) -> int:
    """Return the sequence number of a place behind all jobs, or behind those of its key if keys take turns.

    Args:
        draft: the queue.
        job: the job, or its enqueue.
        now: the time of the commit.

    Raises:
        RowsMissingError: as for `last_place`.
    """
    jobs, turn = draft.jobs, (job.entrypoint, job.priority, job.fair_key)
    if job.fair_key is None and not draft.header.turns:
        jobs.last_sequence += 1
        return jobs.last_sequence
    place = last_place(draft, *turn, now) + step_of(job.fair_weight)
    note_place(draft, *turn, place)
    jobs.last_sequence = max(jobs.last_sequence, place)
    return place


def last_place(draft: Draft, entrypoint: str, priority: int, key: str | None, now: datetime) -> int:
    """Return the place behind which the next job of a key stands. A job with a key starts the clock.

    Raises:
        RowsMissingError: the clock starts while jobs wait, and the first of these is not loaded.
    """
    header, last, name = draft.header, draft.jobs.last_sequence, clock_of(entrypoint, priority)
    if name in header.turns and not draft.jobs.order.has_waiting(entrypoint):
        stop(draft, name)
    if name not in header.turns or name not in header.fair:
        if key is None:
            return last
        first = draft.jobs.order.first_ready(entrypoint, now)
        waits = first is not None and first[0] == priority
        draft.note(header.turns, name, first[1] - 1 if first is not None and waits else last)
        draft.note(header.fair, name, {"": last} if waits else {})
    return max(header.turns[name], header.fair[name].get(_kept(draft, name, key), 0))


def note_place(draft: Draft, entrypoint: str, priority: int, key: str | None, place: int) -> None:
    """Note the last place that was given to a key, if the clock runs."""
    name = clock_of(entrypoint, priority)
    if (last_places := draft.header.fair.get(name)) is not None:
        draft.note(last_places, _kept(draft, name, key), place)


def note_turn(draft: Draft, entrypoint: str, priority: int, key: str | None, place: int) -> None:
    """Note that a job was claimed: the clock moves to its place. A key whose last job it was is forgotten."""
    header, name = draft.header, clock_of(entrypoint, priority)
    if (last_places := header.fair.get(name)) is None:
        return
    if place > header.turns.get(name, 0):
        draft.note(header.turns, name, place)
    key = key if key is not None and key in last_places else ""
    if last_places.get(key) == place:
        draft.forget(last_places, key)
        if not last_places:
            stop(draft, name)


def note_behind_all(draft: Draft, entrypoints: Collection[str], place: int) -> None:
    """Note that jobs without a key were added behind all others, of whatever priority."""
    for name, places in draft.header.fair.items():
        if name.partition(":")[2] in entrypoints:
            draft.note(places, "", place)


def stop(draft: Draft, name: str) -> None:
    """Stop a clock, as nothing waits for a turn."""
    draft.forget(draft.header.turns, name)
    draft.forget(draft.header.fair, name)


def running(header: Header, waiting: Mapping[str, int]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Return both tables without the clocks of entrypoints for which no job waits."""
    names = [name for name in header.turns if name in header.fair and waiting.get(name.partition(":")[2])]
    return {name: header.turns[name] for name in names}, {name: header.fair[name] for name in names}


def _kept(draft: Draft, name: str, key: str | None) -> str:
    """Return the key under which the last place of a key is kept."""
    last_places = draft.header.fair[name]
    if not key or key in last_places:
        return key or ""
    return key if sum(map(len, draft.header.fair.values())) < FAIR_KEYS_KEPT else ""
