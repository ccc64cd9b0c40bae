"""`migrate(source, dest)` moves jobs from one queue to another, whatever their formats.

A job is claimed at the source, so that no worker can have it meanwhile. Then it is added at the destination, removed
from the source, and released at the destination. If the process is killed between two of these steps, the next run
recognises the finished steps and does the others. Features that the destination lacks are found before anything is
lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jqueue.core.migration.payloads import open_payload, payload_size
from jqueue.core.migration.plan import IDS_SHOWN, LOSS_TEXTS, Move, Planner, Tally, add_to, merged
from jqueue.core.migration.source_jobs import SourceJobs
from jqueue.core.queue_options import options_of
from jqueue.core.sets.same_place import is_same_place, name_of
from jqueue.domain.errors import (
    ClaimLostError,
    DuplicateJobError,
    InvalidJobError,
    JobStateError,
    JobsUnreadableError,
    JQueueError,
    ObjectDamagedError,
    ObjectMissingError,
    QueueFullError,
    QueueMissingError,
    UnknownOutcomeError,
)
from jqueue.domain.in_transit import MOVER, is_moving
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim, Job, JobStatus, QueueState
from jqueue.domain.operations import Find, HandBack, Operation, Preparation
from jqueue.domain.operations.moving import Arrive, ArriveRules, Depart, RulesReceipt, Take
from jqueue.domain.selection import FirstItems, turn_of
from jqueue.ports.queue import Operator, SupportsApply

BATCH_JOBS = 500
"""Maximum number of jobs in one batch, which takes four commits between queues of one object each."""

BATCH_BYTES = 4 << 20
"""Maximum bytes of payloads in one batch; a larger job is a batch of its own."""

NO_HISTORY = {"history": None, "history_bytes": None, "history_payloads": False}
"""Settings for a queue that cannot keep a history."""

TAKEN = "other programs took them during the move"
FULL = "DEST has no room for them"
KEY_TAKEN = "their unique key is taken at DEST"
ID_TAKEN = "DEST has, or had, another job with the same id"
IN_BOTH = "their claims were revoked during the move, and they are in both queues: cancel them in one"

TOO_LARGE = "their payloads are too large for DEST, which keeps no objects beside it"


WINDOW_JOBS = 10_000
"""Number of jobs to move before the source is read again: the largest number of them in memory."""


class PayloadStays(JQueueError):
    """The payload of a job cannot move. The message is the reason in a report."""


Progress = Callable[[int, int], None]
"""Called with the number of jobs that have been moved, and the number of all jobs to move."""


@dataclass
class MigrationReport:
    """The result of a move.

    Attributes:
        dry_run: True if nothing was done, and the report only predicts the result.
        moved: number of moved jobs.
        resumed: number of moved jobs that an earlier, interrupted move had begun to move.
        lost: moved jobs that lost a feature, by what they lost.
        refused: jobs that stay where they are, by the reason.
        in_progress: number of jobs that stay with their workers.
        results: number of finished jobs that stay for their result.
        unreadable: number of lines that could not be read as jobs, and stay.
        keys_held: number of unique keys of finished jobs that are held for a while, and stay.
        rules_taken: limits, settings and cron entries that are in force at the other queue now.
        rules_kept: limits, settings and cron entries that differ at the other queue, or that it cannot have.
        stopped: True if the move was stopped before its end.
        damaged: segments of the source that are missing or damaged, with the reason. Jobs of theirs stay.
    """

    dry_run: bool = False
    moved: int = 0
    resumed: int = 0
    lost: dict[str, Tally] = field(default_factory=dict)
    refused: dict[str, Tally] = field(default_factory=dict)
    in_progress: int = 0
    results: int = 0
    unreadable: int = 0
    keys_held: int = 0
    rules_taken: tuple[str, ...] = ()
    rules_kept: tuple[str, ...] = ()
    stopped: bool = False
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if no job stays that could have been worked on at the other queue."""
        return not (self.stopped or self.refused or self.in_progress or self.unreadable or self.damaged)


