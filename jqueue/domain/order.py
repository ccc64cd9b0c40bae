"""Finds the next job to claim: the orders of the waiting jobs, and the limits that hold some of them back.

A change of a job pushes a new entry into a heap and leaves the old one, which is dropped when it reaches the top, or
with all other outdated ones when they may be more than half. A job whose concurrency key is at its limit is parked when
it comes up. Each change of a job with that key brings back one parked job of each kind (limit and entrypoint). So a
claim costs O(log n), whatever the number of jobs held back.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from jqueue.domain.fields import LARGEST
from jqueue.domain.header import Header
from jqueue.domain.job import COMPLETED, DEAD, IN_PROGRESS, QUEUED, JobRecord, may_kill, process_of
from jqueue.domain.rules import (
    EntrypointRules,
    KeyUsage,
    QueueSettings,
    RatedKey,
    Schedule,
    Usage,
    claims_left,
    key_opens_at,
    opens_at,
    time_shown,
)
from jqueue.domain.segment_rows import SegmentRows

NOT_A_ROW = ("", 0)
"""The place of a job that is not the loaded row of a segment."""

SUSPECTS = "\0suspects"
"""The concurrency key of all jobs that may kill their workers, with a limit of 1 in each process: so the next death of
the process is the doing of one of them at most. No caller can give it."""


HeapEntry = tuple[Any, ...]
"""A sort key that ends in a job's id."""


class LazyHeap:
    """A heap of entries that end in a job's id.

    Args:
        is_valid: returns True if an entry is up to date.
        entries: the first entries.

    Attributes:
        entries: the heap, with valid and outdated entries.
        live: number of jobs that have a valid entry, if its owner counts them.
    """

    __slots__ = ("_floor", "_is_valid", "entries", "live")

    def __init__(self, is_valid: Callable[[HeapEntry], bool], entries: Iterable[HeapEntry] = ()) -> None:
        self._is_valid = is_valid
        self.live: int = 0
        self.entries: list[HeapEntry] = list(entries)
        heapq.heapify(self.entries)
        self._floor = max(64, 2 * len(self.entries))

    def push(self, entry: HeapEntry) -> None:
        """Add an entry. This costs O(log n), averaged over many pushes: a clean-up is rare."""
        heapq.heappush(self.entries, entry)
        if len(self.entries) > self._floor:
            if len(self.entries) > 2 * self.live:
                self.entries = [entry for entry in set(self.entries) if self._is_valid(entry)]
                heapq.heapify(self.entries)
            self._floor = max(64, 2 * len(self.entries))

    def top(self) -> HeapEntry | None:
        """Return the smallest valid entry, and leave it in the heap; None if there is none."""
        entries, is_valid = self.entries, self._is_valid
        while entries:
            if is_valid(entries[0]):
                return entries[0]
            heapq.heappop(entries)
        return None

    def pop(self) -> HeapEntry | None:
        """Remove and return the smallest valid entry; None if there is none."""
        if (entry := self.top()) is not None:
            heapq.heappop(self.entries)
        return entry

    def first(self, fits: Callable[[HeapEntry], bool]) -> HeapEntry | None:
        """Return the smallest entry that fits, and change nothing; None if none does.

        Only a few of the entries that are larger than the result are looked at.
        """
        entries, entry, places = self.entries, None, [0]
        while places:
            place = places.pop()
            if place >= len(entries) or (entry is not None and entries[place] >= entry):
                continue
            if fits(entries[place]):
                entry = entries[place]  # no entry below this place is smaller
            else:
                places += (2 * place + 2, 2 * place + 1)
        return entry


