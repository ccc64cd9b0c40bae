"""Changes to the object from outside our own processes: people with an editor, and a program with jqueue 1.0.0."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import timedelta
from typing import Any

from jqueue.testing.virtual_time import EPOCH
from tests.simulation.network import Network
from tests.simulation.schedule import Schedule

Content = dict[str, Any]
OLD_PROGRAM = "jqueue 1.0.0"


class Person:
    """A person who opens the object in an editor now and then, changes something, and saves it.

    Args:
        schedule: the schedule of the seed.
        network: the way to the object.
    """

    def __init__(self, schedule: Schedule, network: Network) -> None:
        self.network = network
        self.dice = schedule.dice("person")
        self.edits = 0
        self._schedule = schedule

    async def edit(self) -> bool:
        """Make one edit. Return True if it changed anything."""
        self.edits += 1
        self._schedule.reset(self.dice, f"edit {self.edits}")
        return self._schedule.takes_place(f"edit {self.edits}") and await self.network.edit(self._change)

    def _change(self, data: bytes) -> bytes | None:
        if not data:
            return None
        content: Content = json.loads(data)
        if isinstance(content["jobs"], list):
            return None
        edits = (_raise_priority, _add_job, _remove_job, _annotate, _add_broken_job, _reformat, _revive)
        self.dice.choice(edits)(content, self.dice, self.edits)
        indent = 4 if self.dice.random() < 0.2 else None
        return json.dumps(content, indent=indent, ensure_ascii=self.dice.random() < 0.5).encode()


def _of_status(content: Content, dice: random.Random, status: str) -> str | None:
    """Return the id of a random job with a status; None if there is none."""
    found = [job_id for job_id, job in content["jobs"].items() if isinstance(job, dict) and job.get("status") == status]
    return dice.choice(found) if found else None


def _raise_priority(content: Content, dice: random.Random, number: int) -> None:
    job_id = _of_status(content, dice, "queued")
    if job_id is not None:
        content["jobs"][job_id]["priority"] = -number


def _add_job(content: Content, dice: random.Random, number: int) -> None:
    content["jobs"][f"hand-made {number}"] = {"entrypoint": dice.choice("ab"), "payload": "", "note": "by hand"}


def _remove_job(content: Content, dice: random.Random, number: int) -> None:
    job_id = _of_status(content, dice, "queued")
    if job_id is not None and not content["jobs"][job_id].get("attempt"):  # otherwise its attempts would be lost
        del content["jobs"][job_id]


def _annotate(content: Content, dice: random.Random, number: int) -> None:
    content[f"note {number}"] = {"by": "a person", "why": "\u00e9\u2713"}


def _add_broken_job(content: Content, dice: random.Random, number: int) -> None:
    content["jobs"][f"broken {number}"] = {"entrypoint": 5, "payload": "not base64!"}


def _reformat(content: Content, dice: random.Random, number: int) -> None:
    content["jobs"] = dict(sorted(content["jobs"].items()))


def _revive(content: Content, dice: random.Random, number: int) -> None:
    job_id = _of_status(content, dice, "dead")
    if job_id is not None and "unique_key" not in content["jobs"][job_id]:
        content["jobs"][job_id].update(status="queued", failures=0)


def old_blob(dice: random.Random) -> bytes:
    """Return a blob as jqueue 1.0.0 leaves it: some jobs queued, some claimed, perhaps one of them twice."""
    jobs = [_old_job(f"old {number}", dice) for number in range(dice.randint(0, 4))]
    if jobs and dice.random() < 0.3:
        jobs.append(dict(jobs[0]))
    return json.dumps({"version": dice.randint(0, 9), "jobs": jobs}).encode()


def _old_job(job_id: str, dice: random.Random) -> Content:
    claimed = dice.random() < 0.4
    return {
        "id": job_id,
        "entrypoint": dice.choice("ab"),
        "payload": "",
        "status": "in_progress" if claimed else "queued",
        "priority": dice.choice([0, 0, 3]),
        "created_at": EPOCH.isoformat(),
        "heartbeat_at": (EPOCH - timedelta(seconds=dice.choice([1, 1000]))).isoformat() if claimed else None,
    }


class OldProgram:
    """A program with jqueue 1.0.0: it enqueues and finishes jobs until it finds a format that it refuses."""

    def __init__(self, schedule: Schedule, network: Network) -> None:
        self.network = network
        self.writes = 0
        self._schedule = schedule
        self._dice = schedule.dice(OLD_PROGRAM)

    async def run(self) -> None:
        """Run until the object has the new format, or a few writes are done."""
        for number in range(1, 8):
            self._schedule.reset(self._dice, f"{OLD_PROGRAM} {number}")
            await asyncio.sleep(self._dice.expovariate(1 / 2))
            if self._schedule.takes_place(f"write {number} of {OLD_PROGRAM}"):
                if not await self.network.edit(self._change, OLD_PROGRAM):
                    return
                self.writes += 1

    def _change(self, data: bytes) -> bytes | None:
        content: Content = json.loads(data)
        jobs = content["jobs"]
        if not isinstance(jobs, list):
            return None
        claimed = [job for job in jobs if job["status"] == "in_progress"]
        if claimed and self._dice.random() < 0.3:
            jobs = [job for job in jobs if job["id"] != claimed[0]["id"]]
        else:
            jobs = [*jobs, _old_job(f"old {100 + self.writes}", self._dice)]
        return json.dumps({"version": content["version"] + 1, "jobs": jobs}).encode()
