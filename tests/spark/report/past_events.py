"""Events of a lake, and the figures of the past computed from them by plain Python, for comparison with Spark's."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from jqueue.domain.operations.operator import STALE_ERROR
from jqueue.spark.lake.events import COLUMNS
from jqueue.spark.report.past_columns import PastFailure, PastFigures
from jqueue.spark.report.past_figures import READ
from tests.spark.report.plain_report import ERRORS, NAMES

START = datetime(2026, 10, 1, 12, tzinfo=UTC)
SCHEMA = ", ".join(f"{name} {COLUMNS[name]}" for name in READ)

EVENTS = (
    ("enqueue", None, "queued"),
    ("dequeue", "queued", "in_progress"),
    ("ack", "in_progress", None),
    ("ack", "in_progress", "completed"),
    ("nack", "in_progress", "queued"),
    ("nack", "in_progress", "dead"),
    ("nack, uncharged", "in_progress", "queued"),
    ("stale", "in_progress", "dead"),
    ("stale", "in_progress", "queued"),
    ("cancel", "queued", None),
    ("expire", "dead", None),
    ("arrive", None, "dead"),
)


def some_events(seed, number, hours=30.0):
    """Events at random, also of many jobs, with values missing as in a history."""
    chance = random.Random(seed)
    found: list[tuple[Any, ...]] = [(START, "start", None, None, None, 0, None, 1, None, None, None, None)]
    for _ in range(number):
        verb, before, after = chance.choice(EVENTS)
        at = START + timedelta(seconds=chance.uniform(0, hours * 3600))
        ends = verb in ("ack", "nack", "stale", "nack, uncharged")
        error = chance.choice([None, *ERRORS]) if verb == "nack" else None
        if verb == "stale":
            error = chance.choice([None, STALE_ERROR])
        claims = verb == "dequeue"
        wait = round(chance.lognormvariate(0, 2), 3) if claims else None
        run = round(chance.lognormvariate(0, 2), 3) if ends and chance.random() < 0.9 else None
        left = verb == "ack" and after is None and chance.random() < 0.8
        created = at - timedelta(microseconds=chance.randrange(-1000, 10**8)) if left else None
        holder = chance.choice(["a", "b", "<b>", None]) if claims or ends else None
        attempt = chance.randrange(5) + 1 if claims or ends else 0
        jobs = chance.choice([1, 1, 1, 7, 100])
        name = chance.choice(NAMES)
        found.append((at, verb, name, before, after, attempt, holder, jobs, wait, run, created, error))
    return found


def figures(events, entrypoint=None, holder=None, start=None):
    counts: Counter[str] = Counter()
    waits, runs, totals, tries = [], [], [], []
    for at, verb, _, before, after, attempt, _, jobs, wait, run, created, _ in events:
        failed = verb in ("nack", "stale")
        gone = (before, after) == ("in_progress", "dead")
        counts.update({verb: jobs, "failed": jobs * failed, "dead": jobs * gone})
        waits += [wait] * jobs if wait is not None else []
        runs += [run] * jobs if run is not None and (failed or verb == "ack") else []
        if verb == "ack" and created is not None:
            totals += [max(0.0, (at - created).total_seconds())] * jobs
        tries += [attempt] * jobs if verb == "ack" or gone else []
    return PastFigures(
        entrypoint,
        holder,
        start,
        counts["enqueue"],
        counts["dequeue"],
        counts["ack"],
        counts["failed"],
        counts["dead"],
        sum(tries) / len(tries) if tries else None,
        max(tries, default=None),
        *(percentile(times, share) for times in (waits, runs, totals) for share in (0.5, 0.95, 0.99)),
    )


def percentile(values, share):
    """A percentile by linear interpolation."""
    if not values:
        return None
    values = sorted(values)
    place = share * (len(values) - 1)
    low = int(place)
    return values[low] + (place - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def window_of(at, seconds):
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def failures(events, seconds):
    failed: Counter[tuple[str, str, datetime]] = Counter()
    dead: Counter[tuple[str, str, datetime]] = Counter()
    for at, verb, name, before, after, _, _, jobs, _, _, _, error in events:
        if verb in ("nack", "stale"):
            told = "stale claim" if verb == "stale" else "other" if error is None else ERRORS[error]
            key = (name, told, window_of(at, seconds))
            failed[key] += jobs
            dead[key] += jobs * ((before, after) == ("in_progress", "dead"))
    return sorted(PastFailure(*key, failed[key], dead[key]) for key in failed)
