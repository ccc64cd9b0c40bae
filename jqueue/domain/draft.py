"""A draft: one state of a queue opened for change, with indexes, and a journal by which changes are undone.

A commit may carry thousands of operations, and each may be refused alone. A change costs O(log n), an undo as much as
it undoes, and the next commit starts from the same draft, so no index is built again. A new state for each operation
or for each commit would be a copy of the whole queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, MutableMapping, Sequence
from datetime import datetime
from typing import Any

from jqueue.domain.errors import (
    ClaimLostError,
    DuplicateJobError,
    JobNotFoundError,
    QueueFullError,
    SegmentDamagedError,
)
from jqueue.domain.header import CANCELLED_KEPT, BrokerSeat, Header, SetAside, Table, large
from jqueue.domain.job import COMPLETED, DEAD, IN_PROGRESS, QUEUED, Claim, JobRecord, JobStatus
from jqueue.domain.limits import (
    END_BYTES,
    ENQUEUE_SHARE,
    ENTRYPOINTS_KEPT,
    HOLDS_SHARE,
    Limits,
    bytes_taken,
    finished_limit,
    held_bytes,
    hold_bytes,
)
from jqueue.domain.models import QueueState, header_of, job_of, record_of, state_of
from jqueue.domain.order import Order
from jqueue.domain.parents import awaited_rows, consequence
from jqueue.domain.printable import printable
from jqueue.domain.rules import HISTORY, KEY_RATES, LIMITS, EntrypointRules, QueueSettings
from jqueue.domain.segment_rows import SegmentRows
from jqueue.domain.segments import SEGMENTS, Segment, Span, common, object_of, size_of
from jqueue.domain.transitions import ABSENT, TRANSITIONS, BulkMove, Change, Move, Verb

LARGEST_SEQUENCE = 2**52
"""Sequence number above which all jobs are renumbered from 1, because the numbers grow without end."""


def renumbered(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the jobs with sequence numbers from 1 on, in the same order. Jobs that shared a number still do."""
    jobs = list(jobs)
    places = {sequence: place for place, sequence in enumerate(sorted({job.sequence for job in jobs}), 1)}
    return [job.evolve(sequence=places[job.sequence]) for job in jobs]


def number_unnumbered(jobs: list[JobRecord]) -> list[JobRecord]:
    """Give jobs without a sequence number, added by hand or by 1.0.0, places behind the others, in their order.

    If a place has become too large, all jobs are renumbered.
    """
    if all(0 < job.sequence <= LARGEST_SEQUENCE for job in jobs):
        return jobs
    last = max((job.sequence for job in jobs), default=0)
    placed = []
    for job in jobs:
        if not job.sequence:
            last += 1
        placed.append(job if job.sequence else job.evolve(sequence=last))
    return renumbered(placed) if last > LARGEST_SEQUENCE else placed


KEY_HOLDERS = frozenset((QUEUED, IN_PROGRESS))
"""Statuses in which a job holds its unique key."""