class SourceDamagedError(JobsUnreadableError):
    """Segments of the source are missing or damaged. All other jobs have moved.

    Attributes:
        report: the result of the move.
    """

    def __init__(self, report: MigrationReport) -> None:
        super().__init__(report.damaged)
        self.report = report


async def migrate(
    source: Operator,
    dest: Operator,
    *,
    dry_run: bool = False,
    lossy: bool = False,
    on_progress: Progress | None = None,
    stop: asyncio.Event | None = None,
) -> MigrationReport:
    """Move the jobs of a queue to another one, in their order, with all features that both queues have.

    Programs may go on using both queues. Jobs in progress stay with their workers; move them later. Limits, pauses and
    settings are copied and cron entries are moved, if the other queue can have them and has none of that name. The next
    move finishes an interrupted one. Only one move at a time may run from a queue.

    Args:
        source: the queue that the jobs leave.
        dest: the queue that the jobs move to; it need not exist yet.
        dry_run: True to only report the result of a move.
        lossy: True to also move jobs that lose a feature which the other queue lacks, such as a priority or a delay.
            By default they stay.
        on_progress: called with the number of jobs that have been moved, and the number of all jobs to move.
        stop: once it is set, no further batch is begun.

    Raises:
        InvalidJobError: both are the same queue.
        SourceDamagedError: segments of the source are missing or damaged. All other jobs have moved. It is a
            `JobsUnreadableError` with the report.
        StorageError: a store failed. The next move finishes the interrupted one.
    """
    if is_same_place(source, dest):
        raise InvalidJobError("both queues are the same queue: there is nothing to move")
    return await Mover(source, dest, lossy=lossy, on_progress=on_progress, stop=stop).run(dry_run=dry_run)


@dataclass(frozen=True)
class Found:
    """The jobs to move, as one reading of the source finds them.

    Attributes:
        state: the state of the source's object.
        planner: the decisions about all other jobs.
        moves: the moves of the jobs that are served first.
        number: number of all jobs to move.
    """

    state: QueueState
    planner: Planner
    moves: list[Move]
    number: int

    def tally(self) -> Tally:
        """Return the count of the jobs to move."""
        return Tally(self.number, [move.job.id for move in self.moves[:IDS_SHOWN]])


