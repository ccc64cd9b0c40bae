"""The working copy of a state: what operations change, with an undo for everything.

A `QueueState` is a value; making a new one for each of a thousand operations would cost a thousand copies. A `Draft`
is one state opened for change: jobs by id, the orders in which they are served, and a journal that can take back
any change since a savepoint. To its user it is as good as a value: what is rolled back was never there.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from datetime import datetime
from typing import Any

from jqueue.domain.errors import ClaimLostError, JobNotFoundError
from jqueue.domain.header import TABLES, Header
from jqueue.domain.indexed_jobs import IndexedJobs
from jqueue.domain.job_table import unpacked
from jqueue.domain.journal import ABSENT, Journal
from jqueue.domain.limits import bytes_taken
from jqueue.domain.models import Claim, Job, JobStatus, QueueState, SetAside
from jqueue.domain.places import PLACES, EncodedJobs, PlacedJobs, renumbered
from jqueue.domain.rules import LIMITS, EntrypointRules, QueueSettings
from jqueue.domain.transitions import TRANSITIONS, Verb

UNNAMED_CLAIM = "this queue object did not hand it out, or several, or has ended it already; pass the Job from dequeue"


class Draft:
    """A state opened for change: its header, its jobs, and the journal of what was changed.

    Reading is by attribute; changing is by `move` (a job), `note` and `forget` (an entry of a table of the header) and
    by the methods for its other fields. All of it can be undone.

    Attributes:
        header: everything but the jobs and the lines set aside.
        jobs: every job by id, and what finds them.
        base_bytes: what jobs, and keys held after their acks, take of the blob that the draft was opened from. What
            is finished and who has committed does not count: no call could make room there.
        added_bytes: an estimate of what the jobs enqueued since then will add.
        placed: jobs that were encoded before, and are in the draft as nothing but their lines. Once they are committed,
            a draft that knows them is opened from the blob.
    """

    def __init__(self, state: QueueState | None = None) -> None:
        state = QueueState() if state is None else state
        self.jobs = IndexedJobs()
        self.take_header(state.model_copy(update={name: dict(getattr(state, name)) for name in TABLES}))
        self.set_aside = state.set_aside
        self.base_bytes = 0
        self.added_bytes = 0
        self.placed: tuple[PlacedJobs, ...] = ()
        self._journal = Journal()
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
            gone = "it was acked" if claim.job_id in self.header.finished else "the job is no longer in the queue"
            raise ClaimLostError(*claim, gone)
        job = unpacked(claim.job_id, entry)
        if job.status is not JobStatus.IN_PROGRESS:
            raise ClaimLostError(*claim, f"the job is {job.status}")
        if job.attempt != claim.attempt:
            raise ClaimLostError(*claim, f"attempt {job.attempt} holds it now")
        return job

    def next_sequence(self) -> int:
        """A place behind every job there is."""
        self.jobs.last_sequence += 1
        return self.jobs.last_sequence

    def key_holder(self, key: str, now: datetime) -> str | None:
        """The id of the job that holds a unique key: a live one, or one acked while its key is kept; else None."""
        if key in self.jobs.keys_held:
            return self.jobs.keys_held[key]
        hold = self.header.holds.get(key)
        return hold.job_id if hold is not None and hold.until > now.timestamp() else None

    def take_ready(self, entrypoints: tuple[str, ...] | None, now: datetime) -> Job | None:
        """The next job to claim, by priority, then by sequence; None if there is none. O(log n). Move it at once."""
        return self.jobs.order.take(entrypoints, now)

    def next_due(self) -> datetime | None:
        """When something becomes ready that was not when jobs were last looked for; None if nothing is scheduled."""
        return self.jobs.order.next_due()

    def outlived(self, now: datetime) -> Job | None:
        """A job that has expired, or was kept for long enough; None if there is none. Move it before asking again."""
        return self.jobs.order.outlived(now)

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
        journal = self._journal
        journal.changed = True
        if after is not None:
            journal.entries.append((self.jobs, after.id, ABSENT if job is None else job))
            self.jobs.put(after, job)
        elif job is not None:
            journal.entries.append((self.jobs, job.id, job))
            self.jobs.remove(job.id, job)
            if status is not JobStatus.COMPLETED and job.attempt > self.header.attempt_floor:
                self.note_floor(job.attempt)

    def note(self, table: MutableMapping[str, Any], key: str, value: Any) -> None:
        """Set an entry of a table of the header."""
        self._journal.set(table, key, value)

    def forget(self, table: MutableMapping[str, Any], key: str) -> None:
        """Drop an entry of a table."""
        self._journal.drop(table, key)

    def note_floor(self, attempt: int) -> None:
        """Raise the attempt from which a reused id goes on."""
        self._journal.assign(self.header, "attempt_floor", attempt)

    @property
    def taken_bytes(self) -> int:
        """About how many bytes count against the size limit."""
        return self.base_bytes + self.added_bytes

    def note_added(self, size: int) -> None:
        """Count the size of what was added."""
        self._journal.assign(self, "added_bytes", self.added_bytes + size)

    def place(self, jobs: EncodedJobs, now: datetime) -> None:
        """Add jobs that were encoded before, with places behind every job there is."""
        placed = PlacedJobs(jobs, self.jobs.last_sequence + 1, now)
        self.jobs.last_sequence += jobs.jobs
        self._journal.assign(self, "placed", (*self.placed, placed))

    def set_rules(self, entrypoint: str, rules: EntrypointRules) -> None:
        """Set what holds the jobs of an entrypoint back. From then on, older versions of jqueue must not touch it."""
        header = self.header
        if rules == header.entrypoints.get(entrypoint, EntrypointRules()):
            return
        if rules == EntrypointRules():
            self.forget(header.entrypoints, entrypoint)
        else:
            self.note(header.entrypoints, entrypoint, rules)
            self.require(LIMITS)
        if rules.rate is None and entrypoint in header.recent:
            self.forget(header.recent, entrypoint)
        self.jobs.order.rules_changed()

    def set_settings(self, settings: QueueSettings) -> None:
        """Set what holds for the queue as a whole."""
        if settings != self.header.settings:
            self._journal.assign(self.header, "settings", settings)
            self._share_settings()

    def require(self, feature: str) -> None:
        """Have the blob refused by versions of jqueue that do not know a feature."""
        if feature not in self.header.critical:
            self._journal.assign(self.header, "critical", (*self.header.critical, feature))

    def touch(self) -> None:
        """Ask for a commit although nothing changed."""
        self._journal.changed = True

    # What holds several operations together

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return self._journal.changed

    def moved_jobs(self) -> dict[str, list[Job | None]]:
        """What each job that changed since the last `settle` has been, from before to now; None: not there."""
        stages: dict[str, list[Job | None]] = {}
        for place, job_id, old in self._journal.entries:
            if place is self.jobs:
                stages.setdefault(job_id, []).append(None if old is ABSENT else old)
        for job_id, states in stages.items():
            states.append(self.jobs.get(job_id))
        return stages

    def savepoint(self) -> tuple[int, bool, int]:
        """A mark to come back to."""
        return len(self._journal.entries), self._journal.changed, self.jobs.last_sequence

    def rollback(self, savepoint: tuple[int, bool, int] | None = None) -> None:
        """Take back every change since the savepoint, or since the last `settle`."""
        mark, changed, last_sequence = savepoint or (0, False, self._settled_sequence)
        header, settings = self.header, False
        for place, key in self._journal.undo(mark):
            settings = settings or place is header.entrypoints or (place is header and key == "settings")
        self._journal.changed = changed
        self.jobs.last_sequence = last_sequence  # in the end: putting a job back may raise it
        if settings:
            self._share_settings()
            self.jobs.order.rules_changed()

    def restore(self, name: str, old: Any) -> None:
        """Put an attribute back: see `Journal`."""
        setattr(self, name, old)

    def measure(self, job_bytes: int) -> None:
        """Count anew what the blob holds, of which the lines take so many bytes."""
        self.base_bytes = bytes_taken(job_bytes, self.header.holds, self.header.schedules)
        self.added_bytes = 0

    def settle(self) -> None:
        """Make every change since the last `settle` permanent: it was committed."""
        self._journal.settle()
        self._settled_sequence = self.jobs.last_sequence
        self.jobs.pack()

    # Opening and closing

    def take_header(self, header: QueueState) -> None:
        """Take over everything but the jobs and the lines set aside, tables and all. Cannot be undone."""
        self.header = Header(header)
        if self.jobs.last_sequence < header.last_sequence <= PLACES:
            self.jobs.last_sequence = header.last_sequence
        self._share_settings()

    def _share_settings(self) -> None:
        header = self.header
        self.jobs.order.take_settings(header.settings, header.entrypoints, header.recent, header.schedules)

    def load(self, changed: Iterable[Job], removed: Iterable[str] = ()) -> None:
        """Take over jobs as another writer left them. Cannot be undone."""
        for job_id in removed:
            self.jobs.remove(job_id)
        for job in changed:
            self.jobs.put(job)
        self.settle()

    def renumber(self) -> list[Job]:
        """Give all sequence numbers anew if one has become too large; returns those jobs. Cannot be undone."""
        if self.jobs.last_sequence <= PLACES:
            return []
        jobs = renumbered(self.jobs.values())
        self.jobs.last_sequence = 0
        self.load(jobs)
        return jobs

    def freeze(self) -> QueueState:
        """The draft as a value."""
        return QueueState.model_construct(
            jobs=tuple(self.jobs.values()),
            last_sequence=self.jobs.last_sequence if self.changed else self.header.told_sequence,
            set_aside=self.set_aside,
            **self.header.values(),
        )
