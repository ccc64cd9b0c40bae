"""Jobs moved from one queue to another, whatever the two are kept in: `migrate(source, dest)`.

A job is taken where it is, by a claim that no worker can have meanwhile; it is added there, as it is; it is removed
here; and then it can be had there. Killed between any two of these steps, what was done is recognised by the next run,
which finishes it. What the other queue has no place for is found before anything is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jqueue.core.migration.plan import WORDS, Move, Plan, Tally, plan, tallied
from jqueue.core.options import options_of
from jqueue.core.sets.same_place import is_same_place, name_of
from jqueue.domain.errors import (
    ClaimLostError,
    DuplicateJobError,
    InvalidJobError,
    JobStateError,
    JQueueError,
    QueueFullError,
    UnknownOutcomeError,
)
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim, Job, JobStatus, QueueState
from jqueue.domain.moving import MOVER, is_moving
from jqueue.domain.operations import Find, HandBack, Operation, Preparation
from jqueue.domain.operations.moving import Arrive, ArriveRules, Depart, RulesReceipt, Take
from jqueue.ports.queue import Operator, SupportsApply

BATCH_JOBS = 500
"""So many jobs go together: four commits for all of them, where a queue is one object."""

BATCH_BYTES = 4 << 20
"""So many bytes of payloads go together, or one job that has more."""

TAKEN = "they were taken by others while they were moved"
FULL = "DEST has no room for them"
KEY_TAKEN = "their unique key is taken at DEST"
ID_TAKEN = "DEST has, or had, another job with their id"
IN_BOTH = "they were revoked while they were moved, and are in both queues: cancel them in one"

Progress = Callable[[int, int], None]
"""Told how many jobs have been moved, of how many."""


@dataclass
class MigrationReport:
    """What was moved, and what was not.

    Attributes:
        dry_run: whether nothing was done, and this is what would have been.
        moved: jobs that were moved.
        resumed: those among them that a move before, cut short, had in hand.
        lost: what jobs have lost on the way, by capability.
        refused: why jobs stay where they are.
        in_progress: jobs that stay with the workers that have them.
        results: finished jobs that stay for their result.
        unreadable: lines that could not be read as jobs, and stay.
        keys_held: unique keys of finished jobs that are kept for a while, and stay.
        rules_taken: limits, settings and cron entries that hold at the other queue now.
        rules_kept: those that differ there, or that it cannot have.
        stopped: whether it was told to stop before its end.
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

    @property
    def complete(self) -> bool:
        """Whether no job stays that could have been worked on at the other queue."""
        return not (self.stopped or self.refused or self.in_progress or self.unreadable)