class Mover:
    """One move: see `migrate`."""

    def __init__(
        self,
        source: Operator,
        dest: Operator,
        *,
        lossy: bool = False,
        on_progress: Progress | None = None,
        stop: asyncio.Event | None = None,
    ) -> None:
        self.source = source
        self.dest = dest
        self._lossy = lossy
        self._tell = on_progress or (lambda done, of: None)
        self._stop = stop or asyncio.Event()
        self._to, self._from = f"{MOVER} to {name_of(dest)}", f"{MOVER} from {name_of(source)}"
        self._held = dest.capabilities.holders
        self._report = MigrationReport()
        self._reasons_to_stay: dict[str, str] = {}

    async def run(self, *, dry_run: bool = False) -> MigrationReport:
        """Move all jobs, also jobs that are enqueued meanwhile.

        Raises:
            SourceDamagedError: at the end, if segments of the source are missing or damaged.
        """
        self._report.dry_run = dry_run
        await self.source.stats()  # if there is no source, that is an error
        await self._find(self.dest, "any")  # if it cannot be read, nothing is taken
        if not dry_run:
            await self._release_arrived()
        await self._move_rules((await SourceJobs.of(self.source)).state, dry_run=dry_run)
        if dry_run:
            await self._predict_all()
        found = await self._look()
        while not dry_run and found.moves:
            before = self._report.moved, len(self._reasons_to_stay)
            total = self._report.moved + found.number
            for batch in batches(found.moves):
                if self._stop.is_set():
                    break
                self._tell(self._report.moved, total)
                await self._move(batch)
            self._tell(self._report.moved, total)
            found = await self._look()
            if self._stop.is_set() or before == (self._report.moved, len(self._reasons_to_stay)):
                break
        report = self._completed_report(found)
        if report.damaged:
            raise SourceDamagedError(report)
        return report

    async def _look(self) -> Found:
        """Read the source, and find which of the moving jobs are served first."""
        source = await SourceJobs.of(self.source)
        planner, first = self._planner(source.state), FirstItems(WINDOW_JOBS, _turn_of_move)
        beyond = 0
        for part, number in source.parts():
            seen = moves = 0
            with self._noting_damage():
                async with part as jobs:
                    async for job in jobs:
                        seen += 1
                        if (move := planner.move_of(job)) is not None:
                            first.add(move)
                            moves += 1
                            if number is not None and moves == WINDOW_JOBS:
                                beyond = number - seen
                                break
        return Found(source.state, planner, first.found(), first.number + beyond)

    @contextmanager
    def _noting_damage(self) -> Iterator[None]:
        """Leave jobs in damaged segments where they are: all others move."""
        try:
            yield
        except JobsUnreadableError as error:
            self._report.damaged |= error.segments

    def _planner(self, state: QueueState) -> Planner:
        can, now, staying = self.dest.capabilities, self._now(), self._reasons_to_stay
        return Planner(state.entrypoints, can, now, lossy=self._lossy, holder=self._to, staying=staying)

    def _now(self) -> datetime:
        return options_of(self.source).clock.now()

    def _completed_report(self, found: Found) -> MigrationReport:
        report, planner = self._report, found.planner
        taken = {} if report.dry_run or self._stop.is_set() or not found.moves else {TAKEN: found.tally()}
        report.refused = merged(planner.stayed, planner.refused, taken)
        report.in_progress, report.results = planner.in_progress, planner.results
        report.unreadable = len(found.state.set_aside)
        now = self._now().timestamp()
        report.keys_held = sum(hold.until > now for hold in found.state.holds.values())
        report.stopped = self._stop.is_set()
        return report

    # Rules

    async def _move_rules(self, state: QueueState, *, dry_run: bool) -> None:
        """Copy limits and settings and move cron entries, before any job moves, so that paused jobs do not run."""
        can = self.dest.capabilities
        said = [f"limits of {name}" for name in state.entrypoints] if not can.limits else []
        said += [f"cron entry {name}" for name in state.schedules] if not can.schedules else []
        said += ["retention of dead jobs"] if state.settings.dead_retention is not None and not can.retention else []
        said += ["size limit"] if state.settings.blob_bytes is not None and not can.size_limit else []
        self._report.rules_kept = tuple(said)
        if not (can.limits and can.schedules and can.retention):
            return
        if not (state.entrypoints or state.schedules or state.settings.model_dump(exclude_defaults=True)):
            return
        settings = state.settings
        if settings.history is not None and not can.history:
            settings, said = settings.model_copy(update=NO_HISTORY), ["history"]
        arriving = ArriveRules(state.entrypoints, settings, state.schedules, dry_run)
        [receipt] = await self._each(self.dest, [arriving])
        if isinstance(receipt, JQueueError):
            raise receipt
        assert isinstance(receipt, RulesReceipt)
        self._report.rules_taken, self._report.rules_kept = receipt.taken, (*said, *receipt.kept)
        if not dry_run:
            for name in receipt.schedules:
                await self.source.unschedule(name)

    # Jobs

    async def _predict_all(self) -> None:
        """Predict the result of a move, as far as that is possible without one."""
        planner, moves = self._planner((await SourceJobs.of(self.source)).state), list[Move]()
        with self._noting_damage():
            async for job in self.source.iterate_jobs():
                if (move := planner.move_of(job)) is not None:
                    moves.append(move)
                if len(moves) == WINDOW_JOBS:
                    await self._predict(moves)
                    moves = []
        await self._predict(moves)

    async def _predict(self, moves: Sequence[Move]) -> None:
        """Predict which of some jobs will move."""
        limits, sought = options_of(self.dest).limits, {move.job.id for move in moves}
        there = {job.id: job async for job in self._jobs_there() if job.id in sought} if sought else {}
        for move in moves:
            found = there.get(move.job.id)
            if found is not None and not move.resumed and not is_moving(found) and not move.is_dead:
                self._reasons_to_stay[move.job.id] = ID_TAKEN
                continue
            stored = move.job.payload_object
            objects = self.dest.capabilities.objects
            if stored is not None and stored.size > limits.most_payload(objects=False) and not objects:
                self._reasons_to_stay[move.job.id] = TOO_LARGE
                continue
            try:
                Arrive(move.arriving.evolve(payload_object=None)).prepared(_preparation(limits))
            except InvalidJobError as error:
                self._reasons_to_stay[move.job.id] = _error_text(error)
                continue
            self._count(move)

    async def _jobs_there(self, *statuses: JobStatus) -> AsyncGenerator[Job, None]:
        """Yield the jobs of the destination: none if there is no queue yet."""
        with suppress(QueueMissingError):
            async for job in self.dest.iterate_jobs(*statuses):
                yield job

    def _count(self, move: Move) -> None:
        self._report.moved += 1
        self._report.resumed += move.resumed
        add_to(self._report.lost, ((LOSS_TEXTS[name], move.job.id) for name in move.lost))

    async def _release_arrived(self) -> None:
        """Release jobs at the destination that an earlier move has already removed from the source."""
        if not self._held:
            return
        running = self._jobs_there(JobStatus.IN_PROGRESS)
        held = {job.id: job.claim async for job in running if is_moving(job) and job.holder == self._from}
        if held:
            with self._noting_damage():
                async for job in self.source.iterate_jobs():
                    held.pop(job.id, None)
            if self._report.damaged:
                return  # a row that cannot be read may hold one of them
            await self._release(self.dest, list(held.values()))

    async def _move(self, batch: Sequence[Move]) -> None:
        """Take, add, remove and release the jobs of a batch. Each step is finished for all jobs before the next."""
        taken = await self._take(batch)
        self.step("taken")
        arrived = await self._add([move for move in batch if move.job.id in taken], taken)
        self.step("arrived")
        moves = [move for move in batch if move.job.id in arrived]
        gone = await self._remove(moves, taken, arrived)
        self.step("removed")
        claims = [job.claim for job_id, job in arrived.items() if job_id in gone and is_moving(job)]
        await self._release(self.dest, claims)
        self.step("let go")
        for move in moves:
            if move.job.id in gone:
                self._count(move)

    async def _take(self, batch: Sequence[Move]) -> dict[str, Claim]:
        """Claim the jobs of a batch, and return the claims. Jobs that workers took first are left out."""
        fresh = [move.job for move in batch if not (move.resumed or move.is_dead)]
        found = {move.job.id: move.job.claim for move in batch if move.resumed or move.is_dead}
        for result in await self._each(self.source, [Take(job, self._to) for job in fresh]):
            if isinstance(result, list) and result:
                found[result[0].id] = result[0].claim
        return found

    async def _add(self, moves: Sequence[Move], taken: dict[str, Claim]) -> dict[str, Job]:
        """Add the jobs of a batch, and return them as they are at the destination.

        Refused ones are released at the source.
        """
        unwanted = [move for move in moves if move.reasons and await self._find(self.dest, move.job.id) is None]
        self._reasons_to_stay.update((move.job.id, move.reasons[0]) for move in unwanted)
        await self._release(self.source, [taken[move.job.id] for move in unwanted])
        moves = [move for move in moves if move not in unwanted]
        arrivals = [await self._arrival(move) for move in moves]
        results = await self._each(self.dest, [arrival for arrival in arrivals if isinstance(arrival, Arrive)])
        answers = iter(results)
        arrived: dict[str, Job] = {}
        for move, arrival in zip(moves, arrivals, strict=True):
            result = next(answers) if isinstance(arrival, Arrive) else arrival
            if isinstance(result, Job):
                arrived[move.job.id] = result
            else:
                self._reasons_to_stay[move.job.id] = _error_text(result)
        back = [taken[move.job.id] for move in moves if move.job.id not in arrived and not move.is_dead]
        await self._release(self.source, back)
        return arrived

    async def _arrival(self, move: Move) -> Arrive | JQueueError:
        """Return the operation that adds a job, with its payload, or the error that keeps its payload from moving."""
        job, stored = move.arriving, move.job.payload_object
        said: dict[str, Any] = {"resumed": move.resumed, "held": self._held, "holder": self._from}
        if stored is None:
            return Arrive(job, **said)
        job = job.evolve(payload=b"", payload_object=None)
        pieces = open_payload(self.source, move.job)
        if stored.size > options_of(self.dest).limits.most_payload(objects=False):
            if not self.dest.capabilities.objects:
                return PayloadStays(TOO_LARGE)
            return Arrive(job, payload=pieces, **said)
        try:
            return Arrive(job.evolve(payload=b"".join([piece async for piece in pieces])), **said)
        except (ObjectMissingError, ObjectDamagedError) as error:
            return error

    async def _remove(self, moves: Sequence[Move], taken: dict[str, Claim], arrived: dict[str, Job]) -> set[str]:
        """Remove jobs from the source, and return the ids of all that are gone there.

        A job that a worker has taken there meanwhile is removed from the destination again.
        """
        results = await self._each(self.source, [Depart(taken[move.job.id]) for move in moves])
        gone = set()
        for move, result in zip(moves, results, strict=True):
            if not isinstance(result, JQueueError):
                gone.add(move.job.id)
            elif isinstance(result, ClaimLostError):
                if await self._is_gone(move, arrived[move.job.id]):
                    gone.add(move.job.id)
            else:
                raise result
        return gone

    async def _is_gone(self, move: Move, arrived: Job) -> bool:
        """Return True if a job whose claim was lost is gone from the source.

        If a worker has the job there after all, it is removed from the destination again, unless it has finished
        there.
        """
        if await self._find(self.source, move.job.id) is None:
            return True  # another move has removed it
        if arrived.status is JobStatus.COMPLETED:
            return False
        [undone] = await self._each(self.dest, [Depart(arrived.claim)])
        if isinstance(undone, JQueueError) and not is_moving(arrived):
            try:
                await self.dest.cancel(move.job.id)
            except JQueueError:
                self._reasons_to_stay[move.job.id] = IN_BOTH
        return False

    async def _release(self, queue: SupportsApply, claims: Sequence[Claim]) -> None:
        if claims:
            await self._each(queue, [HandBack(tuple(claims))])

    async def _each(self, queue: SupportsApply, operations: Sequence[Operation]) -> list[Any]:
        """Carry out operations, each for itself, and resolve an unknown outcome."""
        if not operations:
            return []
        try:
            return await queue.apply_each(*operations)
        except UnknownOutcomeError as error:
            return list(await error.resolve())

    async def _find(self, queue: SupportsApply, job_id: str) -> Job | None:
        """Return a job, also if it finished a short while ago; None if it is not found."""
        [found] = await self._each(queue, [Find(job_id)])
        return found[0] if found else None

    def step(self, done: str) -> None:
        """Mark the end of a step of a batch. Tests kill the process here."""


def _turn_of_move(move: Move) -> Any:
    return turn_of(move.job)


def batches(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """Split moves into batches of limited size."""
    batch: list[Move] = []
    size = 0
    for move in moves:
        taken = payload_size(move.job)
        if batch and (len(batch) == BATCH_JOBS or size + taken > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(move)
        size += taken
    if batch:
        yield batch


def _error_text(error: object) -> str:
    """Return the reason why a job was refused: the same text for all jobs refused for the same reason."""
    if isinstance(error, QueueFullError):
        return FULL
    if isinstance(error, DuplicateJobError):
        return KEY_TAKEN
    if isinstance(error, JobStateError):
        return ID_TAKEN
    if isinstance(error, PayloadStays):
        return str(error)
    if isinstance(error, ObjectMissingError | ObjectDamagedError):
        return f"their payloads cannot be read: {error}"
    return f"DEST refused them: {error}"


def _preparation(limits: Limits) -> Preparation:
    def nothing(*_: object) -> Any:
        raise AssertionError("a job that arrives has an id, and no claim")

    return Preparation(limits, 0.0, nothing, nothing)
