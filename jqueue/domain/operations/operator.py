"""Operations on jobs that the caller does not hold, for operators, and the upkeep of the queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from jqueue.domain.draft import Draft, claimed_by, take_space
from jqueue.domain.durations import check_time, to_seconds
from jqueue.domain.errors import ChangedMeanwhileError, InvalidJobError, JobStateError, WorkerNotFoundError, shown
from jqueue.domain.fields import LARGEST, Count, Duration, Moment, Priority
from jqueue.domain.header import ENTRYPOINTS_SHOWN, WORKER_AGE, WORKERS_KEPT, BrokerSeat, WorkerRecord, replacing
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.limits import check_name, check_payload, check_priority, cut_error
from jqueue.domain.operations.base import JobReference, OnJob, Operation, Preparation
from jqueue.domain.operations.enqueue import drop_outlived
from jqueue.domain.operations.parents import children_first
from jqueue.domain.transitions import Verb
from jqueue.domain.turns import next_sequence

CLOCKS_DIFFER = 60.0
"""Seconds by which the clocks of two writers may differ: a job may be that much younger than its segment."""


class Cancel(OnJob, frozen=True):
    """Remove a queued job. Its result is the job.

    Attributes:
        job_id: the id of the job.
        running: True if a job in progress is to be stopped too. Its holder is told at its next heartbeat, and the job
            leaves when that claim ends. An ack still finishes it. A job in a lease leaves at once, and its holder is
            not told. The result is then the job in progress.
        asked_by: person or program that asks, for the history; cut at 100 bytes.
    """

    running: bool = False
    asked_by: str | None = None

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield `cancel_running` if a job in progress is to be stopped too."""
        if self.running:
            yield "cancel_running"

    def change(self, draft: Draft, now: datetime) -> JobRecord:
        """Remove the job, or mark it so that its holder is told.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is in progress and `running` is False, or it is dead or completed.
        """
        job = draft.get(self.job_id)
        if job.status is JobStatus.IN_PROGRESS and self.running:
            marked_job = job.evolve(cancel_requested=True)
            if (leased := draft.jobs.rows.leased(job.id)) is not None:
                lease, row, _ = leased
                segment = draft.header.segments[lease]
                draft.name_segment(lease, segment.evolve(taken=segment.taking([(row, row + 1)])))
                draft.admit(job)
                draft.move(job, Verb.CANCEL, None, None)
            elif not job.cancel_requested:
                draft.move(job, Verb.CANCEL, marked_job, JobStatus.IN_PROGRESS)
            return marked_job
        if job.status is JobStatus.IN_PROGRESS:
            worker = f"its worker{claimed_by(job)}"
            raise JobStateError(job.id, job.status, f"cancel(running=True) tells {worker} to stop")
        _check_status(job, "only a queued job can be cancelled", JobStatus.QUEUED)
        draft.move(job, Verb.CANCEL, None, None)
        return job


def _check_status(job: JobRecord, reason: str, status: JobStatus) -> None:
    if job.status is not status:
        raise JobStateError(job.id, job.status, reason)


def _with_status(draft: Draft, status: JobStatus, entrypoint: str | None) -> list[JobRecord]:
    """Return the jobs of a status that are in the table, of one entrypoint or of all."""
    return [job for job in draft.jobs.values() if job.status is status and entrypoint in (None, job.entrypoint)]


def _drop_segments(draft: Draft, entrypoint: str | None, cutoff: datetime | None) -> int:
    """Purge all waiting rows of segments at once. Return their number.

    With a cutoff, only the rows of segments that a commit named before it are purged, and all rows of the other
    segments are loaded: some of their jobs may be as old.

    Raises:
        RowsMissingError: not all rows of the other segments are loaded.
    """
    entries = {
        name: each
        for name, each in draft.header.segments.items()
        if not each.is_leased and entrypoint in (None, each.entrypoint)
    }
    since = None if cutoff is None else cutoff.timestamp() - CLOCKS_DIFFER
    whole = dict.fromkeys(name for name, each in entries.items() if since is None or 0 < each.at < since)
    draft.jobs.rows.require(entries.keys() - whole)
    return draft.drop_waiting(whole, Verb.PURGE)


