"""Bugs planted one at a time: likely mistakes in a queue, and the seeds within which the simulation finds each.

Each bug is a change of a line or two of the product's source. It is built into the running program: the functions of
the module get the code that they have in the changed source. So it may use only names that the module has.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

import jqueue
from tests.simulation.runner import Settings

ENOUGH = 50
"""Number of seeds within which most bugs are found."""


PRODUCT = Path(jqueue.__file__).parent


class Bug(NamedTuple):
    """A change of the source.

    Attributes:
        file: the changed file in `jqueue/`.
        old: text that stands in the file once.
        new: the text in its place.
        seeds: number of seeds within which the bug is found.
        also: another change that belongs to the same bug.
    """

    file: str
    old: str
    new: str
    seeds: int = ENOUGH
    also: Bug | None = None


WITHOUT_DEATHS = partial(Settings, mortal=0.0)
WITHOUT_GROUPS = partial(WITHOUT_DEATHS, groups=0.0)
"""Settings without groups, and without deaths that others see."""

NOT_RECOGNISED = Bug("domain/commits.py", "return Verdict.LANDED", "return Verdict.NOT_DONE")

PLANTED: Mapping[Settings, Mapping[str, Bug]] = {
    # Many processes, many faults, and the shortest commit table that is allowed.
    WITHOUT_GROUPS(rate=0.4, processes=6, short_table=1.0, segments=0.0): {
        "A commit whose answer was lost is not recognised": NOT_RECOGNISED,
        "The error for a lost answer states that nothing was written": Bug(
            "core/engine.py", "StorageError) and error.nothing_written", "StorageError)"
        ),
        "A dequeue whose wait was ended goes on for the time that it would have had": Bug(
            "core/session.py",
            "            self._alarms.set(request, request.until, Request.expire)\n            if request.ending",
            "            if request.ending",
        ),
        "Only the last two writers' commits can be recognised": Bug(
            "domain/commits.py", "dict(header.commits)", "dict([*header.commits.items()][-1:])"
        ),
        "Records of writers are dropped by age, and `evicted_through` does not record it": Bug(
            "domain/commits.py",
            "header.evicted_through, _evict(",
            "header.evicted_through, 0 * _evict(",
            seeds=100,
        ),
        "An ack, nack or heartbeat succeeds with any claim": Bug(
            "domain/draft.py", "if job.attempt != claim.attempt:", "if False:", seeds=200
        ),
        "A redriven job starts again with attempt 0": Bug(
            "domain/operations/operator.py",
            "            failures=0,",
            "            failures=0, attempt=0,",
            seeds=100,
        ),
        "A job id that is used again starts with attempt 0": Bug(
            "domain/draft.py", 'self._assign("attempt_floor", attempt)', "pass"
        ),
        "Stale claims are revoked before the heartbeats of the same commit are applied": Bug(
            "core/engine.py",
            "claiming: list[Request] = []",
            "claiming: list[Request] = []\n        perform(Sweep(self.watch.suspects()), draft, now)",
        ),
        "A claim gets the timeout of the queue that watches it, and not its own": Bug(
            "core/staleness.py", " if claim_timeout is None else claim_timeout", ""
        ),
        "A suspected claim is revoked although its heartbeat has moved": Bug(
            "core/staleness.py",
            "seen is not None and seen[0] == claim",
            "seen is not None",
            also=Bug("domain/operations/ends.py", "job.heartbeat_at) ==", "job.heartbeat_at) >="),
        ),
        "The time in which all processes stood still counts as watched": Bug(
            "core/staleness.py", "monotonic - self._last_success - still", "monotonic - self._last_success"
        ),
        "Stale claims are never revoked": Bug(
            "domain/operations/ends.py", "self._held(draft, self.suspects)", "self._held(draft, ())"
        ),
        "An empty dequeue is answered from the cached state": Bug(
            "core/engine.py", "call.seen_empty and is_empty(outcome) for", "is_empty(outcome) for"
        ),
        "The claims of a cancelled dequeue are not handed back": Bug(
            "core/requests.py", "            if claims:", "            if False:"
        ),
        "A write with an unknown outcome is forgotten when its caller has left": Bug(
            "core/engine.py",
            "        self.draft.rollback()\n        self.draft.check = None",
            "        self._forget_old_writes()\n        self.draft.rollback()\n        self.draft.check = None",
            also=Bug("core/engine.py", "self.open_writes[:-OPEN_WRITES_KEPT]", "self.open_writes"),
        ),
        "Leaving does not wait until the outcome of the last writes is known": Bug(
            "core/engine.py", "request.claims_jobs for sent in", "False for sent in", seeds=200
        ),
        "A write without an etag overwrites an existing object": Bug(
            "core/engine.py",
            "self._spare.writing = True",
            "self._spare.writing = True\n        self.etag = self.etag or (await self.storage.read())[1]",
        ),
        "A refused operation does not undo the earlier operations of its `apply`": Bug(
            "domain/operations/base.py", "begin if atomic else savepoint", "savepoint"
        ),
        "An unexpected exception in one operation fails the whole commit": Bug(
            "domain/operations/base.py", "refusal.__cause__ = error", "raise error"
        ),
        "A waiting dequeue is answered when its job is found, before the claim is committed": Bug(
            "core/engine.py",
            "is_written = await self._write(applied)",
            "[each.settle(outcome) for each, outcome in applied.outcomes if each.waits_for_jobs]\n"
            f"{' ' * 12}is_written = await self._write(applied)",
        ),
        "The blob does not remember acked jobs": Bug(
            "domain/operations/ends.py", "draft.note(draft.header.finished, job.id, job.attempt)", "pass"
        ),
        "Lines that cannot be read as a job are not written back": Bug(
            "core/blob/codec.py", "encode_asides(draft.set_aside) if draft.set_aside else ()", "()"
        ),
        "Unknown fields of the header are not written back": Bug(
            "core/blob/codec.py", "if not record.extra:", "if True:"
        ),
        "The newest job is served first": Bug(
            "domain/order.py", "heapq.heappop(heap.entries)[-1]", "heap.entries.pop()[-1]"
        ),
        "A waiting consumer is always told that a job is due now": Bug(
            "core/engine.py", "return self.draft.jobs.order.next_due()", "return self.now()"
        ),
        "A call does not end at its deadline": Bug(
            "core/requests.py", '"""End the request, as its deadline has passed."""', "return"
        ),
        "A deadline that passes while a write is under way is reported as not done": Bug(
            "core/requests.py", "if self.in_flight or self.open_writes or self.doubtful:", "if False:"
        ),
        "The transitions of a refused operation are undone, and still counted": Bug(
            "domain/draft.py", "del self.moves[moves:]", "del self.moves[len(self.moves) if mark else 0 :]"
        ),
        "A commit forgets the counters of the entrypoints that it does not change": Bug(
            "domain/counters.py", "3), dict(counters)", "3), {}"
        ),
    },
    # Groups of jobs.
    WITHOUT_DEATHS(rate=0.3, processes=5, steps=4, segments=0.5, groups=1.0): {
        "The job that follows a group is enqueued again at the next change of the group": Bug(
            "domain/groups.py", "        record = record.evolve(then=None)", "        pass"
        ),
        "The job that follows a group is never enqueued": Bug(
            "domain/groups.py", "pending.append(record.then)", "record = record.evolve(then=None)"
        ),
        "The transitions of a write that did not land are not counted when it is repeated": Bug(
            "domain/draft.py",
            "self._counted = (min(self._counted[0], mark), min(self._counted[1], moves), min(self._counted[2], bulk))",
            "pass",
        ),
        "A group takes jobs after its end": Bug("domain/groups.py", "if record.at_rest:", "if False:"),
        "Jobs that are purged or cancelled in segments do not leave their group": Bug(
            "domain/draft.py", "asked_by=self.asked_by, group=segment.group", "asked_by=self.asked_by"
        ),
    },
    # A fast writer and a slow one, and nothing else.
    WITHOUT_GROUPS(contention=1.0): {
        "A continuous writer leaves no time for the others": Bug(
            "core/pacing.py", "self._rested = window > 0.0, False", "self._rested = False, False", seeds=20
        ),
    },
    # Limits, cron entries and results in every seed.
    WITHOUT_GROUPS(rate=0.4, processes=6, short_table=1.0, modern=1.0, segments=0.0): {
        "An undo does not restore the indexes of a job": Bug("domain/draft.py", "self.put(old)", "self.put(old, old)"),
        "One job more than the ceiling of its entrypoint is claimed": Bug(
            "domain/order.py", "rules.max_running - self", "rules.max_running + 1 - self"
        ),
        "One job more than the limit of its concurrency key is claimed": Bug(
            "domain/order.py", "self._holder), 0) >= most", "self._holder), 0) > most"
        ),
        "One claim more than the rate is made": Bug("domain/rules.py", "max(0, rate", "max(0, 1 + rate"),
        "Old claims count against the rate for ever": Bug(
            "domain/rules.py",
            "[span for span in usage if span.first - per < now < span.last + per]",
            "list(usage)",
        ),
        "A worker's start overwrites an operator's limit": Bug(
            "domain/operations/rules.py", 'self.by == "program" and before.declared', "False and before.declared"
        ),
        "A worker's start overwrites an operator's cron entry": Bug(
            "domain/operations/rules.py", 'old_entry.declared is not None and self.by == "program"', "False"
        ),
        "A paused cron entry fires": Bug("domain/rules.py", "if schedule.paused or (", "if ("),
        "A resumed cron entry fires for what it has missed": Bug(
            "domain/operations/rules.py", "old_entry if self.paused else without_missed(old_entry, now)", "old_entry"
        ),
        "A pause is ignored": Bug("domain/order.py", "if rules.paused:", "if False:"),
        "A job held back by its concurrency key never becomes ready again": Bug(
            "domain/order.py", "kinds = self._parked.get(key)", "kinds = None"
        ),
        "Of several entrypoints, that with the last job is served first": Bug(
            "domain/order.py", "return min(tops)[1]", "return max(tops)[1]"
        ),
        "Dead jobs with a retention time are removed at once": Bug(
            "domain/order.py", "self.settings.dead_retention)", "0.0)"
        ),
        "A cron entry stays due after it has fired": Bug(
            "domain/operations/rules.py", "schedule.name, after)", "schedule.name, schedule)"
        ),
        "The firing of a commit whose answer was lost is undone, but the entry is no longer due": Bug(
            "domain/operations/rules.py",
            "draft.note(draft.header.schedules, schedule.name, after)",
            "draft.header.schedules[schedule.name] = after",
        ),
        "A dequeue from some entrypoints fires no cron entries": Bug(
            "domain/operations/dequeue.py",
            "fire_due(draft, now)",
            'getattr(self, "entrypoints", ()) or fire_due(draft, now)',
        ),
        "After a clock that is ahead has fired, all earlier occurrences count as fired, too": Bug(
            "domain/rules.py", "_merged(spans), ", "(Fired(spans[0].first, spans[-1].last),), "
        ),
        "A cron entry is due only at the next time of the clock that is furthest ahead": Bug(
            "domain/rules.py", "next_time(schedule, now) <= now or", "schedule.next_at <= now or", seeds=100
        ),
        "A clock that is behind all known times of a cron entry fires for a past occurrence": Bug(
            "domain/rules.py", "[passed_by(now), *", "[passed_by(now - timedelta(days=1)), *", seeds=100
        ),
        "The encoding of a payload is forgotten": Bug(
            "domain/operations/enqueue.py", "encoding=self.encoding,", "encoding=None,"
        ),
        "An ack finishes its job without keeping the result": Bug(
            "domain/operations/ends.py", " if job.keep_result is None else job.keep_result", ""
        ),
        "An ack whose result cannot be kept keeps another one": Bug(
            "domain/operations/ends.py", " and self.keep_result != 0", "", seeds=100
        ),
        "A result is kept even if the queue then exceeds its size limit": Bug(
            "domain/operations/ends.py", "not any_result or take_reserve(draft, grows)", "True"
        ),
        "A result that does not fit is dropped without a record": Bug(
            "domain/operations/ends.py", "result_dropped=0 if fits else self.result_bytes", "result_dropped=0"
        ),
        "A job with a requested cancellation is queued again when its claim is stale": Bug(
            "domain/operations/ends.py", "job, Verb.REVOKE", "job.evolve(cancel_requested=False), Verb.REVOKE"
        ),
        "The heartbeat of a job with a requested cancellation does not report it": Bug(
            "domain/operations/ends.py", "lost.append(JobCancelledError(*claim))", "pass", seeds=100
        ),
    },
    # Jobs have fair keys in every seed.
    WITHOUT_DEATHS(rate=0.4, processes=6, modern=1.0, fair=1.0, damage=0.0): {
        "The places of fair keys are not read back with a version of another writer": Bug(
            "domain/draft.py",
            "        self.header = header\n",
            "        self.header = header\n        header.turns, header.fair = {}, {}\n",
        ),
        "The last sequence number falls to the place of a job with a fair key": Bug(
            "domain/turns.py", "max(jobs.last_sequence, place)", "place"
        ),
        "A job that is queued again forgets its weight": Bug(
            "domain/turns.py", "step_of(job.fair_weight)", "(step_of(job.fair_weight) if job.attempt == 0 else 1)"
        ),
        "A bulk enqueue forgets the weights of its jobs": Bug(
            "domain/operations/bulk.py", "[job.sequence] * step_of(job.fair_weight)", "[job.sequence]"
        ),
        "A key is forgotten before its last job is claimed": Bug(
            "domain/turns.py", "if last_places.get(key) == place:", "if last_places.get(key, 0) >= place:"
        ),
        "The clock of the turns stands still": Bug(
            "domain/turns.py", "if place > header.turns.get(name, 0):", "if False:"
        ),
        "One claim more than the rate of its key is made": Bug(
            "domain/rules.py", "rules[entrypoint].key_rate or 0", "1 + (rules[entrypoint].key_rate or 0)"
        ),
        "Each process counts its own claims of a key": Bug(
            "domain/order.py",
            "counted, self.recent_keys = self.recent_keys, header.recent_keys",
            "counted = header.recent_keys = self.recent_keys",
            seeds=100,
        ),
        "A job held back by the rate of its key waits until another job of the key changes": Bug(
            "domain/order.py",
            "self._opens.discard(key)\n            self._unpark(key)",
            "self._opens.discard(key)",
        ),
        "Rows are leased while keys take turns": Bug(
            "domain/operations/leases.py", ".priority) in draft.header.turns:", ".priority) in ():", seeds=200
        ),
    },
    # Jobs are claimed under names in every seed.
    WITHOUT_GROUPS(rate=0.4, processes=6, modern=1.0, staged=1.0, segments=0.0): {
        "A job without a claim still names its last holder": Bug(
            "domain/operations/ends.py", "**NO_CLAIM, queued", '**{**NO_CLAIM, "holder": job.holder}, queued'
        ),
        "A dequeue with a bound takes later jobs, too": Bug(
            "domain/operations/dequeue.py", "if self.through is None:", "if True:"
        ),
        "Jobs that a bounded dequeue passes over are not put back": Bug("domain/order.py", "heap.push(passed)", "pass"),
    },
    # Dead jobs are redriven with another payload in every seed.
    WITHOUT_GROUPS(rate=0.2, modern=1.0, large=1.0, corrects=1.0, segments=0.0): {
        "A redrive with a new payload keeps the old one": Bug(
            "domain/operations/operator.py",
            "payload=job.payload if self.payload is None else self.payload",
            "payload=job.payload",
        ),
    },
    # The history is kept in every seed.
    WITHOUT_GROUPS(modern=1.0, staged=0.5, overseen=0.7, history=1.0, segments=0.0): {
        "Events are dropped from the blob when their object is sent, before the store answers": Bug(
            "core/blob/history.py",
            "moved, name = Moved(history.first, ()), name_of(",
            "self.moved = Moved(history.first, history.batches)\n        moved, name = self.moved, name_of(",
        ),
        "The loser of two movers drops its own range of events instead of the winner's": Bug(
            "core/blob/history.py",
            "return Moved(first, batches[:count]), False",
            "return Moved(first, batches), False",
        ),
        "A writer that is behind takes the events of a quicker mover for those of a restored backup": Bug(
            "core/blob/history.py", "through=number_of(lines[-1]) if has_more else 0", "through=0"
        ),
        "The first event of a commit has the number of the last event before it": Bug(
            "domain/commits.py", "history.last + 1, now", "history.last, now"
        ),
        "A change of a job's time makes no event": Bug(
            "domain/events.py",
            "if move[0] is not Verb.HEARTBEAT]",
            "if move[0] not in (Verb.HEARTBEAT, Verb.RESCHEDULE)]",
        ),
    },
    # Large payloads and results are kept in objects in every seed.
    WITHOUT_GROUPS(modern=1.0, large=1.0, segments=0.0): {
        "The commit does not wait until the object of its payload is there": Bug(
            "core/values.py",
            'await self._observers.call("create", self.call_timeout, self.storage.create_object, suffix, content)',
            "asyncio.create_task(self.storage.create_object(suffix, content))",
        ),
        "A collection takes the results that jobs name for results that nothing names": Bug(
            "core/values.py", "in objects_of(job)}", "in objects_of(job) if RESULTS not in stored.suffix}"
        ),
    },
    # The results of steps are recorded in every seed.
    WITHOUT_DEATHS(rate=0.4, processes=6, stepped=1.0, segments=0.3): {
        "A step is recorded by a claim that is lost": Bug(
            "domain/operations/ends.py",
            "job = draft.held(self.job)\n        for step",
            "job = draft.held(draft.jobs.get(self.job.job_id, self).claim)\n        for step",
        ),
        "A retry forgets the steps": Bug(
            "domain/operations/ends.py", "status=QUEUED, **NO_CLAIM", "status=QUEUED, steps=(), **NO_CLAIM"
        ),
        "A step is recorded anew when its first answer was lost": Bug(
            "domain/operations/ends.py",
            "for step in job.steps:\n            if",
            "for step in ():\n            if",
        ),
        "A claim keeps the progress of the one before": Bug(
            "domain/operations/dequeue.py",
            "                progress=None,\n",
            "                progress=ready.progress,\n",
        ),
        "An ack keeps the steps": Bug("domain/operations/ends.py", "steps=(),\n                result=", "result="),
    },
    WITHOUT_DEATHS(rate=0.2, modern=1.0, large=1.0, stepped=1.0, segments=0.3): {
        "A collection removes the results of steps": Bug(
            "domain/job.py", "*(step.result_object for step in job.steps)", "*()"
        ),
    },
    # Operators act on what they have seen in every seed.
    WITHOUT_GROUPS(rate=0.4, processes=6, modern=1.0, overseen=1.0, segments=0.0): {
        "The guard of an order is not checked in the commit": Bug(
            "domain/operations/codec.py", "if (changed := self._changed(draft, now)) is not None:", "if False:"
        ),
        "Another priority resets the attempts and the failures of its job": Bug(
            "domain/operations/operator.py",
            "job.evolve(priority=self.priority)",
            "job.evolve(priority=self.priority, attempt=0, failures=0)",
        ),
        "A job that was changed holds its unique key no longer": Bug(
            "domain/draft.py",
            "if job.unique_key is not None and",
            "if before is None and job.unique_key is not None and",
        ),
        "A run of a cron entry counts as its next occurrence, which is then left out": Bug(
            "domain/operations/rules.py",
            "return _enqueue_of(_entry(draft, self.name), now",
            "schedule = draft.header.schedules[self.name]\n"
            "        draft.header.schedules[self.name] = with_fired(schedule, schedule.next_at, now)\n"
            "        return _enqueue_of(schedule, now",
        ),
        "The purge of one dead job purges all dead jobs": Bug(
            "domain/operations/operator.py",
            "return 1",
            "return replace(self, job_id=None).change(draft, now)",
        ),
        "An order to create the queue succeeds although the queue exists": Bug(
            "domain/operations/operator.py", "if draft.header.version or draft.header.queue or", "if"
        ),
    },
    # Applications whose writes name segments in every seed.
    WITHOUT_GROUPS(rate=0.2, processes=4, modern=1.0, staged=1.0, segments=1.0, history=0.0): {
        "A version equal to the last one counts as new": Bug(
            "domain/operations/bulk.py", "last >= transaction.version", "last > transaction.version"
        ),
        "A repeated write names its segments without a look at its transaction": Bug(
            "domain/operations/bulk.py", "last is not None and last >= transaction.version", "False"
        ),
        "A write that names segments does not record its transaction": Bug(
            "domain/operations/bulk.py", "remember(draft, self.transaction, now)", "pass"
        ),
        "Segments that wait for their commit are removed as early as others that nothing names": Bug(
            "core/values.py",
            "if age <= self._numbers.staged_kept and awaits",
            "if False and awaits",
            also=Bug("core/bulk.py", "await self._check_presence(new)", "pass"),
        ),
        "A repeated write removes its segments without a look at the manifest": Bug(
            "core/bulk.py", "own - named - header.retired.keys()", "own", seeds=100
        ),
        "The rows of each task begin at the first place of the write": Bug(
            "core/bulk.py", "behind=behind)", "behind=0)"
        ),
    },
    # Waiting jobs move to segments in every seed.
    WITHOUT_GROUPS(rate=0.2, processes=4, modern=0.8, segments=1.0): {
        "The manifest does not mark the rows that a commit takes": Bug(
            "domain/manifest.py", "current = ((name, self.current(name)) for name in self.taken)", "current = ()"
        ),
        "A collection removes old segments without a look at the manifest": Bug(
            "core/engine.py", "if self.segments is None else await self.segments.objects_named_in(header)", ""
        ),
        "A segment that has left the manifest may be removed at once": Bug(
            "domain/segments.py", "if not (before or retired):", "if True:"
        ),
        "A spill names its segment whole, although another writer has spilled some of its jobs": Bug(
            "domain/operations/segments.py", "self.segment, taken, now):", "self.segment, [], now):"
        ),
        "A spill takes jobs out of the blob that have changed since it wrote them": Bug(
            "domain/operations/segments.py", "(here is job or here == job)", "here is not None"
        ),
        "A commit that takes rows forgets the rows behind the first that were taken before": Bug(
            "domain/segments.py", "joined([*self.taken, *spans])", "joined([*self.taken[:1], *spans])"
        ),
        "An enqueue looks for the holder of its unique key in the blob alone": Bug(
            "domain/draft.py", "self.rows.find(key, keys=True)", "pass"
        ),
        "A lookup of a job by its id does not look into segments": Bug(
            "domain/draft.py", "self.rows.find(job_id)", "pass"
        ),
        "The head of a segment is that of its last chunk once a chunk was taken": Bug(
            "domain/manifest.py", "head=index.chunks[chunk]", "head=index.chunks[-1]"
        ),
        "A merge names rows that were taken while it wrote its segment": Bug(
            "domain/operations/segments.py", "else current.taken", "else []"
        ),
        "A rollback leaves its rows taken": Bug("domain/segment_rows.py", "rows.discard(row)", "pass"),
        "A writer keeps loaded rows that another writer has taken meanwhile": Bug(
            "domain/segment_rows.py", "if doubtful else ()", "if False else ()"
        ),
        "A purge of queued jobs removes only the rows that happen to be loaded": Bug(
            "domain/operations/operator.py",
            "draft.jobs.rows.require(entries.keys() - whole)",
            "pass",
        ),
        "A job that expires is forgotten without its attempt": Bug(
            "domain/draft.py",
            "if status is not COMPLETED and",
            "if status is not COMPLETED and verb is not Verb.EXPIRE and",
        ),
        "Statistics count the rows of a segment that were taken behind its next row": Bug(
            "domain/segments.py",
            "return self.rows - size_of(self.taken)",
            "return self.rows - self.next",
            seeds=200,
        ),
    },
    # Segments on stores that do not tell the time.
    WITHOUT_GROUPS(rate=0.2, processes=4, modern=0.8, segments=1.0, timeless=1.0): {
        "If the store does not tell the time, a collection takes that of its own process": Bug(
            "core/values.py", "or max((each.modified for each in listed), default=None)", "or self._now()"
        ),
    },
    # Jobs are claimed by leases, and segments are damaged in some seeds.
    WITHOUT_GROUPS(rate=0.3, processes=6, steps=5, modern=0.8, segments=1.0, leases=1.0, history=1.0): {
        "The end of a stale lease succeeds": Bug(
            "domain/operations/leases.py",
            "if draft.header.finished.get(claim.job_id) == claim.attempt:",
            "if True:",
        ),
        "The end of a lease takes its failed jobs for done": Bug(
            "domain/operations/leases.py", "for job_id in singles:", "for job_id in ():"
        ),
        "The end of a lease takes the jobs that nobody worked on for done": Bug(
            "domain/operations/leases.py",
            "if self.last is None else min(self.last,",
            "if True else min(self.last,",
        ),
        "The event of the end of a lease names the rows that were given back, too": Bug(
            "domain/operations/leases.py",
            "done, now))",
            "done, now)._replace(rows=((claim.job_id, held.spans),)))",
        ),
        "Rows of a lease that was given back are leased with the attempt that they had before": Bug(
            "domain/operations/ends.py", "**NO_LEASE)", "**NO_LEASE, claims=held.claims - 1)"
        ),
        "A split leaves the leased rows in the entry that waits": Bug(
            "domain/operations/leases.py", "rows.manifest.advanced(name, segment, [(0, behind)])", "segment"
        ),
        "A job that is cancelled in a lease is done at its end": Bug(
            "domain/operations/operator.py",
            "segment.evolve(taken=segment.taking([(row, row + 1)]))",
            "segment",
        ),
    },
    WITHOUT_DEATHS(
        groups=0.0, rate=0.3, processes=6, steps=5, modern=0.8, segments=1.0, leases=1.0, history=0.0, damage=1.0
    ): {
        "The checksum of a chunk of rows is not compared": Bug(
            "core/blob/segment_object.py",
            "if zlib.crc32(data) != chunk.crc:",
            "if False:",
            seeds=100,
        ),
    },
    # Many callers of one queue object call at once.
    WITHOUT_GROUPS(rate=0.2, processes=4, crowds=1.0, segments=0.5): {
        "An ack does not remember its job as finished": Bug(
            "domain/operations/ends.py", "draft.note(draft.header.finished, job.id, job.attempt)", "pass"
        ),
        "The counters overlook claims": Bug(
            "domain/counters.py", "sums.totals[kind] += 1", "sums.totals[kind] += verb is not CLAIM"
        ),
        "The rows of segments that dequeues claim are not marked as taken": Bug(
            "domain/draft.py", "self.jobs.rows.take(job.id, self._changes)", "pass"
        ),
    },
    # Some processes commit the calls of others.
    WITHOUT_GROUPS(rate=0.2, processes=6, short_table=1.0, segments=0.0, shared=1.0, attended=0.0): {
        "A broker answers a batch before the commit": Bug(
            "core/engine.py",
            "is_written = await self._write(applied)",
            "[each.settle(outcome) for each, outcome in applied.outcomes if hasattr(each.operations[0], 'sequence')]\n"
            f"{' ' * 12}is_written = await self._write(applied)",
        ),
        "A broker answers an empty dequeue of a client from its cached state": Bug(
            "core/engine.py",
            "call.seen_empty and is_empty(outcome) for",
            "(call.seen_empty or getattr(call.operations[0], 'call', None)) and is_empty(outcome) for",
            seeds=200,
        ),
        "The next broker does a batch again": Bug(
            "domain/operations/codec.py",
            "record is not None and (record.sequence, record.token) == (self.sequence, self.token)",
            "False",
            also=Bug("domain/operations/codec.py", "record is not None and record.sequence >= self.sequence", "False"),
        ),
        "A batch is done that is older than the last one of its client": Bug(
            "domain/operations/codec.py",
            "record is not None and record.sequence >= self.sequence",
            "False",
            also=Bug("core/broker_server.py", "message.sequence <= before[0] and not message.again", "False"),
        ),
        "Nobody hands back the claims of a dequeue whose answer was lost": Bug(
            "core/broker_client.py", "self._lost_calls[operation.call] = request", "pass"
        ),
        "The last batch of a client is forgotten, and `clients_evicted` does not record it": Bug(
            "domain/commits.py", "header.clients_evicted, _evict(", "header.clients_evicted, 0 * _evict("
        ),
        "A client commits a batch that it has sent without its number": Bug(
            "core/broker_client.py",
            "left = [self._here(sent, callers), *(request for request in left if request not in there)]",
            "self._open = None",
        ),
        "A batch does a call whose deadline has passed": Bug(
            "domain/operations/codec.py", "enumerate(self.due) if due <= now}", "enumerate(self.due) if False}"
        ),
        "A call that waits here wakes for jobs that a dequeue at the broker will get": Bug(
            "core/writer.py",
            "is not None for request in here) else None",
            "is not None for request in self.waiting) else None",
        ),
    },
    # Processes, and copies of them that run on with the same memory.
    WITHOUT_DEATHS(
        groups=0.0, rate=0.2, short_table=0.0, modern=0.0, segments=0.0, shared=0.0, attended=0.0, snapshots=1.0
    ): {
        "A commit of a copy of the process counts as one's own": Bug(
            "domain/commits.py", "record.token == commit.token", "record.sequence == commit.sequence"
        ),
    },
    WITHOUT_DEATHS(
        groups=0.0, rate=0.1, short_table=0.0, modern=0.0, segments=0.0, shared=1.0, attended=0.0, snapshots=1.0
    ): {
        "The batch of a copy of the client counts as one that came before": Bug(
            "domain/operations/codec.py",
            "(record.sequence, record.token) == (self.sequence, self.token)",
            "record.sequence == self.sequence",
            also=Bug("core/broker_server.py", "message.sequence <= before[0] and not message.again", "False"),
        ),
        "Copies of the client name their dequeues alike": Bug(
            "core/broker_client.py",
            'f"{self.client}/{self._entropy.new_id()[:18]}"',
            'f"{self.client}/{len(self._engine.queue_id)}"',
        ),
    },
    # Jobs wait for others in every seed.
    WITHOUT_DEATHS(rate=0.4, processes=6, segments=0.0, families=1.0): {
        "A job is claimed before its parents are done": Bug(
            "domain/order.py",
            "job.waits_for or job_id in self._parked_under",
            "job_id in self._parked_under",
            also=Bug("domain/order.py", "if after.waits_for:", "if False:"),
        ),
        "A job waits for ever": Bug("domain/parents.py", "if parent not in child.waits_for or (", "if child or ("),
        "The first parent that is done makes a job ready": Bug(
            "domain/parents.py", "if each != parent", "if not parent"
        ),
        "A job that was released is released again": Bug(
            "domain/parents.py", "parent not in child.waits_for or (status is DEAD", "(status is DEAD"
        ),
        "A job is released by an ack that is undone": Bug(
            "domain/draft.py", "self.move(child, *move)", "self.jobs.put(move[1] or child)"
        ),
        "A result is dropped although a child needs it": Bug(
            "domain/order.py", "if job.id in self.children:", "if False:"
        ),
        "A job whose parent is gone waits for ever": Bug(
            "domain/draft.py", "if status in (QUEUED, IN_PROGRESS) or", "if status in (QUEUED, IN_PROGRESS, None) or"
        ),
        "A job is cancelled although it is to run": Bug(
            "domain/parents.py", 'if status is COMPLETED or child.on_dead == "run":', "if status is COMPLETED:"
        ),
        "A parent that an editor removed is waited for": Bug(
            "domain/operations/dequeue.py", "if draft.jobs.order.unseen:", "if False:", seeds=200
        ),
    },
    WITHOUT_DEATHS(rate=0.3, processes=6, steps=5, modern=0.8, segments=1.0, leases=1.0, families=1.0): {
        "The end of a lease releases no children": Bug("domain/draft.py", "self._end_rows(move)", "pass", seeds=200),
        "The end of a lease ends jobs whose results it withholds from their children": Bug(
            "domain/operations/leases.py", "if self.withheld:", "if False:", seeds=200
        ),
    },
    # Processes die, and others see it.
    Settings(groups=0.0, rate=0.2, processes=6, steps=5, segments=0.0, mortal=1.0): {
        "The death of a process is charged to each of its jobs": Bug(
            "domain/operations/ends.py", "for job in jobs if not may_kill(job)}", "for job in jobs if False}"
        ),
        "The death of a process with several jobs is charged to none of them": Bug(
            "domain/operations/ends.py", "for job in jobs if not may_kill(job)}", "for job in jobs}"
        ),
        "Two jobs that may kill their workers are in progress at once": Bug(
            "domain/order.py", "most = 1 if key is SUSPECTS", "most = 2 if key is SUSPECTS"
        ),
        "A job that may kill its workers never becomes ready again": Bug(
            "domain/order.py", "while SUSPECTS in self._parked and", "while not SUSPECTS and"
        ),
        "The claims of a process that lives are revoked": Bug(
            "core/staleness.py", "if is_gone(record.pid, record.mark):", "if record.mark:"
        ),
    },
    Settings(groups=0.0, rate=0.2, processes=6, steps=5, segments=1.0, leases=1.0, damage=0.0, mortal=1.0): {
        "A job that may kill its workers is moved into a segment": Bug(
            "core/blob/segment_writer.py", "if may_kill(job):", "if False:"
        ),
    },
    # Workers that show themselves, and some that stop others.
    WITHOUT_GROUPS(attended=1.0, shared=0.5): {
        "A worker's next record forgets that it was told to stop": Bug(
            "domain/header.py", "old_record is not None and old_record.stopping", "False"
        ),
        "A worker is not told that its record says stop": Bug(
            "core/workers.py", "in records and records[run].stopping", "in ()"
        ),
        "A commit that is recognised later tells of no dead job": Bug(
            "core/engine.py", "0.0, sent.dead, recognised=True", "0.0, [], recognised=True", seeds=200
        ),
        "A job that is tried again is told of as dead": Bug(
            "core/observers.py", " and job is not None and job.status is DEAD]", " and job is not None]"
        ),
        "An order to stop one worker is for all": Bug(
            "domain/header.py", "name in (self.name, self.holder, run)", "True"
        ),
    },
}


@contextmanager
def built_in(name: str, bug: Bug) -> Iterator[None]:
    """Give functions of the product the code that they have with a bug, and their own code again at the end."""
    codes = dict[tuple[str, str, int], CodeType]()
    functions = list[FunctionType]()
    for file, text in _changed(name, bug).items():
        sources = (PRODUCT / file).read_text(encoding="utf-8"), text
        before, after = (_codes_in(compile(each, PRODUCT / file, "exec", dont_inherit=True)) for each in sources)
        codes |= {_place(code): changed for code, changed in zip(before, after, strict=True) if code != changed}
        functions += _functions_of(importlib.import_module(f"jqueue.{file[:-3].replace('/', '.')}"))
    own = [(function, function.__code__) for function in functions if _place(function.__code__) in codes]
    assert own, f"the planted bug {name!r} changes no function"
    try:
        for function, code in own:
            function.__code__ = codes[_place(code)]
        yield
    finally:
        for function, code in own:
            function.__code__ = code


def _changed(name: str, bug: Bug) -> Mapping[str, str]:
    """Return the source of each file that a bug changes, with the bug."""
    texts: dict[str, str] = {}
    for file, old, new in ((each.file, each.old, each.new) for each in (bug, bug.also) if each is not None):
        text = texts.get(file) or (PRODUCT / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"the planted bug {name!r} no longer fits jqueue/{file}"
        texts[file] = text.replace(old, new)
    return texts


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Iterate over the code of the functions and methods of a module, in order."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from (each,) if each.co_flags & inspect.CO_NEWLOCALS else _codes_in(each)  # that of a class


def _functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Iterate over the functions and methods of a module, also those of properties and behind decorators."""
    classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    for value in [value for owner in (module, *classes) for value in vars(owner).values()]:
        parts = (value, *(getattr(value, name, None) for name in ("fget", "__func__", "__wrapped__")))
        yield from (part for part in parts if isinstance(part, FunctionType))


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno
