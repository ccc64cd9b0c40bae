"""Statistics of a queue: numbers of jobs, ages and sizes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

import msgspec

from jqueue.domain.counters import OTHERS, Totals, totals_of
from jqueue.domain.durations import in_words
from jqueue.domain.header import ENTRYPOINTS_SHOWN, Header, SetAside, WorkerRecord, by_name
from jqueue.domain.job import JobRecord, JobStatus, may_kill
from jqueue.domain.limits import CLIENTS_KEPT, ENQUEUE_SHARE, HOLDS_SHARE, Limits, held_bytes
from jqueue.domain.models import Job
from jqueue.domain.printable import counted, printable
from jqueue.domain.rules import EntrypointRules, key_opens_at, opens_at
from jqueue.domain.segments import SEGMENTS_KEPT, object_of
from jqueue.domain.selection import Phase, phase_of

WARN_SHARE = 0.5
"""Share of enqueue's limit above which the statistics carry a warning."""

MANY_KEY_BYTES = 1 << 20
"""Bytes of unique keys kept after their jobs above which the statistics carry a warning: each commit writes them."""

MANY_WRITERS, LATELY = 8, 120.0
"""Number of writers within some seconds from which the statistics name a broker as the remedy."""

UNCLAIMED = timedelta(seconds=10)
"""Time for which a job must be ready before a missing worker is the reason: workers may not have looked yet."""

HOLDERS_NAMED = 3
"""Largest number of holders of a concurrency key to name."""


@dataclass(frozen=True, slots=True)
class EntrypointStats:
    """Numbers of jobs by state, of one entrypoint or of a whole queue.

    Attributes:
        ready: number of jobs that are ready to be claimed; also named `depth`.
        scheduled: number of queued jobs whose time has not come.
        in_progress: number of claimed jobs.
        dead: number of jobs that are out of attempts.
        completed: number of finished jobs that stay in the queue while their result is kept.
        paused: True if none of its jobs is claimed until it is resumed.
        results_dropped: number of completed jobs whose result was not kept, because the queue had no room for it.
        errors_dropped: number of jobs whose last error was shortened or not kept, for the same reason.
        oldest_ready_age: time since the earliest `run_at` of the ready jobs, or `created_at` of jobs without one; None
            if none is ready. A job that was given back or redriven is as old as before.
        oldest_claim_age: time since the oldest of the current claims; None without claims.
        waiting: number of queued jobs that wait for their parents.
        totals: what has happened to jobs since the first commit; None in formats of older queues, which do not count.
    """

    ready: int = 0
    scheduled: int = 0
    in_progress: int = 0
    dead: int = 0
    oldest_ready_age: timedelta | None = None
    completed: int = 0
    paused: bool = False
    results_dropped: int = 0
    errors_dropped: int = 0
    oldest_claim_age: timedelta | None = None
    totals: Totals | None = None
    waiting: int = 0

    @property
    def depth(self) -> int:
        """The earlier name of `ready`."""
        return self.ready


