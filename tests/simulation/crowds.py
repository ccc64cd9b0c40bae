"""The actor that stands for many callers of one queue object: they enqueue, claim and ack at once.

So one commit has runs of like operations, which the queue applies in one pass.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from jqueue.domain.errors import DeadlineExceededError, UnknownOutcomeError
from jqueue.domain.job import Claim
from jqueue.domain.models import Job
from tests.simulation.actors import CLAIM_TIMEOUTS, LOST
from tests.simulation.chain import Version
from tests.simulation.history import Call, Evidence
from tests.simulation.workload import CHOSEN_ID, Actor

IMPATIENT = 0.06
"""Share of the callers that leave before their dequeue is answered."""


class Crowd(Actor):
    """Enqueues many jobs, claims many and acks many, each by a call of its own, and all at the same time."""

    async def act(self) -> None:
        """Take the steps."""
        self.held: list[Job] = []
        await super().act()

    async def step(self) -> None:
        """Make some rounds of calls."""
        for number in range(self.dice.choice([1, 2, 3])):
            ends = self._ends() if self.dice.random() < 0.9 else []
            enqueues = self._enqueues(f"-{number}") if self.dice.random() < 0.7 else []
            dequeues = [self._dequeues()] if self.dice.random() < 0.85 else []
            await asyncio.gather(*ends, *enqueues, *dequeues)

    def _enqueues(self, suffix: str) -> list[Awaitable[None]]:
        ids = [f"{self.moment}{suffix}-{number}" for number in range(self.dice.choice([2, 6, 16]))]
        entrypoint, dice = self.entrypoint(), self.dice
        options: list[dict[str, Any]] = [{}, {}, {}, {}, {}, {}, {"max_attempts": 3}]
        return [self._enqueue(job_id, entrypoint, dice.choice([0, 0, 0, 5]), **dice.choice(options)) for job_id in ids]

    async def _enqueue(self, job_id: str, entrypoint: str, priority: int, **options: Any) -> None:
        """Enqueue a job whose id the queue draws, as most callers do: a run has only jobs with new ids."""
        payload = b"for " + job_id.encode()
        CHOSEN_ID.set([job_id])
        work = self.queue.enqueue(entrypoint, payload, priority, **options)
        given = {"priority": priority, **options}
        job = await self.call("enqueue", work, job_ids=(job_id,), given=given)
        if isinstance(job, Job):
            self.world.made.append(job_id)

    async def _dequeues(self) -> None:
        """Claim by several equal dequeues, which are recorded as one call for all their jobs."""
        dice = self.dice
        entrypoint, callers, size = dice.choice([*"ab", None]), dice.choice([2, 5, 12]), dice.choice([1, 1, 1, 3])
        tag = dice.choice(CLAIM_TIMEOUTS) + self.world.tag() / 10_000
        patience = [dice.uniform(0, 0.3) if number and dice.random() < IMPATIENT else None for number in range(callers)]
        works = [self._dequeue(entrypoint, size, tag, seconds) for seconds in patience]
        jobs = await self.call("dequeue", _all_of(works), entrypoint=entrypoint, operations=callers)
        if isinstance(jobs, list):
            self.held += jobs

    async def _dequeue(self, entrypoint: str | None, size: int, tag: float, patience: float | None) -> list[Job] | None:
        """Return the claimed jobs; None if the caller left before the answer."""
        try:
            async with asyncio.timeout(patience):
                return await self.queue.dequeue(entrypoint, batch_size=size, claim_timeout=tag)
        except DeadlineExceededError:  # which is a `TimeoutError`, too
            raise
        except TimeoutError:
            return None

    def _ends(self) -> list[Awaitable[Any]]:
        """Return the calls that end the claims of all jobs: most are acked, some twice, and some given back."""
        calls: list[Awaitable[Any]] = []
        for job in self.held:
            match self.dice.random():
                case chance if chance < 0.85:
                    twice = self.dice.random() < 0.1
                    calls += [self._ack(job) for _ in range(1 + twice)]
                case chance if chance < 0.95:
                    tag = f"nack {self.world.tag()}"
                    work = self.queue.nack(job, error=tag)
                    calls.append(self.call("nack", work, claims=(job.claim,), expected=LOST))
        self.held = []
        return calls

    async def _ack(self, job: Job) -> None:
        await self.call("ack", self.queue.ack(job), claims=(job.claim,), expected=LOST)


async def _all_of(works: Sequence[Awaitable[list[Job] | None]]) -> list[Job]:
    """Await calls, and return the jobs of all that were answered.

    If none was answered, raise the error of one: an unknown outcome if there is one.
    """
    answers = await asyncio.gather(*works, return_exceptions=True)
    found = [answer for answer in answers if isinstance(answer, list)]
    errors = sorted((each for each in answers if isinstance(each, BaseException)), key=_is_certain)
    if errors and not found:
        raise errors[0]
    return [job for jobs in found for job in jobs]


def _is_certain(error: BaseException) -> bool:
    return not isinstance(error, UnknownOutcomeError)


def count_runs(evidence: Evidence, made: Mapping[Call, Sequence[tuple[Claim, Version]]]) -> Counter[str]:
    """Return how often one commit answered several callers of a crowd, by what they got."""
    seen: Counter[str] = Counter()
    for call in evidence.calls.by_verb["dequeue"]:
        if call.operations > 1:
            together: dict[int, list[str]] = defaultdict(list)
            for claim, version in made.get(call, ()):
                together[version.index].append(claim.job_id)
            for place, job_ids in together.items():
                before = evidence.versions[place - 1].rows if place else {}
                seen["jobs claimed together"] += len(job_ids) > 1
                seen["rows claimed together"] += len(before.keys() & job_ids) > 1
    return seen