class IndexedJobs(dict[str, JobRecord]):
    """Jobs by id, in the order in which they were added. They change by `put` and `remove` alone.

    Attributes:
        rows: the rows of segments. Those that are loaded stand among the jobs.
        order: the orders in which jobs are served, and the limits that hold them back.
        claimed: ids of the jobs in progress.
        called: ids of the jobs in progress that a broker claimed for a call of another process, by the call.
        keys_held: id of the job that holds each unique key, by the key.
        dirty: ids of jobs whose line in the blob may be outdated. The code that encodes the lines clears it.
        queued: number of the queued jobs in the table, with loaded rows.
        keys_to_hold: bytes that the unique keys of live jobs will take after them.
        claims_moved: ids of jobs whose claim may have begun, moved or ended. The code that watches claims clears it.
        last_sequence: the highest sequence number given to any job, by any writer.
    """

    __slots__ = (
        "called",
        "claimed",
        "claims_moved",
        "dirty",
        "keys_held",
        "keys_to_hold",
        "last_sequence",
        "order",
        "queued",
        "rows",
    )

    def __init__(self) -> None:
        super().__init__()
        self.rows: SegmentRows = SegmentRows(self)
        self.order: Order = Order(self, self.rows)
        self.claimed: dict[str, None] = {}
        self.called: dict[str, dict[str, None]] = {}
        self.keys_held: dict[str, str] = {}
        self.keys_to_hold: int = 0
        self.queued: int = 0
        self.dirty: dict[str, None] = {}
        self.claims_moved: dict[str, None] = {}
        self.last_sequence: int = 0

    def put(self, job: JobRecord) -> None:
        """Add a job or replace it, in the table and in the indexes. Heaps drop its old entries by themselves."""
        job_id = job.id
        before = self.get(job_id)
        self[job_id] = job
        if before is not None:
            self._unindex(before)
        self.dirty[job_id] = None
        if job.sequence > self.last_sequence:
            self.last_sequence = job.sequence
        if job.unique_key is not None and job.status in KEY_HOLDERS:
            self.keys_held[job.unique_key] = job_id
            self.keys_to_hold += hold_bytes(job)
        self.queued += job.status is QUEUED
        if job.status is IN_PROGRESS:
            self.claimed[job_id] = None
            self.claims_moved[job_id] = None
            if job.claim_call is not None:
                self.called.setdefault(job.claim_call, {})[job_id] = None
        self.order.moved(before, job)

    def remove(self, job_id: str) -> None:
        """Remove a job from the table and the indexes, if it is there."""
        before = self.pop(job_id, None)
        self.dirty[job_id] = None
        if before is not None:
            self._unindex(before)
            self.order.moved(before, None)

    def find(self, job_id: str) -> JobRecord | None:
        """Return the job with an id, in the blob or in a segment; None if there is none.

        Raises:
            RowsMissingError: a segment may hold it, and its row is not loaded.
            SegmentDamagedError: a segment that may hold it cannot be read.
        """
        job = self.loaded(job_id)
        if job is None and self.rows.manifest.segments:
            self.rows.find(job_id)
        return job

    def loaded(self, job_id: str) -> JobRecord | None:
        """Return the job with an id if it is in the table, or in progress in a lease and loaded; None if not."""
        record = self.get(job_id)
        leased = self.rows.leased(job_id) if record is None and self.rows.manifest.segments else None
        return record if leased is None else leased.job

    def find_key(self, key: str) -> str | None:
        """Return the id of the job that holds a unique key; None if no job does. It raises errors as `find` does."""
        holder = self.keys_held.get(key)
        if holder is None and self.rows.manifest.segments:
            holder = self.rows.leased_key(key)
        if holder is None and self.rows.manifest.segments:
            self.rows.find(key, keys=True)
        return holder

    def put_row(self, job: JobRecord) -> None:
        """Add the job of a row. The blob has no line of it, except perhaps from a write that did not land."""
        written = job.id in self.dirty
        self.put(job)
        if not written:
            del self.dirty[job.id]

    def drop_row(self, job_id: str) -> None:
        """Remove the job of a row. The blob has no line of it, except perhaps from a write that did not land."""
        written = job_id in self.dirty
        self.remove(job_id)
        if not written:
            del self.dirty[job_id]

    def restore(self, job_id: str, old: Any) -> None:
        """Restore the old value of a job: see `Draft.rollback`."""
        if old is ABSENT:
            self.remove(job_id)
        else:
            self.put(old)

    def _unindex(self, before: JobRecord) -> None:
        """Remove a value of a job from the indexes."""
        job_id = before.id
        self.queued -= before.status is QUEUED
        if before.status is IN_PROGRESS:
            del self.claimed[job_id]
            self.claims_moved[job_id] = None
            if (call := before.claim_call) is not None:
                del self.called[call][job_id]
                if not self.called[call]:
                    del self.called[call]
        if before.unique_key is not None and before.status in KEY_HOLDERS:
            self.keys_to_hold -= hold_bytes(before)
            if self.keys_held.get(before.unique_key) == job_id:
                del self.keys_held[before.unique_key]


UNNAMED_CLAIM = (
    "this queue object handed out no claim on it, or several, or has ended the claim already: pass the Job from dequeue"
)


Savepoint = tuple[int, int, int, bool, int, int]
"""A point to which a draft can go back."""


def claimed_by(job: JobRecord) -> str:
    """Return the holder of the claim on a job, and since when, for an error about the job; empty if not known."""
    who = "" if job.holder is None else f" by {printable(job.holder)}"
    since = "" if job.claimed_at is None else f" since {job.claimed_at.isoformat(timespec='seconds')}"
    return f" (claimed{who}{since})" if who or since else ""


def _held_by(job: JobRecord) -> str:
    return f"attempt {job.attempt} holds the job now{claimed_by(job)}"


class Draft:
    """A state opened for change: its header, its jobs, and the journal of its changes.

    Read its attributes. Change a job by `move`, an entry of a table in the header by `note` and `forget`, and the other
    fields by their methods. All these changes can be undone.

    Attributes:
        header: everything but the jobs and the lines set aside.
        jobs: every job by id, with the indexes.
        changed: True if there is anything to commit.
        moves: the transitions of jobs since the last `settle`, in order.
        bulk_moves: the transitions of many jobs at once since then, in order.
        set_aside: the lines that could not be read as jobs.
        aside_keys: their keys.
        taken_bytes: about how many bytes count against the size limit: those of jobs, keys held after acks, and cron
            entries, in the blob that the draft was opened from, and what the changes since then add. Finished ids and
            the writers' commits do not count, because no call could make room there.
        uncounted_bytes: bytes of the blob that do not count against the size limit, at the last commit.
        blob_bytes: size limit of the blob in the process that commits, for a queue that has no limit of its own.
        asked_by: person or program that asked for the operation that is carried out now; None if it is not known.
        now: the time of that operation; None before the first.
        check: called with the new values that an operation has brought, and refuses it by its error; None: none is.
    """

    blob_bytes: int = Limits().blob_bytes
    check: Callable[[Any], object] | None = None
    asked_by: str | None = None
    now: datetime | None = None

    def __init__(self, state: QueueState | None = None) -> None:
        state = QueueState() if state is None else state
        self.changed: bool = False
        self.moves: list[Move] = []
        self.bulk_moves: list[BulkMove] = []
        self._ends: list[tuple[str, Verb | None, JobStatus | None]] = []
        self._changes: list[Change] = []
        self._counted = 0, 0, 0  # the lengths of the three journals up to which members of groups are counted
        self.jobs: IndexedJobs = IndexedJobs()
        self.take_header(header_of(state))
        self.set_lines_aside(state.set_aside)
        self.taken_bytes: int = 0
        self.uncounted_bytes: int = 0
        self.load(record_of(job) for job in state.jobs)

    # Reading, for operations

    def get(self, job_id: str) -> JobRecord:
        """Return the job with this id.

        Raises:
            JobNotFoundError: there is none.
        """
        job = self.jobs.find(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    def held(self, claim: Claim) -> JobRecord:
        """Return the job of a claim that is current. Attempt 0 stands for a bare id for which no claim was found.

        Raises:
            ClaimLostError: the claim is not current.
            JobNotFoundError: the attempt is 0, and there is no such job.
        """
        if claim.attempt == 0:
            try:
                holder = claimed_by(self.get(claim.job_id))
            except SegmentDamagedError:  # wherever the job is, the claim is not known
                holder = ""
            raise ClaimLostError(claim.job_id, None, UNNAMED_CLAIM + holder)
        job = self.jobs.get(claim.job_id)
        if job is None:
            raise ClaimLostError(*claim, self._why_lost(claim))
        if job.status is not IN_PROGRESS:
            raise ClaimLostError(*claim, f"the job is {job.status}")
        if job.attempt != claim.attempt:
            raise ClaimLostError(*claim, _held_by(job))
        return job

    def _why_lost(self, claim: Claim) -> str:
        """Return the reason for which a claim on a job without a line in the blob is lost.

        Raises:
            RowsMissingError: a segment may hold the job, and its row is not loaded.
        """
        if claim.job_id in self.header.finished:
            return "the job was acked"
        try:
            job = self.jobs.find(claim.job_id)
        except SegmentDamagedError:
            job = None
        if job is None:
            return "the job is no longer in the queue"
        if job.attempt == claim.attempt:
            return "the job is in a lease: end it with end_lease"
        return _held_by(job)

    def lease_of(self, claim: Claim) -> Segment | None:
        """Return the entry of the lease that a claim stands for, if that is current; None if not."""
        entry = self.header.segments.get(claim.job_id)
        return entry if entry is not None and entry.is_leased and entry.claims == claim.attempt else None

    def key_holder(self, key: str, now: datetime) -> str | None:
        """Return the id of the job that holds a unique key, live or acked within `unique_for`; None if none does."""
        holder = self.jobs.find_key(key)
        if holder is not None:
            return holder
        hold = self.header.holds.get(key)
        return hold.job_id if hold is not None and hold.until > now.timestamp() else None

    def check_key(self, key: str, now: datetime) -> None:
        """Check that no job holds a unique key.

        Raises:
            DuplicateJobError: a job holds it.
        """
        holder = self.key_holder(key, now)
        if holder is not None:
            raise DuplicateJobError(key, holder)

    # Changing, for operations

    def move(self, job: JobRecord | None, verb: Verb, after: JobRecord | None, status: JobStatus | None) -> None:
        """Change one job, along the transition table.

        Args:
            job: the current value of the job; None if it is new.
            verb: the action.
            after: its new value; None if it leaves the queue.
            status: its new status in the transition table: None if it leaves the queue, COMPLETED if it was acked.

        Raises:
            AssertionError: the table does not have this change. This is a bug of the operation, not of its caller.
        """
        before = None if job is None else job.status
        if status not in TRANSITIONS.get((before, verb), ()):
            raise AssertionError(f"illegal transition: {before} --{verb}--> {status}")
        self.changed = True
        self.moves.append((verb, job, after, self.asked_by))
        if job is not None and self.jobs.rows.of:
            self.jobs.rows.take(job.id, self._changes)
        if after is not None:
            self._changes.append((self.jobs, after.id, ABSENT if job is None else job))
            self.jobs.put(after)
            if job is None and after.id in self.header.cancelled:
                self._assign("cancelled", tuple(each for each in self.header.cancelled if each != after.id))
        elif job is not None:
            self._changes.append((self.jobs, job.id, job))
            self.jobs.remove(job.id)
            if verb is Verb.CANCEL or job.cancel_requested:
                self._assign("cancelled", (*self.header.cancelled, job.id)[-CANCELLED_KEPT:])
            if status is not COMPLETED and job.attempt > self.header.attempt_floor:
                self.note_floor(job.attempt)
        if job is not None and self.jobs.order.children:
            self.end_parent(verb, job.id, status)

    def end_parent(self, verb: Verb | None, parent: str, status: JobStatus | None) -> None:
        """Let the jobs that wait for a job go on, leave or die, if it has ended: see `consequence`."""
        if status in (QUEUED, IN_PROGRESS) or parent not in self.jobs.order.children:
            return
        self._ends.append((parent, verb, status))
        if len(self._ends) > 1:
            return  # the call for the first end comes to this one: a chain of children may be long
        try:
            for each, why, end in self._ends:  # which grows
                for child in [self.jobs[child] for child in self.jobs.order.children.get(each, ())]:
                    if (move := consequence(child, each, why, end, self.now)) is not None:
                        if move[2] is DEAD:
                            self.note_added(END_BYTES)  # about the size of its error
                        self.move(child, *move)
        finally:
            self._ends.clear()

    def note(self, table: MutableMapping[str, Any], key: str, value: Any) -> None:
        """Set an entry of a table in the header."""
        self.changed = True
        self._changes.append((table, key, table.get(key, ABSENT)))
        table[key] = value

    def forget(self, table: MutableMapping[str, Any], key: str) -> None:
        """Drop an entry of a table in the header, if it is there."""
        if key in table:
            self.changed = True
            self._changes.append((table, key, table.pop(key)))

    def _assign(self, name: str, value: Any) -> None:
        """Set an attribute of the header."""
        self.changed = True
        self._changes.append((self.header, name, getattr(self.header, name)))
        setattr(self.header, name, value)

    def spill(self, job_id: str) -> None:
        """Remove a queued job from the blob, because a segment that the same commit names holds it."""
        jobs = self.jobs
        self.changed = True
        self._changes.append((jobs, job_id, jobs[job_id]))
        jobs.remove(job_id)

    def move_rows(self, move: BulkMove) -> None:
        """Note a transition of rows of segments. The caller changes the manifest.

        Raises:
            AssertionError: the transition table does not have this change.
        """
        if move.after not in TRANSITIONS.get((move.before, move.verb), ()):
            raise AssertionError(f"illegal transition: {move.before} --{move.verb}--> {move.after}")
        if move.jobs:
            segment = self.header.segments[move.rows[0][0]]
            self.changed = True
            attempt, rows = move.attempt + segment.floor, [(object_of(name), spans) for name, spans in move.rows]
            move = move._replace(attempt=attempt, asked_by=self.asked_by, group=segment.group, rows=rows)
            self.bulk_moves.append(move)
            if self.jobs.order.children:
                self._end_rows(move)

    def _end_rows(self, move: BulkMove) -> None:
        if move.after not in (QUEUED, IN_PROGRESS):
            for parent in awaited_rows(self.jobs.order, self.jobs.rows, move.rows):
                self.end_parent(move.verb, parent, move.after)

    def admit(self, job: JobRecord) -> None:
        """Put a leased job into the blob, before it is moved by itself. The caller takes its row."""
        self.changed = True
        self._changes.append((self.jobs, job.id, ABSENT))
        self.jobs.put(job)

    def give_back(self, name: str, segment: Segment) -> None:
        """End the lease of an entry, which is given without it: its rows wait again."""
        self.name_segment(name, segment)
        self.jobs.rows.give_back(name, self._changes)

    def hide_row(self, job_id: str, lease: str | None = None) -> None:
        """Remove the loaded row of a job that leaves, or is leased under a name."""
        jobs = self.jobs
        jobs.rows.hide(job_id, lease, self._changes)
        self._changes.append((jobs, job_id, jobs[job_id]))
        jobs.remove(job_id)

    def name_segment(self, name: str, segment: Segment) -> None:
        """Set an entry of the manifest. Versions that do not know segments then refuse the blob."""
        self.note(self.header.segments, name, segment)
        self.require(SEGMENTS)
        self.jobs.rows.unloaded.changed()

    def drop_segment(self, name: str) -> None:
        """Remove an entry from the manifest."""
        self.forget(self.header.segments, name)
        self.jobs.rows.unloaded.changed()

    def drop_waiting(self, names: Collection[str], verb: Verb, within: Sequence[Span] | None = None) -> int:
        """Remove waiting rows of segments from the queue, loaded or not. Return their number.

        Args:
            names: of entries of the manifest. Nothing of a leased one is removed.
            verb: the action.
            within: rows, as spans; None: all.
        """
        rows, dropped = self.jobs.rows, 0
        for job_id, (name, row) in list(rows.of.items()):
            if name in names and (within is None or any(first <= row < last for first, last in within)):
                self.hide_row(job_id)
        for name in names:
            segment = rows.manifest.current(name)
            if segment is None or segment.is_leased:
                continue
            spans = segment.spans if within is None else common(segment.spans, within)
            after, jobs, claims = rows.manifest.advanced(name, segment, spans), size_of(spans), segment.claims
            move = BulkMove(verb, segment.entrypoint, QUEUED, None, jobs, claims, None, (), rows=((name, spans),))
            self.move_rows(move)
            if jobs and segment.attempts + claims > self.header.attempt_floor:
                self.note_floor(segment.attempts + claims)
            dropped += jobs
            if not after.left:
                self.drop_segment(name)
            elif after != segment:
                self.name_segment(name, after)
        return dropped

    def note_floor(self, attempt: int) -> None:
        """Set the attempt above which a reused id starts."""
        self._assign("attempt_floor", attempt)

    def note_added(self, size: int) -> None:
        """Add bytes to `taken_bytes`; below 0 they are taken off."""
        self.changed = True
        self.taken_bytes += size  # restored from the savepoint, without an entry among the changes

    def change_rules(self, entrypoint: str, **changes: Any) -> None:
        """Change limits or the pause of an entrypoint. Versions that do not know limits then refuse the blob.

        Raises:
            QueueFullError: too many entrypoints have limits or pauses.
        """
        header = self.header
        before = header.entrypoints.get(entrypoint, EntrypointRules())
        rules = before.evolve(**changes)
        if rules == before:
            return
        if rules == EntrypointRules():
            self.forget(header.entrypoints, entrypoint)
        else:
            if entrypoint not in header.entrypoints and len(header.entrypoints) >= ENTRYPOINTS_KEPT:
                raise QueueFullError(
                    f"{len(header.entrypoints)} entrypoints have limits or pauses, the most that a queue can keep: "
                    "remove some with limit or resume"
                )
            self.note(header.entrypoints, entrypoint, rules)
            self.require(LIMITS)
            if rules.key_rate is not None:
                self.require(KEY_RATES)
        if rules.rate is None and entrypoint in header.recent:
            self.forget(header.recent, entrypoint)
        if rules.key_rate is None:
            self.forget(header.recent_keys, entrypoint)
        self.jobs.order.rules_changed()

    def set_settings(self, settings: QueueSettings) -> None:
        """Set the settings of the queue as a whole."""
        if settings != self.header.settings:
            self._assign("settings", settings)
            if settings.history is not None:
                self.require(HISTORY)
            self.jobs.order.take_settings(self.header)

    def set_broker(self, seat: BrokerSeat) -> None:
        """Set the seat of the queue's broker."""
        self._assign("broker", seat)

    def require(self, feature: str) -> None:
        """Make versions of jqueue that do not know a feature refuse the blob."""
        if feature not in self.header.critical:
            self._assign("critical", (*self.header.critical, feature))

    def touch(self) -> None:
        """Ask for a commit although nothing changed. A savepoint from before differs from one after it."""
        self._assign("version", self.header.version)

    # Savepoints, undo and commit

    def savepoint(self) -> Savepoint:
        """Return a mark for `rollback`."""
        changes, moves, bulk = len(self._changes), len(self.moves), len(self.bulk_moves)
        return changes, moves, bulk, self.changed, self.jobs.last_sequence, self.taken_bytes

    def changed_since(self, savepoint: Savepoint) -> list[Any]:
        """Return what has changed in the blob since a savepoint: names, with their new values."""
        changes = ((place, key) for place, key, _ in self._changes[savepoint[0] :])
        return [
            (key, place.get(key) if isinstance(place, dict) else getattr(self.header, key, None))
            for place, key in changes
        ]

    def uncounted(self) -> tuple[list[Move], list[BulkMove], list[str]]:
        """Return what the groups have not counted yet: transitions, and the ids of groups that changed. They count."""
        mark, moves, bulk = self._counted
        groups = self.header.groups
        changed = [key for place, key, _ in self._changes[mark:] if place is groups]
        self._counted = len(self._changes), len(self.moves), len(self.bulk_moves)
        return self.moves[moves:], self.bulk_moves[bulk:], changed

    def rollback(self, savepoint: Savepoint | None = None) -> None:
        """Undo every change since the savepoint, or since the last `settle`, the last one first."""
        mark, moves, bulk, self.changed, last_sequence, self.taken_bytes = savepoint or self._settled
        self._counted = (min(self._counted[0], mark), min(self._counted[1], moves), min(self._counted[2], bulk))
        changes, header, settings = self._changes, self.header, False
        del self.moves[moves:]
        del self.bulk_moves[bulk:]
        while len(changes) > mark:
            place, key, old = changes.pop()
            if place.__class__ is not dict:
                place.restore(key, old)  # type: ignore[union-attr]
            elif old is ABSENT:
                del place[key]
            else:
                place[key] = old
            settings = settings or place is header.entrypoints or (place is header and key == "settings")
            if place is header.segments:
                self.jobs.rows.unloaded.changed()
        self.jobs.last_sequence = last_sequence  # set last: restoring a job may raise it
        if settings:
            self.jobs.order.take_settings(self.header)
            self.jobs.order.rules_changed()

    def measure(self, size: int, header_bytes: int) -> None:
        """Compute `taken_bytes` and `uncounted_bytes` again, given the bytes of the blob (0: none), and `settle`."""
        queued = self.jobs.queued - len(self.jobs.rows.of) if size else 0
        self.taken_bytes = bytes_taken(size - header_bytes, self.header, queued)
        self.uncounted_bytes = max(0, size - self.taken_bytes + END_BYTES * queued)
        self.settle()

    def settle(self) -> None:
        """Make every change since the last `settle` permanent, because it was committed."""
        self._changes.clear()
        self.moves.clear()
        self.bulk_moves.clear()
        self.changed = False
        self._counted = 0, 0, 0
        self._settled: Savepoint = (0, 0, 0, False, self.jobs.last_sequence, self.taken_bytes)

    # Opening and closing

    def take_header(self, header: Header) -> None:
        """Take over another header. Its tables become the draft's. Cannot be undone."""
        if not isinstance(header.finished, Table):  # as it was read
            header.finished, header.holds = Table(header.finished), Table(header.holds)
        self.header = header
        if self.jobs.last_sequence < header.last_sequence <= LARGEST_SEQUENCE:
            self.jobs.last_sequence = header.last_sequence
        self.jobs.rows.adopt(self.header.segments)
        self.jobs.order.take_settings(self.header)

    def set_lines_aside(self, lines: tuple[SetAside, ...]) -> None:
        """Take over the lines that could not be read as jobs. Cannot be undone."""
        self.set_aside: tuple[SetAside, ...] = lines
        self.aside_keys: frozenset[str] = frozenset(line.key for line in lines)

    def load(self, changed: Iterable[JobRecord], removed: Iterable[str] = ()) -> None:
        """Take over the changes of another writer: jobs changed and removed. Cannot be undone."""
        for job_id in removed:
            self.jobs.remove(job_id)
            if job_id in self.jobs.order.children:  # it was moved to a segment, if the other writer was not an editor
                self.jobs.order.unseen[job_id] = None
        for job in changed:
            self.jobs.put(job)
        self.settle()

    def renumber(self) -> list[JobRecord]:
        """Renumber all jobs if a sequence number has become too large, and return them. Cannot be undone."""
        if self.jobs.last_sequence <= LARGEST_SEQUENCE or self.header.segments:
            return []  # the numbers in segments cannot change; the end of the range of numbers is far away
        jobs = renumbered(self.jobs.values())
        self.jobs.last_sequence, self.header.turns, self.header.fair = 0, {}, {}
        self.load(jobs)
        return jobs

    def freeze(self) -> QueueState:
        """Return the draft as a value."""
        rows = self.jobs.rows
        header = self.header.copy()
        header.segments = dict(rows.manifest.after())
        if self.changed:
            header.last_sequence = self.jobs.last_sequence
        jobs = tuple(job_of(job) for job in self.jobs.values() if job.id not in rows.of)
        return state_of(header, jobs, self.set_aside)


FILLED = 0.99
"""Share of the size limit that results and errors fill: the bytes of a commit are known only roughly before it."""


def size_limit(draft: Draft) -> int:
    """Return the size limit of the blob in bytes: the queue's own, or else that of the process that commits."""
    return draft.header.settings.blob_bytes or draft.blob_bytes


def take_space(draft: Draft, size: int, what: str) -> None:
    """Count the bytes of a job or cron entry that is about to be added, if there is room for it.

    Args:
        draft: the draft that it is added to.
        size: about how many bytes it takes in the blob.
        what: its description, for the error.

    Raises:
        QueueFullError: there is no room for it.
    """
    most = int(size_limit(draft) * ENQUEUE_SHARE)
    if draft.taken_bytes + size > most:
        raise QueueFullError(
            f"no room for {what}: the jobs in the queue take {draft.taken_bytes} of the {most} bytes that enqueue may "
            "use. Let workers catch up, purge dead jobs, enqueue fewer, or raise the queue's limit with "
            "configure(blob_bytes=...)"
        )
    if size:  # counting is a change, and a change of 0 bytes must cause no write
        draft.note_added(size)


def check_holds(draft: Draft, size: int) -> None:
    """Check that there is room for unique keys that will be kept after their jobs.

    Args:
        draft: the draft that their jobs are added to.
        size: about how many bytes the keys will take.

    Raises:
        QueueFullError: there is no room for them.
    """
    most = int(size_limit(draft) * ENQUEUE_SHARE * HOLDS_SHARE)
    held, waiting = held_bytes(draft.header.holds), draft.jobs.keys_to_hold
    waiting += sum(each.holds * each.waiting // each.rows for each in draft.header.segments.values() if each.holds)
    if held + waiting + size > most:
        raise QueueFullError(
            f"no room for {size} more bytes of unique keys that are kept after their jobs: {len(draft.header.holds)} "
            f"kept keys take {held} of the {most} bytes that they may use, and those of waiting jobs will take "
            f"{waiting}. Give jobs a shorter unique_for, or raise the queue's limit with configure(blob_bytes=...)"
        )


def take_reserve(draft: Draft, size: int) -> bool:
    """Count the bytes that a result or an error adds, if the blob stays within its size limit with them.

    A blob that is nearly filled by what does not count takes them up to the limit of enqueue.

    Args:
        draft: the draft that it is added to.
        size: about how many bytes it adds to the blob; below 0 if it replaces something larger.

    Returns:
        True if there is room, which is always the case if `size` is not above 0.
    """
    most = size_limit(draft)
    coming = max(0, finished_limit(most) - large(draft.header.finished).size) if size > 0 else 0
    uncounted = draft.uncounted_bytes + coming
    if size > 0 and draft.taken_bytes + size > max(int(most * ENQUEUE_SHARE), int(most * FILLED) - uncounted):
        return False
    draft.note_added(size)
    return True