class Redriven(int):
    """The number of jobs that were redriven.

    Attributes:
        left: the jobs that stay dead, as their unique key is taken: the id of each, and of the job that has the key.
    """

    left: Mapping[str, str]

    def __new__(cls, jobs: int, left: Mapping[str, str] | None = None) -> Self:
        """Return the number, with the jobs that are left."""
        redriven = super().__new__(cls, jobs)
        redriven.left = left or {}
        return redriven


class Redrive(Operation, frozen=True):
    """Queue dead jobs again. Failures and expiry are forgotten, attempts are kept. Its result is a `Redriven`.

    A dead job whose unique key is taken stays dead.

    Attributes:
        job_id: redrive this job only; DuplicateJobError if its unique key is taken.
        entrypoint: redrive the jobs of this entrypoint only.
        delay: time from now before which no job is claimed; 0 means at once.
        group: redrive the members of this group only.
        asked_by: see `Cancel`.
        fresh: True to forget the steps of the jobs, so that all are done again.
        payload: a new payload for the job `job_id`, in the encoding that it has; None: it keeps its own.
    """

    optional_names: ClassVar[tuple[str, ...]] = ("job_id", "entrypoint", "group")

    job_id: str | None = None
    entrypoint: str | None = None
    delay: Duration = 0
    asked_by: str | None = None
    group: str | None = None
    fresh: bool = False
    payload: bytes | None = None

    def prepared(self, preparation: Preparation) -> Redrive:
        """Return the operation, checked, with the times in seconds."""
        if self.job_id is not None and self.entrypoint is not None:
            raise InvalidJobError("give either job_id or entrypoint, not both")
        if self.payload is not None and self.job_id is None:
            raise InvalidJobError("a new payload is for one job: give its job_id")
        checked = super().prepared(preparation)
        if self.payload is not None:
            checked = replace(checked, payload=check_payload(self.payload, preparation.limits, objects=False))
        return replace(checked, delay=to_seconds("delay", self.delay))

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Return the names of the capabilities that it needs."""
        yield "dead_letters"
        if self.delay:
            yield "delay"
        if self.group is not None:
            yield "groups"
        if self.payload is not None:
            yield "reschedule"

    def change(self, draft: Draft, now: datetime) -> Redriven:
        """Queue the jobs, in the order of their sequence numbers.

        Raises:
            QueueFullError: there is no room for the new payload.
            JobNotFoundError: the job with `job_id` is not in the queue.
            JobStateError: the job with `job_id` is not dead.
            DuplicateJobError: another job holds the unique key of the job with `job_id`.
        """
        drop_outlived(draft, now)
        if self.job_id is not None:
            job = draft.get(self.job_id)
            _check_status(job, "only a dead job can be redriven", JobStatus.DEAD)
            if job.unique_key is not None:
                draft.check_key(job.unique_key, now)
            if self.payload is not None:
                take_space(draft, len(self.payload) * 4 // 3, "a new payload")
            self._queue(draft, job, now)
            return Redriven(1)
        dead = _with_status(draft, JobStatus.DEAD, self.entrypoint)
        dead = [job for job in dead if self.group in (None, job.group)]
        left: dict[str, str] = {}
        redriven = 0
        for job in sorted(dead, key=lambda job: (job.sequence, job.id)):
            holder = None if job.unique_key is None else draft.key_holder(job.unique_key, now)
            if holder is None:
                self._queue(draft, job, now)
                redriven += 1
            else:
                left[job.id] = holder
        return Redriven(redriven, left)

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job, if one is named."""
        return () if self.job_id is None else (self.job_id,)

    def _queue(self, draft: Draft, job: JobRecord, now: datetime) -> None:
        """Queue a job behind the others."""
        seconds = to_seconds("delay", self.delay)
        after = job.evolve(
            status=JobStatus.QUEUED,
            failures=0,
            dead_at=None,
            queued_at=now,
            run_at=now + timedelta(seconds=seconds) if seconds else None,
            expires_at=None,
            sequence=next_sequence(draft, job, now),
            steps=() if self.fresh else job.steps,
            payload=job.payload if self.payload is None else self.payload,
            payload_object=job.payload_object if self.payload is None else None,
        )
        draft.move(job, Verb.REDRIVE, after, JobStatus.QUEUED)


class Purge(Operation, frozen=True):
    """Remove the jobs of a status for good. Its result is their number.

    Attributes:
        status: dead, queued or completed; jobs in progress are not purged.
        entrypoint: remove the jobs of this entrypoint only.
        older_than: remove only jobs that died or finished longer ago (if queued, that were created longer ago).
        job_id: remove this job only, whatever its entrypoint and its age.
        before: the same as `older_than`, as a moment of the queue's clock. A commit that comes later removes no more.
        asked_by: see `Cancel`.
    """

    optional_names: ClassVar[tuple[str, ...]] = ("job_id", "entrypoint")

    status: JobStatus = JobStatus.DEAD
    entrypoint: str | None = None
    older_than: Duration | None = None
    job_id: str | None = None
    before: datetime | None = None
    asked_by: str | None = None

    def prepared(self, preparation: Preparation) -> Purge:
        """Return the operation, checked, with the age in seconds."""
        if self.status not in (JobStatus.DEAD, JobStatus.QUEUED, JobStatus.COMPLETED):
            raise InvalidJobError(f"the status of a purge must be dead, queued or completed, got {shown(self.status)}")
        if self.job_id is not None and (self.entrypoint, self.older_than, self.before) != (None, None, None):
            raise InvalidJobError("give job_id alone, without entrypoint, older_than and before")
        if self.before is not None and self.older_than is not None:
            raise InvalidJobError("give either older_than or before, not both")
        checked = super().prepared(preparation)
        older_than = None if self.older_than is None else to_seconds("older_than", self.older_than)
        before = None if self.before is None else check_time("before", self.before)
        return replace(checked, status=JobStatus(self.status), older_than=older_than, before=before)

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield the capability that a queue needs to have jobs of that status."""
        if self.status is JobStatus.DEAD:
            yield "dead_letters"
        elif self.status is JobStatus.COMPLETED:
            yield "results"

    def change(self, draft: Draft, now: datetime) -> int:
        """Remove the jobs.

        Raises:
            JobNotFoundError: the job with `job_id` is not in the queue.
            JobStateError: the job with `job_id` has another status.
        """
        if self.job_id is not None:
            job = draft.get(self.job_id)
            _check_status(job, f"only a job that is {self.status} is purged", self.status)
            if job.status is JobStatus.COMPLETED and (children := draft.jobs.order.children.get(job.id)):
                raise JobStateError(job.id, job.status, f"job {next(iter(children))} still needs its result")
            draft.move(job, Verb.PURGE, None, None)
            return 1
        cutoff = self.before
        if self.older_than is not None:
            cutoff = now - timedelta(seconds=to_seconds("older_than", self.older_than))
        waiting = [job for job in self._doomed(draft, cutoff) if job.waits_for]
        for job in children_first(waiting):
            if (there := draft.jobs.get(job.id)) is not None:
                draft.move(there, Verb.PURGE, None, None)
        in_segments = 0
        if self.status is JobStatus.QUEUED:
            in_segments = _drop_segments(draft, self.entrypoint, cutoff)
        doomed = self._doomed(draft, cutoff)
        for job in doomed:
            draft.move(job, Verb.PURGE, None, None)
        return len(waiting) + in_segments + len(doomed)

    def _doomed(self, draft: Draft, cutoff: datetime | None) -> list[JobRecord]:
        """Return the jobs in the table that are to be removed. A completed one stays while a child needs its result."""
        matches = _with_status(draft, self.status, self.entrypoint)
        if self.status is JobStatus.COMPLETED:
            matches = [job for job in matches if job.id not in draft.jobs.order.children]
        return [job for job in matches if cutoff is None or (job.dead_at or job.finished_at or job.created_at) < cutoff]

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job, if one is named."""
        return () if self.job_id is None else (self.job_id,)


class CreateQueue(Operation, frozen=True):
    """Create the empty queue, if there is none."""

    always_needs: ClassVar[tuple[str, ...]] = ("size_limit",)

    def change(self, draft: Draft, now: datetime) -> None:
        """Ask for the first commit.

        Raises:
            InvalidJobError: there is a queue.
        """
        if draft.header.version or draft.header.queue or draft.jobs or draft.jobs.rows.manifest.after():
            raise InvalidJobError("there is a queue already: it was left as it is")
        draft.touch()


TEXT_BYTES = 256
"""Bytes at which each text in the record of a worker is cut."""

LATEST = 2.0**37
"""Largest time in the record of a worker, in seconds since 1970: it is shown as a date."""


TEXTS = ("name", "host", "version", "mark", "client")
"""Texts in the record of a worker."""


def _bounded(record: WorkerRecord) -> WorkerRecord:
    """Return the record of a worker within bounds, whatever it says: the header does not count what it takes."""
    texts = {name: cut_error(getattr(record, name), TEXT_BYTES) for name in TEXTS}
    names = [cut_error(each, TEXT_BYTES) for each in record.entrypoints[:ENTRYPOINTS_SHOWN]]
    times = {name: max(0.0, min(getattr(record, name), LATEST)) for name in ("started", "at")}
    changes: dict[str, Any] = {**texts, **times, "entrypoints": tuple(names), "beat": min(record.beat, WORKER_AGE)}
    return record.evolve(**changes, extra=None)


class Attend(Operation, frozen=True):
    """Show the running workers of a process in the queue, and remove its workers that have ended.

    Attributes:
        workers: the record of each worker, by the id of its run; None for an ended worker.
    """

    needs_space = False

    workers: dict[str, WorkerRecord | None]

    def prepared(self, preparation: Preparation) -> Attend:
        """Return the operation with the texts of its records cut, and without what the queue does not know.

        Raises:
            InvalidJobError: there are too many records, or the id of a run is no name.
        """
        if len(self.workers) > WORKERS_KEPT:
            raise InvalidJobError(f"{len(self.workers)} workers report at once; the limit is {WORKERS_KEPT}")
        limits = preparation.limits
        records = self.workers.items()
        return Attend({check_name("run", run, limits): record and _bounded(record) for run, record in records})

    def change(self, draft: Draft, now: datetime) -> list[str]:
        """Write the records. Return the runs of those workers that are to stop."""
        records = draft.header.workers
        for run, record in self.workers.items():
            if record is not None:
                record = record.evolve(at=min(record.at, now.timestamp()))
                draft.note(records, run, replacing(records.get(run), record))
            else:
                draft.forget(records, run)
        return self.recovered(draft, now)

    def recovered(self, draft: Draft, at: datetime) -> list[str]:
        """Return the runs of those workers that are to stop."""
        records = draft.header.workers
        return [run for run in self.workers if run in records and records[run].stopping]


