"""The working copy of a state: what operations change, with an undo for everything.

A `QueueState` is a value; making a new one for each of a thousand operations would cost a thousand copies. A `Draft`
is one state opened for change: jobs by id, the orders in which they are served, and a journal that can take back
any change since a savepoint. To its user it is as good as a value: what is rolled back was never there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from datetime import datetime
from typing import Any

from jqueue.domain.errors import ClaimLostError, JobNotFoundError
from jqueue.domain.job_table import JobTable, Packed, place_of, unpacked
from jqueue.domain.limits import bytes_taken
from jqueue.domain.models import (
    Claim,
    CommitRecord,
    Job,
    JobStatus,
    KeyHold,
    QueueState,
    SetAside,
    TransactionRecord,
)
from jqueue.domain.order import Order
from jqueue.domain.places import PLACES, EncodedJobs, PlacedJobs, renumbered
from jqueue.domain.rules import LIMITS, EntrypointRules, QueueSettings, Schedule, Usage
from jqueue.domain.transitions import TRANSITIONS, Verb

UNNAMED_CLAIM = "this queue object did not hand it out, or several, or has ended it already; pass the Job from dequeue"
KEY_HOLDERS = (JobStatus.QUEUED, JobStatus.IN_PROGRESS)
"""Only these hold their unique key."""

TABLES = ("finished", "holds", "entrypoints", "recent", "schedules", "transactions")
"""The tables of a state that are changed in place."""

_ABSENT: Any = object()


class Draft:
    """A state opened for change.

    Reading is by attribute; changing is by `move` (a job) and `note` (a table), which can be undone.

    Attributes:
        jobs: every job by id.
        order: the orders in which they are served, and what holds them back.
        claimed: the ids of the jobs in progress.
        dirty: ids whose line in the blob may differ from the job; whoever encodes clears it.
        claims_moved: ids whose claim may have begun, moved or ended; whoever watches claims clears it.
        base_bytes: what jobs, and keys held after their acks, take of the blob that the draft was opened from. What
            is finished and who has committed does not count: no call could make room there.
        added_bytes: an estimate of what the jobs enqueued since then will add.
        last_sequence: the highest sequence number that any job was given, by anybody.
        placed: jobs that were encoded before, and are in the draft as nothing but their lines. Once they are committed,
            a draft that knows them is opened from the blob.
    """

    def __init__(self, state: QueueState | None = None) -> None:
        state = QueueState() if state is None else state
        self.jobs = JobTable()
        self.order = Order(self.jobs)
        self.last_sequence = 0
        self.take_header(state.model_copy(update={name: dict(getattr(state, name)) for name in TABLES}))
        self.set_aside = state.set_aside
        self.claimed: dict[str, None] = {}
        self.keys: dict[str, str] = {}
        self.dirty: dict[str, None] = {}
        self.claims_moved: dict[str, None] = {}
        self.base_bytes = 0
        self.added_bytes = 0
        self.placed: tuple[PlacedJobs, ...] = ()
        self._changed = False
        self._journal: list[tuple[MutableMapping[str, Any], str, Any]] = []
        self.load(state.jobs)

    @property
    def set_aside(self) -> tuple[SetAside, ...]:
        """The lines that could not be read as jobs."""
        return self._set_aside

    @set_aside.setter
    def set_aside(self, lines: tuple[SetAside, ...]) -> None:
        self._set_aside = lines
        self.aside_keys = frozenset(line.key for line in lines)

    # What operations read

    def get(self, job_id: str) -> Job:
        """The job with this id.

        Raises:
            JobNotFoundError: there is none.
        """
        job = self.jobs.get(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    def held(self, claim: Claim) -> Job:
        """The job, if this claim on it is the current one. Attempt 0 stands for a claim that the caller cannot name.

        Raises:
            ClaimLostError: it is not.
            JobNotFoundError: there is no such job, and the caller could not name a claim either.
        """
        if claim.attempt == 0:
            self.get(claim.job_id)
            raise ClaimLostError(claim.job_id, None, UNNAMED_CLAIM)
        entry = self.jobs.entries.get(claim.job_id)
        if entry is None:
            gone = "it was acked" if claim.job_id in self.finished else "the job is no longer in the queue"
            raise ClaimLostError(*claim, gone)
        job = unpacked(claim.job_id, entry)
        if job.status is not JobStatus.IN_PROGRESS:
            raise ClaimLostError(*claim, f"the job is {job.status}")
        if job.attempt != claim.attempt:
            raise ClaimLostError(*claim, f"attempt {job.attempt} holds it now")
        return job

    def next_sequence(self) -> int:
        """A place behind every job there is."""
        self.last_sequence += 1
        return self.last_sequence

    def key_holder(self, key: str, now: datetime) -> str | None:
        """The id of the job that holds a unique key: a live one, or one acked while its key is kept; else None."""
        if key in self.keys:
            return self.keys[key]
        hold = self.holds.get(key)
        return hold.job_id if hold is not None and hold.until > now.timestamp() else None

    def take_ready(self, entrypoints: tuple[str, ...] | None, now: datetime) -> Job | None:
        """The next job to claim, by priority, then by sequence; None if there is none. O(log n). Move it at once."""
        return self.order.take(entrypoints, now)

    def next_due(self) -> datetime | None:
        """When something becomes ready that was not when jobs were last looked for; None if nothing is scheduled."""
        return self.order.next_due()

    def outlived(self, now: datetime) -> Job | None:
        """A job that has expired, or was kept for long enough; None if there is none. Move it before asking again."""
        return self.order.outlived(now)

    # What operations do

    def move(self, job: Job | None, verb: Verb, after: Job | None, status: JobStatus | None) -> None:
        """Change one job, along the transition table.

        Args:
            job: the job as it is; None if it is new.
            verb: what is being done to it.
            after: the job as it shall be; None if it leaves the queue.
            status: where the table says that it goes; None and COMPLETED leave the queue.

        Raises:
            AssertionError: the table does not have this change: an operation is wrong, not its caller.
        """
        before = None if job is None else job.status
        if status not in TRANSITIONS.get((before, verb), ()):
            raise AssertionError(f"illegal transition: {before} --{verb}--> {status}")
        self._changed = True
        if after is not None:
            self._journal.append((self.jobs, after.id, _ABSENT if job is None else job))
            self._index(after.id, after, job)
        elif job is not None:
            self._journal.append((self.jobs, job.id, job))
            self._index(job.id, _ABSENT, job)
            if status is not JobStatus.COMPLETED and job.attempt > self.attempt_floor:
                self.note_floor(job.attempt)

    def note(self, table: MutableMapping[str, Any], key: str, value: Any) -> None:
        """Set an entry of `finished` or `holds`."""
        self._changed = True
        self._journal.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def forget(self, table: MutableMapping[str, Any], key: str) -> None:
        """Drop an entry of a table."""
        if key in table:
            self._changed = True
            self._journal.append((table, key, table.pop(key)))

    def note_floor(self, attempt: int) -> None:
        """Raise the attempt from which a reused id goes on."""
        self.note(self.__dict__, "attempt_floor", attempt)

    @property
    def taken_bytes(self) -> int:
        """About how many bytes count against the size limit."""
        return self.base_bytes + self.added_bytes

    def note_added(self, size: int) -> None:
        """Count the size of what was added."""
        self.note(self.__dict__, "added_bytes", self.added_bytes + size)

    def place(self, jobs: EncodedJobs, now: datetime) -> None:
        """Add jobs that were encoded before, with places behind every job there is."""
        placed = PlacedJobs(jobs, self.last_sequence + 1, now)
        self.last_sequence += jobs.jobs
        self.note(self.__dict__, "placed", (*self.placed, placed))

    def set_rules(self, entrypoint: str, rules: EntrypointRules) -> None:
        """Set what holds the jobs of an entrypoint back. From then on, older versions of jqueue must not touch it."""
        if rules == self.entrypoints.get(entrypoint, EntrypointRules()):
            return
        if rules == EntrypointRules():
            self.forget(self.entrypoints, entrypoint)
        else:
            self.note(self.entrypoints, entrypoint, rules)
            self.require(LIMITS)
        if rules.rate is None and entrypoint in self.recent:
            self.forget(self.recent, entrypoint)
        self.order.rules_changed()

    def set_settings(self, settings: QueueSettings) -> None:
        """Set what holds for the queue as a whole."""
        if settings != self.settings:
            self.note(self.__dict__, "settings", settings)
            self._share_settings()

    def require(self, feature: str) -> None:
        """Have the blob refused by versions of jqueue that do not know a feature."""
        if feature not in self.critical:
            self.note(self.__dict__, "critical", (*self.critical, feature))

    def touch(self) -> None:
        """Ask for a commit although nothing changed."""
        self._changed = True

    # What holds several operations together

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return self._changed

    def moved_jobs(self) -> dict[str, list[Job | None]]:
        """What each job that changed since the last `settle` has been, from before to now; None: not there."""
        stages: dict[str, list[Job | None]] = {}
        for table, job_id, old in self._journal:
            if table is self.jobs:
                stages.setdefault(job_id, []).append(None if old is _ABSENT else old)
        for job_id, states in stages.items():
            states.append(self.jobs.get(job_id))
        return stages

    def savepoint(self) -> tuple[int, bool, int]:
        """A mark to come back to."""
        return len(self._journal), self._changed, self.last_sequence

    def rollback(self, savepoint: tuple[int, bool, int] | None = None) -> None:
        """Take back every change since the savepoint, or since the last `settle`."""
        mark, self._changed, last_sequence = savepoint or (0, False, self._settled_sequence)
        settings = False
        while len(self._journal) > mark:
            table, key, old = self._journal.pop()
            if table is self.jobs:
                self._index(key, old)
                continue
            settings = settings or table is self.entrypoints or (table is self.__dict__ and key == "settings")
            if old is _ABSENT:
                del table[key]
            else:
                table[key] = old
        self.last_sequence = last_sequence  # in the end: putting a job back may raise it
        if settings:
            self._share_settings()
            self.order.rules_changed()

    def measure(self, job_bytes: int) -> None:
        """Count anew what the blob holds, of which the lines take so many bytes."""
        self.base_bytes = bytes_taken(job_bytes, self.holds, self.schedules)
        self.added_bytes = 0

    def settle(self) -> None:
        """Make every change since the last `settle` permanent: it was committed."""
        self._journal.clear()
        self._changed = False
        self._settled_sequence = self.last_sequence
        self.jobs.pack()

    # Opening and closing

    def take_header(self, header: QueueState) -> None:
        """Take over everything but the jobs and the lines set aside, tables and all. Cannot be undone."""
        self.version = header.version
        self.queue = header.queue
        self.critical = header.critical
        self.commits: Mapping[str, CommitRecord] = header.commits
        self.evicted_through = header.evicted_through
        self.finished: dict[str, int] = header.finished  # type: ignore[assignment] # ours from now on
        self.holds: dict[str, KeyHold] = header.holds  # type: ignore[assignment]
        self.attempt_floor = header.attempt_floor
        self._told_sequence = header.last_sequence
        if self.last_sequence < header.last_sequence <= PLACES:
            self.last_sequence = header.last_sequence
        self.settings = header.settings
        self.entrypoints: dict[str, EntrypointRules] = header.entrypoints  # type: ignore[assignment]
        self.recent: dict[str, tuple[Usage, ...]] = header.recent  # type: ignore[assignment]
        self.schedules: dict[str, Schedule] = header.schedules  # type: ignore[assignment]
        self.transactions: dict[str, TransactionRecord] = header.transactions  # type: ignore[assignment]
        self.extra = header.extra
        self._share_settings()

    def _share_settings(self) -> None:
        self.order.take_settings(self.settings, self.entrypoints, self.recent, self.schedules)

    def load(self, changed: Iterable[Job], removed: Iterable[str] = ()) -> None:
        """Take over jobs as another writer left them. Cannot be undone."""
        for job_id in removed:
            self._index(job_id, _ABSENT)
        for job in changed:
            self._index(job.id, job)
        self.settle()

    def load_waiting(self, job_id: str, entry: Packed) -> bool:
        """Take over a packed job that nobody here knows, and that waits for nothing but its turn: `load`, much faster.

        Returns:
            Whether it is one, and has been taken over.
        """
        entries = self.jobs.entries
        place = place_of(entry)
        if place is None or not place[1] or job_id in entries:
            return False
        entries[job_id] = entry
        self.dirty[job_id] = None
        self.last_sequence = max(self.last_sequence, place[1])
        self.order.waits(job_id, entry, place)
        return True

    def renumber(self) -> list[Job]:
        """Give all sequence numbers anew if one has become too large; returns those jobs. Cannot be undone."""
        if self.last_sequence <= PLACES:
            return []
        jobs = renumbered(self.jobs.values())
        self.last_sequence = 0
        self.load(jobs)
        return jobs

    def freeze(self) -> QueueState:
        """The draft as a value."""
        return QueueState.model_construct(
            jobs=tuple(self.jobs.values()),
            version=self.version,
            queue=self.queue,
            critical=self.critical,
            commits=dict(self.commits),
            evicted_through=self.evicted_through,
            finished=dict(self.finished),
            holds=dict(self.holds),
            attempt_floor=self.attempt_floor,
            last_sequence=self.last_sequence if self._changed else self._told_sequence,
            settings=self.settings,
            entrypoints=dict(self.entrypoints),
            recent=dict(self.recent),
            schedules=dict(self.schedules),
            transactions=dict(self.transactions),
            set_aside=self.set_aside,
            extra=self.extra,
        )

    # The indexes

    def _index(self, job_id: str, job: Job, before: Job | None = None) -> None:
        """Put a job in its places, out of the ones that it had. Heaps find out by themselves.

        Args:
            job_id: its id.
            job: as it shall be; _ABSENT if it leaves.
            before: as it is, if the caller knows it.
        """
        self.dirty[job_id] = None
        entries = self.jobs.entries
        if before is None and job_id in entries:
            before = unpacked(job_id, entries[job_id])
        if job is _ABSENT:
            entries.pop(job_id, None)
        else:
            self.jobs[job_id] = job
        if before is not None:
            if before.status is JobStatus.IN_PROGRESS:
                del self.claimed[job_id]
                self.claims_moved[job_id] = None
            if before.unique_key is not None and self.keys.get(before.unique_key) == job_id:
                del self.keys[before.unique_key]
        if job is _ABSENT:
            self.order.changed(before, None)
            return
        if job.sequence > self.last_sequence:
            self.last_sequence = job.sequence
        if job.unique_key is not None and job.status in KEY_HOLDERS:
            self.keys[job.unique_key] = job_id
        if job.status is JobStatus.IN_PROGRESS:
            self.claimed[job_id] = None
            self.claims_moved[job_id] = None
        self.order.changed(before, job)