async def migrate(
    source: Operator,
    dest: Operator,
    *,
    dry_run: bool = False,
    lossy: bool = False,
    on_progress: Progress | None = None,
    stop: asyncio.Event | None = None,
) -> MigrationReport:
    """Move the jobs of a queue to another one, with all that both know of them, in their order.

    Programs may go on to use both. Jobs in the hands of workers stay with them; move them later. Limits, pauses and
    settings are copied and cron entries moved where the other queue can have them, and has none of that name. A move
    that was cut short is finished by the next one. One move at a time leads from a queue.

    Args:
        source: the queue that they leave.
        dest: the queue that they come to; it need not be there yet.
        dry_run: only say what would be done.
        lossy: move also jobs that lose something on the way which the other queue has no place for: a priority, a
            delay. Otherwise they stay.
        on_progress: told how many jobs have been moved, of how many.
        stop: once it is set, no further batch is begun.

    Raises:
        InvalidJobError: the two are one.
        StorageError: a store failed. What was under way is finished by the next move.
    """
    if is_same_place(source, dest):
        raise InvalidJobError("the two queues are one: there is nothing to move")
    return await Mover(source, dest, lossy=lossy, on_progress=on_progress, stop=stop).run(dry_run=dry_run)


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
        self._lost: list[tuple[str, str]] = []
        self._stay: dict[str, str] = {}

    async def run(self, *, dry_run: bool = False) -> MigrationReport:
        """Move what there is, and what comes while it is moved."""
        self._report.dry_run = dry_run
        await self._find(self.dest, "any")  # where it cannot be read, nothing is taken
        if not dry_run:
            await self._let_those_go_that_have_arrived()
        state = await self.source.read_state()
        await self._move_rules(state, only_look=dry_run)
        planned = self._plan(state)
        if dry_run:
            await self._foresee(planned)
        while not dry_run and planned.moves:
            moved = self._report.moved
            total = moved + len(planned.moves)
            for batch in batches(planned.moves):
                if self._stop.is_set():
                    break
                self._tell(self._report.moved, total)
                await self._move(batch)
            self._tell(self._report.moved, total)
            state = await self.source.read_state()
            planned = self._plan(state)
            if self._stop.is_set() or self._report.moved == moved:
                break
        return self._told(state, planned)

    def _plan(self, state: QueueState) -> Plan:
        found = plan(state, self.dest.capabilities, self._now(), lossy=self._lossy, holder=self._to)
        moves = [move for move in found.moves if move.job.id not in self._stay]
        return Plan(moves, found.refused, found.in_progress, found.results)

    def _now(self) -> datetime:
        return options_of(self.source).clock.now()

    def _told(self, state: QueueState, planned: Plan) -> MigrationReport:
        report, ids = self._report, {job.id for job in state.jobs}
        ids -= planned.refused.keys()
        stay = [(reason, job_id) for job_id, reason in self._stay.items() if job_id in ids]
        stay += [(reason, job_id) for job_id, reasons in planned.refused.items() for reason in reasons]
        if not report.dry_run and not self._stop.is_set():
            stay += [(TAKEN, move.job.id) for move in planned.moves]
        report.refused = tallied(stay)
        report.lost = tallied((WORDS[name], job_id) for name, job_id in self._lost)
        report.in_progress, report.results = planned.in_progress, planned.results
        report.unreadable = len(state.set_aside)
        now = self._now().timestamp()
        report.keys_held = sum(hold.until > now for hold in state.holds.values())
        report.stopped = self._stop.is_set()
        return report

    # What is not a job

    async def _move_rules(self, state: QueueState, *, only_look: bool) -> None:
        """Copy limits and settings, move cron entries: first the limits, so that nothing runs that is paused."""
        can = self.dest.capabilities
        said = [f"limits of {name}" for name in state.entrypoints] if not can.limits else []
        said += [f"cron entry {name}" for name in state.schedules] if not can.schedules else []
        said += ["aging"] if state.settings.aging is not None and not can.limits else []
        said += (
            ["how long dead jobs are kept"] if state.settings.dead_retention is not None and not can.retention else []
        )
        said += ["the size limit"] if state.settings.blob_bytes is not None and not can.size_limit else []
        self._report.rules_kept = tuple(said)
        if not (can.limits and can.schedules and can.retention):
            return
        if not (state.entrypoints or state.schedules or state.settings.model_dump(exclude_none=True)):
            return
        arriving = ArriveRules(state.entrypoints, state.settings, state.schedules, only_look)
        [receipt] = await self._each(self.dest, [arriving])
        if isinstance(receipt, JQueueError):
            raise receipt
        assert isinstance(receipt, RulesReceipt)
        self._report.rules_taken, self._report.rules_kept = receipt.taken, receipt.kept
        if not only_look:
            for name in receipt.schedules:
                await self.source.unschedule(name)

    # Jobs

    async def _foresee(self, planned: Plan) -> None:
        """What a move would come to, as far as that can be told without one."""
        limits = options_of(self.dest).limits
        there = {job.id: job for job in (await self.dest.read_state()).jobs}
        for move in planned.moves:
            found = there.get(move.job.id)
            if found is not None and not move.resumed and not is_moving(found) and not move.is_dead:
                self._stay[move.job.id] = ID_TAKEN
                continue
            try:
                Arrive(move.arriving).prepared(_preparation(limits))
            except InvalidJobError as error:
                self._stay[move.job.id] = _words(error)
                continue
            self._count(move)

    def _count(self, move: Move) -> None:
        self._report.moved += 1
        self._report.resumed += move.resumed
        self._lost += [(name, move.job.id) for name in move.lost]

    async def _let_those_go_that_have_arrived(self) -> None:
        """Jobs that a move before has brought, and had removed here, can be had there now."""
        if not self._held:
            return
        held = [job for job in (await self.dest.read_state()).jobs if is_moving(job) and job.holder == self._from]
        if held:
            here = {job.id for job in (await self.source.read_state()).jobs}
            await self._let_go(self.dest, [job.claim for job in held if job.id not in here])

    async def _move(self, batch: Sequence[Move]) -> None:
        """Take, add, remove, let go: each for all of a batch, and each finished before the next."""
        taken = await self._take(batch)
        self.step("taken")
        arrived = await self._add([move for move in batch if move.job.id in taken], taken)
        self.step("arrived")
        moves = [move for move in batch if move.job.id in arrived]
        gone = await self._remove(moves, taken, arrived)
        self.step("removed")
        claims = [job.claim for job_id, job in arrived.items() if job_id in gone and is_moving(job)]
        await self._let_go(self.dest, claims)
        self.step("let go")
        for move in moves:
            if move.job.id in gone:
                self._count(move)

    async def _take(self, batch: Sequence[Move]) -> dict[str, Claim]:
        """The claims on the jobs of a batch. What others were quicker with is left out."""
        fresh = [move.job for move in batch if not (move.resumed or move.is_dead)]
        found = {move.job.id: move.job.claim for move in batch if move.resumed or move.is_dead}
        for result in await self._each(self.source, [Take(job, self._to) for job in fresh]):
            if isinstance(result, list) and result:
                found[result[0].id] = result[0].claim
        return found

    async def _add(self, moves: Sequence[Move], taken: dict[str, Claim]) -> dict[str, Job]:
        """The jobs of a batch as they stand there. Those that were refused are let go here."""
        unwanted = [move for move in moves if move.reasons and await self._find(self.dest, move.job.id) is None]
        self._stay.update((move.job.id, move.reasons[0]) for move in unwanted)
        await self._let_go(self.source, [taken[move.job.id] for move in unwanted])
        moves = [move for move in moves if move not in unwanted]
        arrivals = [Arrive(move.arriving, resumed=move.resumed, held=self._held, holder=self._from) for move in moves]
        results = await self._each(self.dest, arrivals)
        arrived: dict[str, Job] = {}
        for move, result in zip(moves, results, strict=True):
            if isinstance(result, Job):
                arrived[move.job.id] = result
            else:
                self._stay[move.job.id] = _words(result)
        back = [taken[move.job.id] for move in moves if move.job.id not in arrived and not move.is_dead]
        await self._let_go(self.source, back)
        return arrived

    async def _remove(self, moves: Sequence[Move], taken: dict[str, Claim], arrived: dict[str, Job]) -> set[str]:
        """The ids of the jobs that are not here any more. Those that others have taken meanwhile are taken back."""
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
        """What to do if a claim did not hold: where a worker has the job here after all, there is none there."""
        if await self._find(self.source, move.job.id) is None:
            return True  # another move has removed it
        if arrived.status is JobStatus.COMPLETED:
            return False
        [undone] = await self._each(self.dest, [Depart(arrived.claim)])
        if isinstance(undone, JQueueError) and not is_moving(arrived):
            try:
                await self.dest.cancel(move.job.id)
            except JQueueError:
                self._stay[move.job.id] = IN_BOTH
        return False

    async def _let_go(self, queue: SupportsApply, claims: Sequence[Claim]) -> None:
        if claims:
            await self._each(queue, [HandBack(tuple(claims))])

    async def _each(self, queue: SupportsApply, operations: Sequence[Operation]) -> list[Any]:
        """Have operations done, each for itself, and make sure of it."""
        if not operations:
            return []
        try:
            return await queue.apply_each(*operations)
        except UnknownOutcomeError as error:
            return list(await error.resolve())

    async def _find(self, queue: SupportsApply, job_id: str) -> Job | None:
        """A job, also if it was finished a short while ago."""
        [found] = await self._each(queue, [Find(job_id)])
        return found[0] if found else None

    def step(self, done: str) -> None:
        """Something has been done for a batch. Tests end the process here."""


def batches(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """Moves in lots that are not too large."""
    batch: list[Move] = []
    size = 0
    for move in moves:
        if batch and (len(batch) == BATCH_JOBS or size + len(move.job.payload) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(move)
        size += len(move.job.payload)
    if batch:
        yield batch


def _words(error: object) -> str:
    """Why a job was refused, the same for all that were refused for it."""
    if isinstance(error, QueueFullError):
        return FULL
    if isinstance(error, DuplicateJobError):
        return KEY_TAKEN
    if isinstance(error, JobStateError):
        return ID_TAKEN
    return f"DEST refused them: {error}"


def _preparation(limits: Limits) -> Preparation:
    def nothing(*_: object) -> Any:
        raise AssertionError("a job that arrives has an id, and no claim")

    return Preparation(limits, 0.0, nothing, nothing)
