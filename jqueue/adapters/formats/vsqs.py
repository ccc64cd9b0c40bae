"""vsqs: a folder for each queue, a file for each message, named by its time; docs/formats.md has the format.

    1795313466137003                     ready
    1795313466137003.new                 being written
    1795313466137003.1795313467140262    claimed, or put off, until that time

Every change of a message is one rename or removal of exactly the name that it was seen by, which the file system lets
one program do. So programs of vsqs and of jqueue can work on one folder at a time. What the format has no place for is
kept in a note with each file (`jqueue.adapters.formats._notes`), dead jobs in a folder that vsqs does not look into.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from jqueue.adapters.formats._notes import read_note, write_note
from jqueue.domain.errors import StorageFatalError
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.places import PLACES
from jqueue.ports.job_store import Change, Kept, Lost, Outcome, Step
from jqueue.ports.queue import Capabilities

CAPABILITIES = Capabilities(
    priority=False,
    expiry=False,
    job_ids=False,
    unique_keys=False,
    transactions=False,
    size_limit=False,
    cancel_running=False,
    reschedule=False,
    limits=False,
    retention=False,
    results=False,
    schedules=False,
    staged=False,
    holders=False,
)

VISIBILITY_TIMEOUT = 10.0
"""Seconds that vsqs hides a message by default: taken for claims that do not say how long they are meant to last."""

MILLISECONDS_BELOW = 10**14
"""Smaller numbers are milliseconds, as the documentation of vsqs has them; others microseconds, as vsqs 0.3 writes."""

DEAD = ".jqueue-dead"
MORE_NOTES = ".jqueue-notes"
ACKED = ".jqueue-acked"
ACKED_KEPT, ACKED_BYTES = 1_000, 200_000
RESERVED = ".new"

_NAME = re.compile(r"(0|[1-9][0-9]*)(?:\.([0-9]+)(?:\.[0-9]+)?)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_SURE = 0.05
"""Seconds after which a folder whose time has not moved has not changed: file systems count time in ticks."""


def _microseconds(number: int) -> int:
    return number * 1000 if number < MILLISECONDS_BELOW else number


def _number(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _moment(number: int) -> datetime:
    try:
        return _EPOCH + _microseconds(number) * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


class VsqsFolder:
    """A queue of vsqs as a store of jobs.

    Args:
        path: of the folder; it is made with the first job.
        entrypoint: of messages that vsqs itself has published; the name of the folder by default.
        fsync: whether a job is on the disk before its enqueue returns, as vsqs sees to it.
    """

    capabilities = CAPABILITIES
    knows_expiry = True

    def __init__(self, path: str | os.PathLike[str], *, entrypoint: str | None = None, fsync: bool = True) -> None:
        self.path = Path(path)
        self.entrypoint = entrypoint or self.path.absolute().name
        self._fsync = fsync
        self._last = 0
        self._seen: tuple[int, float] | None = None

    def __repr__(self) -> str:
        return f"VsqsFolder({str(self.path)!r})"

    @property
    def name(self) -> str:
        """The path of the folder."""
        return str(self.path.absolute())

    def exists(self) -> bool:
        """Whether there is a folder."""
        return self.path.exists()

    def has_moved(self) -> bool:
        """Whether the folder may have changed since the last scan."""
        try:
            modified = os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            modified = 0
        return self._seen is None or modified != self._seen[0] or modified / 1e9 + _SURE > self._seen[1]

    def scan(self, now: datetime) -> list[Kept]:
        """Every message, and every dead job."""
        self._seen = self._folder_time(), now.timestamp()
        found = []
        for name in (*self._listed(self.path), *(f"{DEAD}/{name}" for name in self._listed(self.path / DEAD))):
            try:
                job = self._job(name)
            except FileNotFoundError:
                continue  # it was claimed in this moment, and is there by another name
            if job is not None:
                found.append(Kept(job, name))
        return sorted(found, key=lambda kept: kept.job.sequence)

    def payloads(self, jobs: Sequence[Kept]) -> list[Job]:
        """The jobs with their payloads."""
        found = []
        for job, name in jobs:
            try:
                found.append(job.evolve(payload=(self.path / name).read_bytes()))
            except FileNotFoundError:
                continue
        return found

    def finished(self) -> dict[str, int]:
        """Jobs that jqueue has acked of late, by any process."""
        try:
            lines = (self.path / ACKED).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        pairs = (line.rpartition(" ") for line in lines[-ACKED_KEPT:])
        return {job_id: int(attempt) for job_id, _, attempt in pairs if attempt.isdigit()}

    def carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Do each change by itself."""
        outcomes: list[Outcome] = []
        for change in changes:
            try:
                outcomes.append(self._steps[change.step](self, change, now))
            except (FileNotFoundError, Lost):
                outcomes.append(Lost())
            except OSError as error:
                outcomes.append(error)
        if self._fsync and any(change.step is Step.ADD for change in changes):
            self._flush()
        return outcomes

    # What is there

    def _listed(self, folder: Path) -> Iterator[str]:
        try:
            yield from os.listdir(folder)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise StorageFatalError(
                f"{str(folder)!r} is no folder: a queue of vsqs is a folder with a file for each job"
            ) from None

    def _folder_time(self) -> int:
        try:
            return os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            return 0

    def _job(self, name: str) -> Job | None:
        """The message of a name; None if that is none of vsqs."""
        dead = name.startswith(f"{DEAD}/")
        found = _NAME.fullmatch(name.removeprefix(f"{DEAD}/"))
        if found is None:
            return None
        number, until = int(found[1]), None if found[2] is None else int(found[2])
        note = read_note(str(self.path / name))
        values: dict[str, Any] = {
            "id": note.get("id", found[1]),
            "entrypoint": note.get("entrypoint", self.entrypoint),
            "payload": b"",
            "created_at": _moment(note.get("created", number)),
            "sequence": min(_microseconds(number), PLACES),
            "attempt": note.get("attempt", 0),
            "failures": note.get("failures", 0),
            "max_attempts": note.get("max_attempts"),
            "headers": note.get("headers", {}),
            "error": note.get("error"),
            "run_at": None if "run_at" not in note else _moment(note["run_at"]),
        }
        if dead:
            values |= {"status": JobStatus.DEAD, "dead_at": _moment(note.get("dead_at", number))}
        elif until is not None and note.get("due") == until:
            values["run_at"] = _moment(until)
        elif until is not None:
            ours = note.get("until") == until
            timeout = note.get("claim_timeout", VISIBILITY_TIMEOUT) if ours else VISIBILITY_TIMEOUT
            values |= {
                "status": JobStatus.IN_PROGRESS,
                "attempt": max(1, values["attempt"]) if ours else values["attempt"] + 1,
                "heartbeat_at": _moment(until) - timedelta(seconds=timeout),
                "claim_timeout": timeout,
            }
        return Job(**values)

    # What is done

    def _add(self, change: Change, now: datetime) -> Kept:
        job = _after(change)
        self.path.mkdir(parents=True, exist_ok=True)
        number, reserved = self._reserve(now, job.payload)
        due = None if job.run_at is None else _number(job.run_at)
        created = _number(job.created_at)
        self._write_note(reserved.name, self._note(job.evolve(sequence=number), created=created, due=due))
        return self._kept(self._rename(reserved.name, _name(number, due)), job.payload)

    def _claim(self, change: Change, now: datetime) -> Kept:
        before, job = change.before, _after(change)
        assert before is not None
        timeout = job.claim_timeout or VISIBILITY_TIMEOUT
        until = _number(now + timedelta(seconds=timeout))
        name = self._rename(change.place, _name(_number_of(change.place), until))
        path = str(self.path / name)
        note = read_note(path)
        attempt = max(job.attempt, note.get("attempt", 0) + 1)  # it may have been claimed and handed back meanwhile
        job = job.evolve(attempt=attempt, failures=note.get("failures", 0) + 1)
        created = note.get("created")
        self._write_note(name, self._note(job, until=until, claim_timeout=timeout, created=created))
        return self._kept(name, Path(path).read_bytes())

    def _prolong(self, change: Change, now: datetime) -> Kept:
        job = _after(change)
        _, _, before = change.place.partition(".")
        later = now + timedelta(seconds=job.claim_timeout or VISIBILITY_TIMEOUT)
        until = max(_number(later), int(before.partition(".")[0]) + 1)
        self._annotate(change.place, until=until)
        return self._kept(self._rename(change.place, _name(_number_of(change.place), until)), job.payload)

    def _release(self, change: Change, now: datetime) -> Kept:
        before, job = change.before, _after(change)
        assert before is not None
        due = None if job.run_at is None else _number(job.run_at)
        self._annotate(change.place, until=None, due=due, run_at=due, failures=job.failures, error=job.error)
        if job.sequence == before.sequence:
            return self._kept(self._rename(change.place, _name(_number_of(change.place), due)), job.payload)
        return self._rename_to_the_back(change.place, job, now, due)

    def _bury(self, change: Change, now: datetime) -> Kept:
        job = _after(change)
        (self.path / DEAD).mkdir(exist_ok=True)
        dead_at = _number(job.dead_at or now)
        self._annotate(change.place, until=None, failures=job.failures, error=job.error, dead_at=dead_at)
        return self._kept(self._rename(change.place, f"{DEAD}/{_number_of(change.place)}"), job.payload)

    def _revive(self, change: Change, now: datetime) -> Kept:
        job = _after(change)
        self._annotate(change.place, failures=job.failures, dead_at=None, due=None)
        return self._rename_to_the_back(change.place, job, now)

    def _remove(self, change: Change, now: datetime) -> Kept:
        job = change.before
        assert job is not None
        path = self.path / change.place
        payload = job.payload if job.status is JobStatus.IN_PROGRESS else path.read_bytes()
        os.unlink(path)
        with suppress(FileNotFoundError):
            os.unlink(self.path / MORE_NOTES / str(_number_of(change.place)))
        if change.acked:
            self._remember(job)
        return Kept(job.evolve(payload=payload), "")

    def _remember(self, job: Job) -> None:
        path = self.path / ACKED
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{job.id} {job.attempt}\n")
            size = file.tell()
        if size > ACKED_BYTES:
            lines = [f"{job_id} {attempt}\n" for job_id, attempt in self.finished().items()]
            part = path.with_name(f"{ACKED}.part")
            part.write_text("".join(lines), encoding="utf-8")
            part.replace(path)

    def _change(self, change: Change, now: datetime) -> Kept:
        raise Lost

    _steps: ClassVar[dict[Step, Callable[[VsqsFolder, Change, datetime], Kept]]] = {
        Step.ADD: _add,
        Step.CLAIM: _claim,
        Step.PROLONG: _prolong,
        Step.RELEASE: _release,
        Step.BURY: _bury,
        Step.REVIVE: _revive,
        Step.REMOVE: _remove,
        Step.CHANGE: _change,
    }

    # How it is done

    def _reserve(self, now: datetime, content: bytes) -> tuple[int, Path]:
        """A number behind all others that nobody else will use, and the file that reserves it."""
        number = max(_number(now), self._last + 1)
        while True:
            path = self.path / f"{number}{RESERVED}"
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
                break
            except FileExistsError:
                number += 1
        self._last = number
        with open(descriptor, "wb") as file:
            file.write(content)
            if self._fsync and content:
                file.flush()
                os.fsync(file.fileno())
        return number, path

    def _rename(self, old: str, new: str) -> str:
        """Give a file another name, if it still has the one that it was seen by.

        Raises:
            FileNotFoundError: it has not.
        """
        os.rename(self.path / old, self.path / new)
        return new

    def _rename_to_the_back(self, old: str, job: Job, now: datetime, due: int | None = None) -> Kept:
        number, reserved = self._reserve(now, b"")
        try:
            return self._kept(self._rename(old, _name(number, due)), job.payload)
        finally:
            os.unlink(reserved)

    def _annotate(self, name: str, **values: Any) -> None:
        self._write_note(name, {**read_note(str(self.path / name)), **values})

    def _write_note(self, name: str, note: dict[str, Any]) -> None:
        number = note.get("created") or _number_of(name)
        write_note(str(self.path / name), note, str(self.path / MORE_NOTES / str(number)))

    def _kept(self, name: str, payload: bytes) -> Kept:
        """A job as whoever looks sees it now."""
        job = self._job(name)
        assert job is not None
        return Kept(job.evolve(payload=payload), name)

    @staticmethod
    def _note(job: Job, **values: Any) -> dict[str, Any]:
        return {
            "id": job.id,
            "entrypoint": job.entrypoint,
            "headers": dict(job.headers) or None,
            "max_attempts": job.max_attempts,
            "attempt": job.attempt or None,
            "failures": job.failures or None,
            "error": job.error,
            "run_at": None if job.run_at is None else _number(job.run_at),
            **values,
        }

    def _flush(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _after(change: Change) -> Job:
    assert change.after is not None
    return change.after


def _name(number: int, until: int | None) -> str:
    return str(number) if until is None else f"{number}.{until}"


def _number_of(place: str) -> int:
    return int(place.removeprefix(f"{DEAD}/").partition(".")[0])
