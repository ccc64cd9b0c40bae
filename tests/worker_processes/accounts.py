"""Account for every job: compare the history of the queue with the journals of handlers and the ends of workers."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.worker_processes.claim_history import Claim, End, Lives
from tests.worker_processes.journal import BEGINS, ENDS, Line
from tests.worker_processes.processes import Fate


class Accounts:
    """One run, from its three sources: the history, the journals and the ends of the processes.

    Args:
        lives: the jobs and claims of the history.
        journals: the lines that the handlers of each process wrote.
        fates: the end of each process.
        threads: entrypoints whose handlers run in threads, which can only be asked to stop.
    """

    def __init__(
        self,
        lives: Lives,
        journals: Mapping[str, Sequence[Line]],
        fates: Mapping[str, Fate],
        threads: frozenset[str] = frozenset(),
    ) -> None:
        self._lives = lives
        self._fates = fates
        self._threads = threads
        self._said: dict[tuple[str, int], list[tuple[str, Line]]] = defaultdict(list)
        for name, lines in journals.items():
            for line in lines:
                self._said[line.job_id, line.attempt].append((name, line))

    def faults(self, expected: Iterable[str], waiting: Iterable[str] = ()) -> list[str]:
        """Return a description of everything that is wrong.

        Args:
            expected: the ids of the enqueued jobs that must be done once.
            waiting: the ids of all other enqueued jobs, which wait at the end.
        """
        found = list(self._lives.faults)
        found += self._jobs(set(expected), set(waiting))
        for claim in self._lives.claims.values():
            found += (f"{claim}: {fault}" for fault in self._claim(claim))
        for job_id, attempt in self._said.keys() - self._lives.claims.keys():
            found.append(f"a handler began {job_id}/{attempt}, which was not claimed")
        for name, fate in self._fates.items():
            if not _ended_well(fate):
                found.append(f"{name} ended unexpectedly: {fate}")
        return found

    def _jobs(self, expected: set[str], waiting: set[str]) -> Iterator[str]:
        lives = self._lives
        for job_id in expected | waiting | lives.enqueued.keys():
            counts = lives.enqueued[job_id], lives.acked[job_id]
            if job_id not in expected | waiting:
                yield f"job {job_id} is in the history, but was never enqueued"
            elif counts != (1, 0 if job_id in waiting else 1):
                yield f"job {job_id} came into the queue {counts[0]} times, and was acked {counts[1]} times"

    def _claim(self, claim: Claim) -> Iterator[str]:
        said = self._said.get((claim.job_id, claim.attempt), [])
        if any(name != claim.by for name, _ in said):
            yield f"another process worked on it: {said}"
        kinds = Counter(line.what for _, line in said)
        if kinds[BEGINS] > 1 or kinds[ENDS] > kinds[BEGINS]:
            yield f"its handler wrote {dict(kinds)}"
        fate = self._fates.get(claim.by)
        if claim.end is None or fate is None:
            yield "the claim has no end, or its process is unknown"
        elif claim.end is End.ACKED:
            yield from self._acked(claim, said)
        else:
            yield from self._not_acked(claim, fate, said)

    def _acked(self, claim: Claim, said: Sequence[tuple[str, Line]]) -> Iterator[str]:
        ends = [line.at for _, line in said if line.what == ENDS]
        if claim.ended_by != claim.by:
            yield "another process acked it"
        if not ends:
            yield "its handler has not ended"
        elif ends[0] > claim.ended_at:
            yield f"its handler ended {ends[0] - claim.ended_at:.3f} s after its ack was sent"

    def _not_acked(self, claim: Claim, fate: Fate, said: Sequence[tuple[str, Line]]) -> Iterator[str]:
        ends = [line.at for _, line in said if line.what == ENDS]
        told = fate.told_at is not None and bool(ends) and fate.told_at <= ends[0]
        # A thread that finishes after the stop may have exceeded the grace: then its job is handed back all the same.
        finished_too_late = told and claim.entrypoint in self._threads
        if ends and fate.killed_at is None and not finished_too_late:
            yield f"its handler had ended, and {claim.by} was not killed: the job is done twice"
        if claim.end is End.CHARGED and (fate.killed_at is None or claim.ended_at < fate.killed_at):
            yield f"{claim.by} was not killed, or not yet, and it is charged: {claim.error}"


def _ended_well(fate: Fate) -> bool:
    """True if the process was killed or exited with 0.

    An exit by SIGTERM is expected only before the worker handles signals and after it has logged its stop.
    """
    if fate.killed_at is not None:
        return True
    without_handlers = not fate.started or (fate.hurried and fate.stopped)
    return fate.exit_code == 0 or (without_handlers and fate.exit_code == -signal.SIGTERM)