class Order:
    """The queued jobs of a table in the order in which they are served, and the jobs whose time is over.

    Args:
        jobs: the table. Each change of a job in it must be followed by a call of `moved`.
        rows: the rows of segments; rows that are not loaded are not in the table.

    Attributes:
        settings, recent, schedules: see `Header`.
        rules: the `entrypoints` of a `Header`. Each change in place must be followed by a call of `rules_changed`.
        queued: number of queued jobs in the table.
        running: number of jobs in progress, by entrypoint.
        running_keys: number of jobs in progress, by concurrency key.
        children: ids of the jobs that have not ended, by the id of each of their parents.
        unseen: ids of parents that may be neither in the table nor in a segment, while jobs wait for them.
    """

    def __init__(self, jobs: Mapping[str, JobRecord], rows: SegmentRows) -> None:
        self.jobs = jobs
        self._rows = rows
        self.settings: QueueSettings = QueueSettings()
        self.rules: Mapping[str, EntrypointRules] = {}
        self.recent: Mapping[str, tuple[Usage, ...]] = {}
        self.schedules: Mapping[str, Schedule] = {}
        self.running: dict[str, int] = {}
        self.running_keys: dict[str, int] = {}
        self._now = datetime.min.replace(tzinfo=UTC)
        self.queued: int = 0
        self._keyed = 0
        self._ready: dict[str, LazyHeap] = {}
        self._ready_all: LazyHeap | None = None
        self._scheduled = LazyHeap(self._is_scheduled)
        self.leaving: LazyHeap = LazyHeap(self._is_leaving)
        self.recent_keys: KeyUsage = {}
        self._rated: frozenset[str] = frozenset()
        self._parked: dict[str | RatedKey, dict[tuple[int, str], LazyHeap]] = {}
        self._opening: list[tuple[float, RatedKey]] = []  # the keys of these that are in `_opens`, each once
        self._opens = set[RatedKey]()
        self._parked_under: dict[str, str | RatedKey] = {}
        self._postponed_keys: list[str | RatedKey] = []
        self._through: int | None = None
        self._holder: str | None = None
        self._is_batch = False
        self._later: list[tuple[LazyHeap, HeapEntry]] = []
        self.children: dict[str, dict[str, None]] = {}
        self.unseen: dict[str, None] = {}

    # Changes

    def take_settings(self, header: Header) -> None:
        """Use the settings, the rules and the tables of a header from now on."""
        before, settings, rules = self.settings, header.settings, header.entrypoints
        other_rules = rules is not self.rules and rules != self.rules
        self.settings, self.rules, self.recent, self.schedules = settings, rules, header.recent, header.schedules
        if settings.dead_retention != before.dead_retention:
            for job in self.jobs.values():
                if job.status is DEAD and (until := self.leaves_at(job)) is not None:
                    self.leaving.push((until, job.id))
        if other_rules:
            self.rules_changed()
        counted, self.recent_keys = self.recent_keys, header.recent_keys
        for name, key in self._opens if counted is not self.recent_keys else ():
            if counted.get(name, {}).get(key) != self.recent_keys.get(name, {}).get(key):
                self._unpark((name, key))

    def rules_changed(self) -> None:
        """Take note that the rules of an entrypoint have changed."""
        self._ready_all = None
        self._unpark_rated()
        self._rated = frozenset(name for name, rules in self.rules.items() if rules.key_rate is not None)

    def moved(self, before: JobRecord | None, after: JobRecord | None) -> None:
        """Take note that a job of the table has another value; None if it is new, or has left."""
        if before is not None:
            status, entrypoint = before.status, before.entrypoint
            if self._parked_under:  # a job that has changed is no longer parked: its key is checked again
                self._parked_under.pop(before.id, None)
            if status is QUEUED:
                self.queued -= 1
                heap = self._ready[entrypoint]
                heap.live -= 1
                if not heap.live:  # the heap goes with its last job, or old names would pile up
                    del self._ready[entrypoint]
            elif status is IN_PROGRESS:
                _count(self.running, entrypoint, -1)
            for key in _limited_keys(before):
                self._keyed -= 1
                if status is IN_PROGRESS:
                    _count(self.running_keys, _key_in(key, before.holder), -1)
                if key is not SUSPECTS:  # `claim_for` brings these back
                    self._unpark(key)
            if self._rated and (rated := self.rated_key(before)) is not None:
                self._unpark(rated)
        if after is not None:
            status, entrypoint = after.status, after.entrypoint
            if status is QUEUED:
                self.queued += 1
                if entrypoint not in self._ready:
                    self._ready[entrypoint] = LazyHeap(self._is_ready)
                self._ready[entrypoint].live += 1
                if after.waits_for:
                    self.unseen.update(dict.fromkeys(each for each in after.waits_for if each not in self.jobs))
                elif after.run_at is None:
                    self._push_ready(after)
                else:
                    self._scheduled.push((after.run_at, after.id))
                if after.expires_at is not None:
                    self.leaving.push((after.expires_at, after.id))
            elif status is IN_PROGRESS:
                self.running[entrypoint] = self.running.get(entrypoint, 0) + 1
            elif (until := self.leaves_at(after)) is not None:
                self.leaving.push((until, after.id))
            for key in _limited_keys(after):
                self._keyed += 1
                if status is IN_PROGRESS:
                    _count(self.running_keys, _key_in(key, after.holder), 1)
        if (before is not None and before.after) or (after is not None and after.after):
            self._relate(before, after)

    def _relate(self, before: JobRecord | None, after: JobRecord | None) -> None:
        """Take note of the parents that a job needs. The last job to need the result of one lets it go."""
        job, parents, needed = before or after, _parents_of(before), _parents_of(after)
        assert job is not None
        if parents == needed:
            return
        for parent in needed:
            self.children.setdefault(parent, {})[job.id] = None
        for parent in parents:
            if parent not in needed:
                del self.children[parent][job.id]
                if not self.children[parent]:
                    del self.children[parent]
                    there = self.jobs.get(parent)
                    if there is not None and there.status is COMPLETED and (until := self.leaves_at(there)) is not None:
                        self.leaving.push((until, parent))

    # Queries

    @contextmanager
    def only_through(self, sequence: int | None) -> Iterator[None]:
        """Pass over jobs with a larger sequence number inside the `with` block; put them back then. None: over none."""
        self._through = sequence
        try:
            yield
        finally:
            self._through = None
            later, self._later = self._later, []
            for heap, passed in later:
                heap.push(passed)

    def claim_for(self, holder: str | None, *, is_batch: bool = False) -> None:
        """Note who claims next. A process does one job at a time that may kill it, but a batch isolates such jobs."""
        self._holder, self._is_batch = holder, is_batch
        while SUSPECTS in self._parked and (is_batch or _key_in(SUSPECTS, holder) not in self.running_keys):
            self._unpark(SUSPECTS)
            if not is_batch:
                break

    def waiting(self) -> dict[str, int]:
        """Return the number of queued jobs of each entrypoint that has some, scheduled jobs included."""
        queued = {entrypoint: heap.live for entrypoint, heap in self._ready.items()}
        return dict(self._rows.waiting() + Counter(queued)) if self._rows.manifest.segments else queued

    def take(self, entrypoints: tuple[str, ...] | None, now: datetime) -> JobRecord | None:
        """Return the next job to claim, by priority, then by sequence; None if there is none, or all are held back.

        The job is removed from the order: the caller must move it.

        Raises:
            RowsMissingError: a row that is not loaded may come first.
        """
        heap, entry = self._first(entrypoints, now)
        return None if heap is None or entry is None else self.jobs[heapq.heappop(heap.entries)[-1]]

    def next_entry(self, entrypoints: tuple[str, ...] | None, now: datetime) -> HeapEntry | None:
        """Return the entry of the job that `take` would return. Errors are as there."""
        return self._first(entrypoints, now)[1]

    def _first(self, entrypoints: tuple[str, ...] | None, now: datetime) -> tuple[LazyHeap | None, HeapEntry | None]:
        """Return the next entry, which is the first of its heap, if no row that is not loaded comes before it."""
        self._look_at(now)
        heap, unloaded = self._first_heap(entrypoints, now), list[str]()
        if self._rows.manifest.segments:
            unloaded = [name for name in self._rows.unloaded.entrypoints(entrypoints) if self.is_open(name, now)]
        return heap, self._top_of(heap, unloaded, now)

    def _look_at(self, now: datetime) -> None:
        """Bring back the jobs that are due, and those whose key may be claimed again."""
        if self._opening and now < self._now:
            self._unpark_rated()  # the clock was set back
        self._now = now
        while self._opening and self._opening[0][0] <= now.timestamp():
            key = heapq.heappop(self._opening)[1]
            self._opens.discard(key)
            self._unpark(key)
        if self._scheduled.entries:
            self._promote(now)

    def _top_of(self, heap: LazyHeap | None, unloaded: Sequence[str], now: datetime) -> HeapEntry | None:
        """Return the first entry of a heap, if no row of some entrypoints that is not loaded comes before it."""
        entry = None if heap is None else self._top(heap)
        if unloaded:
            self._rows.unloaded.check_before(unloaded, None if entry is None else entry[:2], self._through, now)
        return entry

    def first_ready(self, entrypoint: str, now: datetime) -> HeapEntry | None:
        """Return the entry of the next job of an entrypoint, whatever its rules; None if none is ready.

        Raises:
            RowsMissingError: a row that is not loaded may come first.
        """
        self._look_at(now)
        self.claim_for(None)
        return self._top_of(self._ready.get(entrypoint), [*self._rows.unloaded.entrypoints((entrypoint,))], now)

    def has_waiting(self, entrypoint: str) -> bool:
        """Return True if a job of an entrypoint is queued, scheduled jobs included."""
        return entrypoint in self._ready or self._rows.has_waiting(entrypoint)

    def _first_heap(self, entrypoints: tuple[str, ...] | None, now: datetime) -> LazyHeap | None:
        """Return the heap whose first job is the next job to claim; None if there is none."""
        if entrypoints is None and not self.rules:
            return self._all_ready()
        if entrypoints is not None and len(entrypoints) == 1:
            [name] = entrypoints
            return self._ready.get(name) if not self.rules or self.is_open(name, now) else None
        heaps = self._open_heaps(entrypoints, now)
        tops = [(top, heap) for heap in heaps if (top := self._top(heap)) is not None]
        return min(tops)[1] if tops else None  # no two entries are equal: they end in the id

    def _open_heaps(self, entrypoints: tuple[str, ...] | None, now: datetime) -> list[LazyHeap]:
        """Return the heaps with the ready jobs of some entrypoints that may be claimed; None means all."""
        names = self.rules if entrypoints is None else entrypoints
        heaps = [self._ready[name] for name in names if name in self._ready and self.is_open(name, now)]
        return [*heaps, self._all_ready()] if entrypoints is None else heaps

    def is_open(self, entrypoint: str, now: datetime) -> bool:
        """Return True if the rules of an entrypoint allow one more of its jobs to be claimed."""
        return self.claims_allowed(entrypoint, now, 1) > 0

    def claims_allowed(self, entrypoint: str, now: datetime, most: int) -> int:
        """Return the number of jobs of an entrypoint that its rules allow to be claimed now, at most a number."""
        rules = self.rules.get(entrypoint)
        if rules is None:
            return most
        if rules.paused:
            return 0
        if rules.max_running is not None:
            most = min(most, rules.max_running - self._running(entrypoint))
        if most > 0 and rules.rate is not None and rules.per is not None:
            most = min(most, claims_left(self.recent.get(entrypoint, ()), now.timestamp(), rules.rate, rules.per))
        return max(0, most)

    def best_priority_beside(self, segment: str, entrypoints: tuple[str, ...] | None, now: datetime) -> float | None:
        """Return the best priority of the ready jobs of some entrypoints, or of all, that are not rows of a segment.

        None means that there are none. The priority may be that of a job whose concurrency key allows no claim now.
        """
        rows, through = self._rows, self._through

        def is_beside(entry: HeapEntry) -> bool:
            if rows.of.get(entry[-1], NOT_A_ROW)[0] == segment or (through is not None and entry[1] > through):
                return False
            return self._is_current(entry)

        names = [name for name in rows.unloaded.entrypoints(entrypoints) if self.is_open(name, now)]
        priorities = rows.unloaded.priorities_beside(segment, names, through, now)
        firsts = (heap.first(is_beside) for heap in self._open_heaps(entrypoints, now))
        priorities += [entry[0] for entry in firsts if entry is not None]
        return min(priorities, default=None)

    def _is_current(self, entry: HeapEntry) -> bool:
        """Return True if an entry is the place of a job that waits. Unlike `_is_ready`, it changes nothing."""
        job = self.jobs.get(entry[-1])
        return job is not None and _has_place(job, entry)

    def _running(self, entrypoint: str) -> int:
        entries = self._rows.manifest.segments.values()
        return self.running.get(entrypoint, 0) + sum(each.leased for each in entries if each.entrypoint == entrypoint)

    def next_due(self) -> datetime | None:
        """Return the next time after the last `take` at which a job or cron entry is due, or a rate allows a claim."""
        entries = (each for each in self.schedules.values() if not each.paused)
        times = [time for each in entries if (time := time_shown(each, self._now)) > self._now]
        if (top := self._scheduled.top()) is not None:
            times.append(top[0])
        if self._rows.manifest.segments and (first := self._rows.unloaded.next_due(self._now)) is not None:
            times.append(_time_of(first))
        if self._opening:
            times.append(_later(_time_of(self._opening[0][0]), 1e-6))
        for name, rules in self.rules.items():
            if rules.rate is not None and rules.per is not None and self._waits(name) and not rules.paused:
                now = self._now.timestamp()
                opens = opens_at(self.recent.get(name, ()), now, rules.rate, rules.per)
                if opens is not None:
                    times.append(_later(_time_of(opens), 1e-6))
        return min(times, default=None)

    def _waits(self, entrypoint: str) -> bool:
        return entrypoint in self._ready or entrypoint in self._rows.unloaded.entrypoints(None)

    def outlived(self, now: datetime) -> JobRecord | None:
        """Return a job whose time is over: queued and expired, or ended and kept for long enough; None if none is.

        The caller must move it before it asks for the next.
        """
        leaving = self.leaving
        if leaving.entries and (top := leaving.top()) is not None and top[0] <= now:
            return self.jobs[top[-1]]
        return None

    def leaves_at(self, job: JobRecord) -> datetime | None:
        """Return the time from which a job may be removed: its expiry, or the end of its retention; None if never."""
        if job.status is QUEUED:
            return job.expires_at
        if job.status is COMPLETED:
            if job.id in self.children:  # they need its result
                return None
            return _later(job.finished_at or job.created_at, job.keep_result or 0.0)
        if job.status is DEAD and self.settings.dead_retention is not None:
            return _later(job.dead_at or job.created_at, self.settings.dead_retention)
        return None

    # Heaps

    def _top(self, heap: LazyHeap) -> HeapEntry | None:
        """Return the first entry of a heap whose concurrency key allows a claim. Those before it are parked."""
        while (entry := heap.top()) is not None or self._unpark_postponed():
            if entry is None:
                continue
            if self._through is not None and entry[1] > self._through:
                heap.pop()
                self._skip(heap, entry)
                continue
            if not self._keyed and not self._rated:
                return entry
            job = self.jobs[entry[-1]]
            if (key := self._held_by(job)) is None:
                return entry
            heap.pop()
            self._park(job, entry, key)
        return None

    def _skip(self, heap: LazyHeap, entry: HeapEntry) -> None:
        """Set aside an entry with too large a sequence number. A parked job of its kind gets a chance in its place."""
        self._later.append((heap, entry))
        job = self.jobs[entry[-1]]
        for key in self._keys_of(job) if self._parked else ():
            parked = self._parked.get(key, {}).get((job.concurrency_limit or 1, job.entrypoint))
            if parked is not None and (other := parked.pop()) is not None:
                self._parked_under.pop(other[-1], None)
                self._push_ready(self.jobs[other[-1]])

    def rated_key(self, job: JobRecord) -> RatedKey | None:
        """Return the key whose rate a claim of a job counts for, with the entrypoint; None if it has none."""
        key = job.fair_key if job.concurrency_key is None else job.concurrency_key
        return None if key is None or job.entrypoint not in self._rated else (job.entrypoint, key)

    def _keys_of(self, job: JobRecord) -> list[str | RatedKey]:
        rated = self.rated_key(job)
        return [*_limited_keys(job), *([] if rated is None else [rated])]

    def _held_by(self, job: JobRecord) -> str | RatedKey | None:
        """Return the key of a job that allows no claim now; None if it may be claimed."""
        for key in _limited_keys(job):
            if key is SUSPECTS and self._is_batch:
                continue
            most = 1 if key is SUSPECTS else job.concurrency_limit or 1
            if self.running_keys.get(_key_in(key, self._holder), 0) >= most:
                return key
        if (rated := self.rated_key(job)) is None:
            return None
        opens = key_opens_at(self.recent_keys, self.rules, rated, self._now.timestamp())
        if opens is not None and rated not in self._opens:
            self._opens.add(rated)
            heapq.heappush(self._opening, (opens, rated))
        return None if opens is None else rated

    def _park(self, job: JobRecord, entry: HeapEntry, key: str | RatedKey) -> None:
        kinds = self._parked.setdefault(key, {})
        kind = (job.concurrency_limit or 1, job.entrypoint)
        if kind not in kinds:
            kinds[kind] = LazyHeap(partial(self._is_parked, key))
        self._parked_under[job.id] = key
        kinds[kind].push(entry)
        for other in self._keys_of(job):  # another job with that key may be free
            if other != key and (isinstance(key, str) or other is SUSPECTS):
                self._unpark(other)

    def _unpark_rated(self) -> None:
        """Put all jobs whose key has a rate limit back into the order."""
        self._opening.clear()
        self._opens.clear()
        for key in [key for key in self._parked if not isinstance(key, str)]:
            while key in self._parked:
                self._unpark(key)

    def _unpark(self, key: str | RatedKey) -> None:
        """Put the first parked job of each kind with this key back into the order."""
        kinds = self._parked.get(key)
        for kind, heap in list(kinds.items()) if kinds else ():
            entry = heap.pop()
            if entry is None:
                del kinds[kind]  # type: ignore[union-attr]
            else:
                self._parked_under.pop(entry[-1], None)
                self._push_ready(self.jobs[entry[-1]])
        if kinds is not None and not kinds:
            del self._parked[key]

    def _unpark_postponed(self) -> bool:
        """Bring back parked jobs for jobs that came up before their time. Return True if there were such jobs."""
        postponed, self._postponed_keys = self._postponed_keys, []
        for key in postponed:
            self._unpark(key)
        return bool(postponed)

    def _all_ready(self) -> LazyHeap:
        """Return the order of all ready jobs whose entrypoints have no rules. It is built at the first call."""
        if self._ready_all is None:
            heaps = [heap for name, heap in self._ready.items() if name not in self.rules]
            entries = (entry for heap in heaps for entry in heap.entries)
            self._ready_all = LazyHeap(self._is_ready, entries)
        return self._ready_all

    def _push_ready(self, job: JobRecord) -> None:
        if job.attempt >= LARGEST or job.failures >= LARGEST:
            return  # one more claim could not be read back
        entry = job.priority, job.sequence, job.entrypoint, job.id
        if (heap := self._ready.get(job.entrypoint)) is not None:
            heap.push(entry)
        if self._ready_all is not None and job.entrypoint not in self.rules:
            self._ready_all.push(entry)

    def _promote(self, now: datetime) -> None:
        while (top := self._scheduled.top()) is not None and top[0] <= now:
            self._scheduled.pop()
            self._push_ready(self.jobs[top[-1]])

    def _is_ready(self, entry: HeapEntry) -> bool:
        job_id = entry[3]
        job = self.jobs.get(job_id)
        if job is None or job.status is not QUEUED or job.waits_for or job_id in self._parked_under:
            return False
        if entry != (job.priority, job.sequence, job.entrypoint, job_id):
            return False
        if job.run_at is None or job.run_at <= self._now:
            return True
        self._scheduled.push((job.run_at, job.id))  # it was handed back with a delay, or the clock was set back
        self._postponed_keys += self._keys_of(job)
        return False

    def _is_parked(self, key: str | RatedKey, entry: HeapEntry) -> bool:
        job = self.jobs.get(entry[-1])
        return job is not None and self._parked_under.get(job.id) == key and _has_place(job, entry)

    def _is_scheduled(self, entry: HeapEntry) -> bool:
        job = self.jobs.get(entry[-1])
        return job is not None and job.status is QUEUED and job.run_at == entry[0] and not job.waits_for

    def _is_leaving(self, entry: HeapEntry) -> bool:
        job = self.jobs.get(entry[-1])
        return job is not None and self.leaves_at(job) == entry[0]