class StopWorker(Operation, frozen=True):
    """Tell a worker to stop, as SIGTERM does. Its result is the record of each worker that was told.

    The order stands in the worker's record, and leaves with it. The worker finds it at its next read or commit.

    Attributes:
        worker: name of the worker: all workers of this name stop; or `name@host:pid` of one, or the id of its run.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("holders",)
    checked_names: ClassVar[tuple[str, ...]] = ("worker",)

    worker: str

    def change(self, draft: Draft, now: datetime) -> list[WorkerRecord]:
        """Write the order into the records.

        Raises:
            WorkerNotFoundError: no worker has the name.
        """
        records = draft.header.workers
        runs = [run for run, record in records.items() if record.is_named(self.worker, run)]
        if not runs:
            raise WorkerNotFoundError(self.worker)
        for run in runs:
            if not records[run].stopping:
                draft.note(records, run, records[run].evolve(stopping=True))
        return [records[run] for run in runs]

    def recovered(self, draft: Draft, at: datetime) -> Any:
        """Return the records of the workers that have not left yet."""
        run_records = draft.header.workers.items()
        records = [record for run, record in run_records if record.stopping and record.is_named(self.worker, run)]
        return records or self.lost_answer()


class TakeSeat(Operation, frozen=True):
    """Tell all processes where a broker of the queue answers. Its result is the seat.

    It belongs to the process that serves, and does not travel.

    Attributes:
        url: where the broker answers.
        writer: id of its writer.
        seen_term: term of the seat that it takes over; 0 if there never was one.
    """

    needs_space = False

    url: str
    writer: str
    seen_term: Count

    def change(self, draft: Draft, now: datetime) -> BrokerSeat:
        """Take the seat.

        Raises:
            ChangedMeanwhileError: another process has taken it meanwhile.
        """
        seat = draft.header.broker or BrokerSeat()
        if seat.term != self.seen_term:
            raise ChangedMeanwhileError("another process has taken the broker's seat meanwhile")
        taken = seat.evolve(writer=self.writer, url=self.url, term=seat.term % LARGEST + 1, doubted_at=0.0)
        draft.set_broker(taken)
        return taken


class LeaveSeat(Operation, frozen=True):
    """Tell all processes that a broker serves no longer, or is not found. If another has the seat, nothing changes.

    Attributes:
        writer: id of the broker's writer.
        term: term of its seat.
        doubted: True if it comes from a client that has found nobody there. Then the seat is only doubted, and not if
            the broker has just committed: it is cut off from this client alone.
    """

    needs_space = False

    writer: str
    term: Count
    doubted: bool = False

    def change(self, draft: Draft, now: datetime) -> None:
        """Leave the seat empty, or mark it. Its term stays, so that no later seat has the same."""
        seat = draft.header.broker
        if seat is None or (seat.writer, seat.term) != (self.writer, self.term):
            return
        if not self.doubted:
            draft.set_broker(seat.evolve(writer="", url="", doubted_at=0.0))
        elif draft.header.is_quiet(now):
            draft.set_broker(seat.evolve(doubted_at=round(now.timestamp(), 3)))


class EmptyCommit(Operation, frozen=True):
    """Force a commit without a change. A write that was sent before, and has not landed by then, never will."""

    def change(self, draft: Draft, now: datetime) -> None:
        """Ask for a commit."""
        draft.touch()


class Reschedule(OnJob, frozen=True):
    """Set another time for a queued job. Its result is the job. Give either `delay` or `run_at`.

    Attributes:
        job_id: the id of the job.
        delay: time from now before which the job is not claimed; 0 means at once.
        run_at: time before which the job is not claimed.
        asked_by: see `Cancel`.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("reschedule",)

    delay: Duration | None = None
    run_at: Moment | None = None
    asked_by: str | None = None

    def prepared(self, preparation: Preparation) -> Reschedule:
        """Return the operation, checked, with the delay in seconds and the time in UTC."""
        checked = super().prepared(preparation)
        if (self.delay is None) == (self.run_at is None):
            raise InvalidJobError("give one of delay and run_at")
        delay = None if self.delay is None else to_seconds("delay", self.delay)
        run_at = None if self.run_at is None else check_time("run_at", self.run_at)
        return replace(checked, delay=delay, run_at=run_at)

    def change(self, draft: Draft, now: datetime) -> JobRecord:
        """Set the time of the job.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is not queued.
        """
        drop_outlived(draft, now)
        job = draft.get(self.job_id)
        _check_status(job, "only a queued job can be rescheduled", JobStatus.QUEUED)
        run_at = self.run_at
        if self.delay:  # 0 sets no time: ready at once by every clock
            run_at = now + timedelta(seconds=to_seconds("delay", self.delay))
        after = job.evolve(run_at=run_at)
        if run_at is None and job.run_at is not None and job.run_at > now:
            after = after.evolve(queued_at=now)  # it has not waited since its enqueue
        if after != job:
            draft.move(job, Verb.RESCHEDULE, after, JobStatus.QUEUED)
        return after


class Reprioritise(OnJob, frozen=True):
    """Give a queued job another priority. Its sequence number gives its place among jobs of that priority.

    Its result is the job. For `asked_by`, see `Cancel`.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("reschedule",)

    priority: Priority
    asked_by: str | None = None

    def prepared(self, preparation: Preparation) -> Reprioritise:
        """Check the arguments."""
        return replace(super().prepared(preparation), priority=check_priority(self.priority))

    def change(self, draft: Draft, now: datetime) -> JobRecord:
        """Set the priority of the job.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is not queued.
        """
        drop_outlived(draft, now)
        job = draft.get(self.job_id)
        _check_status(job, "only a queued job can be given another priority", JobStatus.QUEUED)
        after = job.evolve(priority=self.priority)
        if after.priority != job.priority:
            draft.move(job, Verb.REPRIORITISE, after, JobStatus.QUEUED)
        return after


TRAVELLING = (Cancel, Reschedule, Reprioritise, Redrive, Purge, CreateQueue, EmptyCommit, Attend, StopWorker)