@dataclass(frozen=True, slots=True)
class QueueStats(EntrypointStats):
    """The statistics of a whole queue.

    Attributes:
        version: the version of the queue that they describe.
        size: bytes of the blob.
        size_limit: bytes that its jobs may take before enqueue refuses more.
        unreadable: number of lines set aside because they cannot be read as jobs.
        entrypoints: the statistics of each entrypoint, by name.
        holders: number of jobs in progress by the name of who works on them: `name@host:pid` for a worker.
        workers: the workers that have committed within the last hour, by name. Those not seen for two minutes are
            marked as `lost`.
        warnings: warnings for the operator, as sentences.
        segments: number of segments beside the blob. They hold waiting jobs that are not in it.
        segment_jobs: number of jobs in them. `ready` and `scheduled` count these jobs, too.
        segment_bytes: bytes of them.
        kept_keys: number of unique keys that are kept after their jobs, by `unique_for`.
        kept_key_bytes: bytes of the blob that they take.
    """

    version: int = 0
    size: int = 0
    size_limit: int = 0
    unreadable: int = 0
    entrypoints: Mapping[str, EntrypointStats] | None = None
    holders: Mapping[str, int] | None = None
    workers: tuple[WorkerRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    segments: int = 0
    segment_jobs: int = 0
    segment_bytes: int = 0
    kept_keys: int = 0
    kept_key_bytes: int = 0


class StatsBuilder:
    """Counts jobs one by one, and makes the statistics of their queue.

    Args:
        now: the time at which ages are measured.

    Attributes:
        warnings: warnings that the statistics will carry.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.warnings: list[str] = []
        self._tallies: defaultdict[str, _Tally] = defaultdict(_Tally)
        self._holders: Counter[str] = Counter()

    def count(self, jobs: Iterable[JobRecord]) -> None:
        """Count jobs one by one."""
        now = self.now
        for job in jobs:
            tally = self._tallies[job.entrypoint]
            tally.results_dropped += job.result_dropped > 0
            tally.errors_dropped += job.error_dropped > 0
            if job.status is JobStatus.IN_PROGRESS:
                tally.count_claimed(1, job.claimed_at)
                if job.holder is not None:
                    self._holders[job.holder] += 1
            elif job.status is JobStatus.DEAD:
                tally.dead += 1
            elif job.status is JobStatus.COMPLETED:
                tally.completed += 1
            elif job.waits_for:
                tally.waiting += job.expires_at is None or job.expires_at > now
            elif job.run_at is not None and job.run_at > now:
                tally.scheduled += 1
            elif job.expires_at is None or job.expires_at > now:
                tally.count_ready(1, job.run_at or job.created_at)

    def count_waiting(self, entrypoint: str, ready: int, scheduled: int, oldest: datetime | None) -> None:
        """Count queued jobs of an entrypoint that are not looked at one by one.

        Args:
            entrypoint: of the jobs.
            ready: number of ready jobs.
            scheduled: number of jobs whose time has not come.
            oldest: the earliest time at which one of the ready jobs became ready; None if it is not known, or no
                earlier than that of another job.
        """
        tally = self._tallies[entrypoint]
        tally.scheduled += scheduled
        tally.count_ready(ready, oldest)

    def oldest_of(self, entrypoint: str) -> datetime | None:
        """Return the earliest time at which one of the ready jobs so far became ready; None if none is known."""
        return self._tallies[entrypoint].oldest

    def figures(
        self, header: Header, set_aside: Sequence[SetAside], size: int, taken: int, limits: Limits
    ) -> QueueStats:
        """Return the statistics of the queue whose jobs were counted.

        Args:
            header: the queue's state; the jobs in it are not looked at.
            set_aside: its lines that cannot be read as jobs.
            size: bytes that the state takes in the store.
            taken: bytes of it that count against the limit of enqueue.
            limits: the reader's limits, for a queue without a size limit of its own.
        """
        now = self.now
        blob_bytes = header.settings.blob_bytes or limits.blob_bytes
        most = int(blob_bytes * ENQUEUE_SHARE)
        paused = {name for name, rules in header.entrypoints.items() if rules.paused}
        for held in header.segments.values():
            if held.claimed_at is not None:
                self._tallies[held.entrypoint].count_claimed(held.left, held.claimed_at)
                if held.holder is not None:
                    self._holders[held.holder] += held.left
        totals_by_name = {name: totals_of(each, now) for name, each in header.counters.items()}

        def totals(name: str) -> Totals | None:
            return totals_by_name.get(name, Totals()) if header.queue else None

        names = sorted({*self._tallies, *paused, *totals_by_name} - {OTHERS})
        entrypoints = {name: self._tallies[name].figures(now, name in paused, totals(name)) for name in names}
        whole = sum_of([*entrypoints.values(), EntrypointStats(totals=totals(OTHERS))])
        waiting = sum(each.ready + each.scheduled > 0 for each in entrypoints.values())
        warnings = self.warnings + _warnings(set_aside, taken, most, whole.results_dropped, whole.errors_dropped)
        if taken > WARN_SHARE * most and waiting > SEGMENTS_KEPT:
            warnings.append(
                f"{waiting} entrypoints have waiting jobs, and most of these jobs stay in the blob: each segment holds "
                f"jobs of one entrypoint, and a queue has at most {SEGMENTS_KEPT} segments. Use fewer entrypoints, or "
                "several queues"
            )
        if (keys := held_bytes(header.holds)) > min(MANY_KEY_BYTES, WARN_SHARE * HOLDS_SHARE * most):
            warnings.append(
                f"{counted(len(header.holds), 'unique key')} of done jobs, kept by unique_for, take {keys} of the "
                f"{int(HOLDS_SHARE * most)} bytes that they may use, and each commit writes them: give jobs a shorter "
                "unique_for"
            )
        segments = {object_of(name): segment for name, segment in header.segments.items()}
        warnings += filter(None, (crowd_warning(header), writers_warning(header, now)))
        return QueueStats(
            **{each.name: getattr(whole, each.name) for each in fields(whole)},
            version=header.version,
            size=size,
            size_limit=most,
            unreadable=len(set_aside),
            entrypoints=entrypoints,
            holders=dict(sorted(self._holders.items())),
            workers=by_name(
                record.evolve(busy=self._holders[record.holder], lost=record.is_lost(now.timestamp()))
                for record in header.workers.values()
            ),
            warnings=tuple(warnings),
            segments=len(segments),
            segment_jobs=sum(segment.waiting for segment in header.segments.values()),
            segment_bytes=sum(segment.bytes for segment in segments.values()),
            kept_keys=len(header.holds),
            kept_key_bytes=keys,
        )


def sum_of(several: Sequence[EntrypointStats]) -> EntrypointStats:
    """Add up figures: counts are added, ages are the oldest, and a flag holds if it holds for all."""
    total: dict[str, Any] = {}
    for name in (field.name for field in fields(EntrypointStats)):
        values = [value for each in several if (value := getattr(each, name)) is not None]
        match values:
            case []:
                continue
            case [bool(), *_]:
                total[name] = all(values)
            case [timedelta(), *_]:
                total[name] = max(values)
            case [first, *others]:
                total[name] = sum(others, first)
    return EntrypointStats(**total)


def why_waiting(header: Header, stats: QueueStats, now: datetime) -> dict[str, str]:
    """Return the reasons why ready jobs are not claimed, by entrypoint, as far as they are known.

    Args:
        header: the queue's state; the jobs in it are not looked at.
        stats: its statistics.
        now: the time by the queue's clock.
    """
    waiting = ((name, figures) for name, figures in (stats.entrypoints or {}).items() if figures.depth)
    reasons = ((name, next(_reasons(name, figures, header, stats, now), None)) for name, figures in waiting)
    return {name: reason for name, reason in reasons if reason is not None}


def why_job_waits(job: Job, header: Header, stats: QueueStats, now: datetime, jobs: Collection[JobRecord]) -> list[str]:
    """Return all reasons why a job is not claimed; none if it does not wait.

    Args:
        job: the job.
        header: the queue's state.
        stats: its statistics.
        now: the time by the queue's clock.
        jobs: those in the queue's object, among them all in progress that have a concurrency key or `may_kill`.
    """
    if job.status is not JobStatus.QUEUED:
        return []
    figures = (stats.entrypoints or {}).get(job.entrypoint, EntrypointStats())
    reasons = list(_reasons(job.entrypoint, figures, header, stats, now))
    phases = {each.id: phase_of(each, now) for each in jobs}
    reasons[:0] = [f"waits for {each}" for each in parents_named(job, phases)]
    if job.run_at is not None and job.run_at > now:
        reasons.insert(0, f"scheduled: ready in {in_words((job.run_at - now).total_seconds())}")
    key, most = job.concurrency_key, job.concurrency_limit or 1
    if key is not None:
        holders = [
            f"job {each.id}{f' of {each.holder}' if each.holder else ''}"
            for each in jobs
            if each.concurrency_key == key and each.status is JobStatus.IN_PROGRESS
        ]
        if len(holders) >= most:
            named = ", ".join(holders[:HOLDERS_NAMED]) + (", …" if len(holders) > HOLDERS_NAMED else "")
            reasons.append(f"its concurrency key is taken: {len(holders)} of {most} in progress: {named}")
    suspects = (each.id for each in jobs if each.status is JobStatus.IN_PROGRESS and may_kill(each))
    if may_kill(job) and (other := next(suspects, None)) is not None:
        reasons.append(
            f"its last two workers were lost: a process does one such job at a time, and {printable(other)} is running"
        )
    rules = header.entrypoints.get(job.entrypoint, EntrypointRules())
    key = job.fair_key if key is None else key
    if rules.key_rate is not None and key is not None:
        opens = key_opens_at(header.recent_keys, header.entrypoints, (job.entrypoint, key), now.timestamp())
        if opens is not None:
            claims, wait = counted(rules.key_rate, "claim"), in_words(max(0.0, opens - now.timestamp()))
            per = in_words(rules.key_per or 0.0)
            reasons.append(f"its key is at its limit: {claims} within {per}, the next in {wait}")
    workers = [
        each
        for each in stats.workers
        if not (each.lost or each.stopping)
        and (job.entrypoint in each.entrypoints or len(each.entrypoints) >= ENTRYPOINTS_SHOWN)
    ]
    if workers and all(each.busy >= each.slots for each in workers):
        taken, slots = (sum(getattr(each, name) for each in workers) for name in ("busy", "slots"))
        reasons.append(f"no free slot: {taken} of {slots} taken at {counted(len(workers), 'worker')} with the handler")
    before = sum(
        each.status is JobStatus.QUEUED
        and each.entrypoint == job.entrypoint
        and (each.priority, each.sequence) < (job.priority, job.sequence)
        and (each.run_at is None or each.run_at <= now)
        and not each.waits_for
        for each in jobs
    )
    if before:
        least = " at least" if header.segments else ""
        comes = "comes" if before == 1 else "come"
        reasons.append(f"{counted(before, 'ready job')}{least} of this entrypoint {comes} before it")
    return reasons or ["nothing holds it back: it is next"]


PARENTS_NAMED = 5
"""Largest number of parents to name."""


def parents_named(job: Job, phases: Mapping[str, Phase]) -> list[str]:
    """Return the parents that a job waits for, the dead ones first: each with its phase if that is known."""
    parents = sorted(job.waits_for, key=lambda each: phases.get(each) is not Phase.DEAD)
    words = {each: phases[each].replace("_", " ") if each in phases else "in a segment" for each in parents}
    named = [f"job {printable(each)}, which is {words[each]}" for each in parents[:PARENTS_NAMED]]
    more = len(parents) - len(named)
    return [*named, f"{more} more"] if more else named


def _reasons(name: str, figures: EntrypointStats, header: Header, stats: QueueStats, now: datetime) -> Iterator[str]:
    """Yield what holds back all jobs of an entrypoint."""
    rules = header.entrypoints.get(name, EntrypointRules())
    if rules.paused:
        yield "paused"
    if rules.max_running is not None and figures.in_progress >= rules.max_running:
        yield f"at its limit: {figures.in_progress} of {rules.max_running} in progress"
    if rules.rate is not None and rules.per is not None:
        at = opens_at(header.recent.get(name, ()), now.timestamp(), rules.rate, rules.per)
        if at is not None:
            claims, wait = counted(rules.rate, "claim"), in_words(max(0.0, at - now.timestamp()))
            yield f"at its limit: {claims} within {in_words(rules.per)}, the next in {wait}"
    if figures.totals is None or figures.in_progress or figures.totals.last_minute.claimed:
        return  # the format keeps no records of workers, or a program takes these jobs
    if figures.oldest_ready_age is not None and figures.oldest_ready_age < UNCLAIMED:
        return
    shown = (record.entrypoints for record in stats.workers if not record.lost)
    if not any(name in names or len(names) >= ENTRYPOINTS_SHOWN for names in shown):
        yield "no worker that has the handler"


def writers_warning(header: Header, now: datetime) -> str | None:
    """Return a warning if many programs write the queue, each by itself; None if they are few, or a broker serves."""
    at = now.timestamp()
    writers = sum(each.sequence > 1 and each.at > at - LATELY for each in header.commits.values())
    if writers < MANY_WRITERS or (header.broker is not None and header.broker.url):
        return None
    return (
        f"{writers} programs write the queue's object, each by itself, and wait for one another: let one commit for "
        "all. Run `jqueue serve QUEUE --url https://HOST:8470`, which the others then find by themselves"
    )


def crowd_warning(header: Header) -> str | None:
    """Return a warning if the queue remembers no more clients of brokers; None if it does."""
    if len(header.clients) < CLIENTS_KEPT:
        return None
    return (
        f"{CLIENTS_KEPT} or more clients had their calls committed by a broker within ten minutes, and the queue "
        "remembers the last batches of as many: if an answer gets lost, its outcome may stay unknown. Use fewer queue "
        "objects, or several queues"
    )


def about_lines(set_aside: Sequence[SetAside]) -> str:
    """Return what is to be said of the lines that cannot be read as jobs, with advice."""
    return f"{unreadable_lines(set_aside)}. Mend or remove it in the queue's object"


def unreadable_lines(set_aside: Sequence[SetAside]) -> str:
    """Return the number of lines that cannot be read as jobs, of which there is one at least, and what is wrong."""
    lines = counted(len(set_aside), "line cannot be read as a job", "lines cannot be read as jobs")
    first = "" if len(set_aside) == 1 else "the first: "
    name = f"that of {printable(set_aside[0].key)}: " if set_aside[0].key else ""
    return f"{lines}: {first}{name}{set_aside[0].reason}"


def _warnings(set_aside: Sequence[SetAside], taken: int, most: int, results: int, errors: int) -> list[str]:
    """Return the warnings about the space in the blob, and about lines and results that are lost to users."""
    warnings = []
    if taken > WARN_SHARE * most:
        warnings.append(
            f"the blob is {taken / most:.0%} full: jobs take {taken} of the {most} bytes that enqueue may use. Let "
            "workers catch up, purge dead jobs, or raise the queue's limit with configure(blob_bytes=...)"
        )
    if set_aside:
        warnings.append(about_lines(set_aside))
    if results or errors:
        lost = [counted(results, "result was dropped", "results were dropped")] if results else []
        if errors:
            lost.append(counted(errors, "error was shortened or dropped", "errors were shortened or dropped"))
        warnings.append(
            f"{' and '.join(lost)} because the queue had no room: keep results and dead jobs for a shorter time, "
            "or raise the queue's limit with configure(blob_bytes=...)"
        )
    return warnings


class _Tally(msgspec.Struct):
    """The counts of one entrypoint's jobs."""

    ready: int = 0
    scheduled: int = 0
    in_progress: int = 0
    dead: int = 0
    completed: int = 0
    results_dropped: int = 0
    errors_dropped: int = 0
    waiting: int = 0
    oldest: datetime | None = None
    claim: datetime | None = None

    def count_claimed(self, jobs: int, since: datetime | None) -> None:
        self.in_progress += jobs
        if since is not None and (self.claim is None or since < self.claim):
            self.claim = since

    def count_ready(self, jobs: int, since: datetime | None) -> None:
        self.ready += jobs
        if since is not None and (self.oldest is None or since < self.oldest):
            self.oldest = since

    def figures(self, now: datetime, paused: bool, totals: Totals | None) -> EntrypointStats:
        counts = msgspec.structs.asdict(self)
        oldest, claim = _age(counts.pop("oldest"), now), _age(counts.pop("claim"), now)
        return EntrypointStats(**counts, oldest_ready_age=oldest, oldest_claim_age=claim, paused=paused, totals=totals)


def _age(since: datetime | None, now: datetime) -> timedelta | None:
    return None if since is None else max(timedelta(), now - since)