def _has_place(job: JobRecord, entry: HeapEntry) -> bool:
    """Return True if an entry of a heap is the place of a job that waits to be claimed."""
    return job.status is QUEUED and not job.waits_for and entry == (job.priority, job.sequence, job.entrypoint, job.id)


def _limited_keys(job: JobRecord) -> Sequence[str]:
    """Return the keys that limit the number of jobs in progress. A job is parked under the first full one."""
    key = job.concurrency_key
    if job.errors and may_kill(job):
        return (SUSPECTS,) if key is None else (SUSPECTS, key)
    return () if key is None else (key,)


def _key_in(key: str, holder: str | None) -> str:
    """Return the name under which jobs in progress of a key are counted: that of jobs that may kill, by process."""
    return SUSPECTS + process_of(holder) if key is SUSPECTS else key


def _parents_of(job: JobRecord | None) -> tuple[str, ...]:
    """Return the ids of the parents that a job needs. A completed job needs none."""
    return () if job is None or job.status is COMPLETED else job.after


def _count(counts: dict[str, int], name: str, change: int) -> None:
    count = counts.get(name, 0) + change
    if count:
        counts[name] = count
    else:
        counts.pop(name, None)


def _later(moment: datetime, seconds: float) -> datetime:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:  # a blob edited by hand
        return datetime.max.replace(tzinfo=UTC)


def _time_of(timestamp: float) -> datetime:
    try:
        return datetime.fromtimestamp(timestamp, UTC)
    except (OverflowError, ValueError, OSError):  # a blob edited by hand
        return datetime.max.replace(tzinfo=UTC)
