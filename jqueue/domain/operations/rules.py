"""Operations that set rules: limits and pauses of entrypoints, the settings of a queue, and cron entries.

An entry records the occurrences that were fired. Firing it, which every dequeue does in its own commit, enqueues one
job and records the occurrence in one commit. So every occurrence is enqueued once, whatever the number of workers and
whatever their clocks show. There is no scheduler process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from jqueue.domain.cron import check_cron, last_until, next_after
from jqueue.domain.draft import Draft, take_space
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import InvalidJobError, QueueFullError, SegmentDamagedError, shown
from jqueue.domain.fields import COUNT_MAX, Duration, Name, Positive, Priority32
from jqueue.domain.job import ENCODINGS, JobRecord
from jqueue.domain.job_options import SCHEDULE_OPTIONS
from jqueue.domain.limits import check_headers, check_integer, check_name, exact, schedule_bytes
from jqueue.domain.operations.base import Operation, Preparation
from jqueue.domain.operations.enqueue import AddsJobs, Enqueue
from jqueue.domain.rules import (
    CRON_PAUSE,
    SETTINGS,
    EntrypointRules,
    Fired,
    QueueSettings,
    Schedule,
    as_shown,
    given,
    is_behind,
    is_pending,
    next_time,
    passed_by,
    with_clock,
    with_fired,
    without_missed,
)

_NEEDS = {
    "dead_retention": "retention",
    "blob_bytes": "size_limit",
    "history": "history",
    "history_payloads": "history",
}
"""The capability that each setting of a queue needs."""

_DURATIONS = ("dead_retention", "history")


Unchanged = msgspec.UnsetType
"""The type of `UNCHANGED`."""

UNCHANGED: Final = msgspec.UNSET
"""Stands for a setting that stays as it is."""


SetBy = Literal["", "program", "operator"]
"""The origin of a rule. An operator's stays: a worker that starts and declares another value changes nothing.

The value without a name is an order of the moment: it takes effect, and the next declaration replaces it.
"""


def _checked(by: object) -> SetBy:
    """Return the origin of a rule.

    Raises:
        InvalidJobError: it is something else.
    """
    for each in get_args(SetBy):
        if each == by:
            origin: SetBy = each
            return origin
    raise InvalidJobError(f"by must be one of {get_args(SetBy)}, got {shown(by)}")


class _OnEntrypoint(Operation, frozen=True):
    """Base of the operations on the rules of an entrypoint."""

    always_needs: ClassVar[tuple[str, ...]] = ("limits",)
    checked_names: ClassVar[tuple[str, ...]] = ("entrypoint",)

    entrypoint: Name


class Pause(_OnEntrypoint, frozen=True):
    """Pause an entrypoint: no job of it is claimed until it is resumed. Jobs in progress go on; enqueue takes more."""

    def change(self, draft: Draft, now: datetime) -> None:
        """Set the pause.

        Raises:
            QueueFullError: too many entrypoints have limits or pauses.
        """
        draft.change_rules(self.entrypoint, paused=True)


class Resume(_OnEntrypoint, frozen=True):
    """End a pause."""

    def change(self, draft: Draft, now: datetime) -> None:
        """Lift the pause."""
        draft.change_rules(self.entrypoint, paused=False)


class SetLimits(_OnEntrypoint, frozen=True):
    """Set the limits of an entrypoint. They replace its former limits; a pause stays.

    Attributes:
        entrypoint: the name of the entrypoint.
        running: number of its jobs that may be in progress at once; None means any number.
        rate: number of its jobs that may be claimed within any time of length `per`; None means any number.
        per: the window of `rate`, a timedelta or seconds: more than 0, given if `rate` is.
        key_rate: the same for its jobs with the same `concurrency_key`, or if they have none, `fair_key`.
        key_per: the window of `key_rate`.
        by: "operator" for limits that stay until `Reset`; "program" for limits that a program declares at each start.
    """

    running: Positive | None = None
    rate: Positive | None = None
    per: Duration | None = None
    key_rate: Positive | None = None
    key_per: Duration | None = None
    by: SetBy = ""

    def prepared(self, preparation: Preparation) -> SetLimits:
        """Return the operation, checked, with the window in seconds."""
        checked = super().prepared(preparation)
        running = None if self.running is None else check_integer("running", self.running, 1, COUNT_MAX)
        rate, per = _checked_rate("rate", self.rate, "per", self.per)
        key_rate, key_per = _checked_rate("key_rate", self.key_rate, "key_per", self.key_per)
        rates = {"rate": rate, "per": per, "key_rate": key_rate, "key_per": key_per}
        return replace(checked, running=running, **rates, by=_checked(self.by))

    def change(self, draft: Draft, now: datetime) -> EntrypointRules | None:
        """Set the limits. Earlier claims count too, if the entrypoint had a rate limit when they were made.

        Returns:
            The rules that hold, for a program that declares its own.

        Raises:
            QueueFullError: too many entrypoints have limits or pauses.
        """
        windows = {name: getattr(self, name) for name in ("per", "key_per")}
        limits: dict[str, Any] = {each: None if per is None else to_seconds(each, per) for each, per in windows.items()}
        limits |= {"max_running": self.running, "rate": self.rate, "key_rate": self.key_rate}
        before = draft.header.entrypoints.get(self.entrypoint, EntrypointRules())
        if self.by == "program" and before.declared is not None:
            limits = {"declared": EntrypointRules(**limits)}
        elif self.by == "operator" and before.declared is None:
            limits["declared"] = EntrypointRules(**given(before))
        draft.change_rules(self.entrypoint, **limits)
        return draft.header.entrypoints.get(self.entrypoint) if self.by == "program" else None


def _checked_rate(name: str, rate: object, of_window: str, per: Any) -> tuple[int | None, float | None]:
    if (rate is None) != (per is None):
        together = f"{name}=100, {of_window}=60 means 100 jobs a minute"
        raise InvalidJobError(f"give {name} and {of_window} together: {together}")
    if rate is None:
        return None, None
    seconds = to_seconds(of_window, per)
    if not seconds:
        raise InvalidJobError(f"{of_window} must be more than 0 seconds")
    return check_integer(name, rate, 1, COUNT_MAX), seconds


class Configure(Operation, frozen=True, kw_only=True):
    """Change settings of the queue as a whole. Its result is the new `QueueSettings`.

    Attributes:
        dead_retention: time for which dead jobs are kept; None: until they are purged.
        blob_bytes: the size limit of the blob, for every writer; None: each writer uses its own `Limits`.
        history: time for which the events of jobs are kept; None: no history is kept.
        history_payloads: True if the history keeps the payloads of enqueued jobs, up to 64 KiB each.
    """

    dead_retention: Duration | Unchanged | None = UNCHANGED
    blob_bytes: Positive | Unchanged | None = UNCHANGED
    history: Duration | Unchanged | None = UNCHANGED
    history_payloads: bool | Unchanged = UNCHANGED

    def prepared(self, preparation: Preparation) -> Configure:
        """Return the operation, checked, with durations in seconds."""
        edits = self._given()
        checked: dict[str, Any] = {
            name: None if edits[name] is None else to_seconds(name, edits[name]) for name in _DURATIONS if name in edits
        }
        if checked.get("history") == 0:
            raise InvalidJobError("history must be more than 0 seconds, or None")
        if edits.get("blob_bytes") is not None:
            checked["blob_bytes"] = check_integer("blob_bytes", edits["blob_bytes"], 1, COUNT_MAX)
        if not isinstance(edits.get("history_payloads", False), bool):
            raise InvalidJobError(f"history_payloads must be True or False, got {shown(self.history_payloads)}")
        return replace(self, **checked)

    @property
    def history_on(self) -> bool:
        """True if it asks for a history."""
        return self.history is not None and not isinstance(self.history, Unchanged)

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield one capability for each given setting."""
        yield from (_NEEDS[name] for name in self._given())

    def change(self, draft: Draft, now: datetime) -> QueueSettings:
        """Change the given settings."""
        draft.set_settings(draft.header.settings.evolve(**self._given()))
        return draft.header.settings

    def _given(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in settings.items() if not isinstance(value, Unchanged)}


SCHEDULED_FOR = "jqueue-scheduled-for"
"""The job header with the time of the occurrence for which the job was enqueued."""

CLOCK_WAS_WRONG = timedelta(days=1)
"""If an older version's entry is due later than it should be by this much, a clock that was far ahead has fired it."""

_SPARE_NAME = 64
"""Number of bytes of a job's id that are kept free for its prefix and its time, besides the entry's name."""


def fire_due(draft: Draft, now: datetime) -> None:
    """Enqueue the jobs of the cron entries that are due: one job each, whatever the number of missed times.

    An entry that this machine cannot read (its time zone is unknown here) waits for a machine that can. An entry
    whose job has no room waits for room. If a damaged segment may hold its job, it waits until the segment is restored.
    """
    pending = [each for each in draft.header.schedules.values() if is_pending(each, now)]
    for schedule in sorted(pending, key=lambda each: each.name):  # whatever their order in the table
        try:
            if is_behind(schedule, now):
                # This clock is behind all spans of the entry, and nothing is due yet. With a span for this clock,
                # later dequeues can tell the occurrences after `now` from those before it.
                after = with_clock(schedule, now)
            else:
                occurrence = last_until(schedule.cron, schedule.timezone, next_time(schedule, now), now)
                after = with_fired(schedule, occurrence, now)
                _enqueue_of(schedule, occurrence).change(draft, now)
        except (InvalidJobError, QueueFullError, SegmentDamagedError):
            continue
        draft.note(draft.header.schedules, schedule.name, after)


def _enqueue_of(schedule: Schedule, occurrence: datetime, new_id: str = "") -> Enqueue:
    """Return the enqueue of the job of an occurrence.

    Args:
        schedule: the entry.
        occurrence: the time.
        new_id: id of the job if it is not that of the occurrence. The key of the entry must not be taken then.
    """
    moment = occurrence.isoformat()
    options: dict[str, Any] = {name: getattr(schedule, name) for name in SCHEDULE_OPTIONS}
    options["headers"] = {**schedule.headers, SCHEDULED_FOR: moment}
    if new_id:
        options |= {"new_id": new_id, "on_conflict": "raise"}
    else:
        options["job_id"] = id_of(schedule, occurrence)
    return Enqueue(schedule.entrypoint, schedule.payload, **options)


def id_of(schedule: Schedule, occurrence: datetime) -> str:
    """Return the id of the job of an occurrence."""
    return f"cron:{schedule.name}:{occurrence.isoformat()}"


class SetSchedule(AddsJobs, frozen=True):
    """Set a cron entry. Its result is the `Schedule`, with its next time by this commit's clock. An equal entry stays.

    Its other arguments are the options of `schedule`.

    Attributes:
        name: unique in the queue.
        cron: the expression, of five fields (or six, the first for seconds), as in cron.
        entrypoint, payload: as in the jobs that it enqueues.
        timezone: IANA name of the time zone of the expression.
        priority: of the jobs; lower is served first, and 0 is the default.
        by: as in `SetLimits`.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("schedules",)

    name: Name
    cron: str
    entrypoint: Name
    payload: bytes = b""
    timezone: str = "UTC"
    priority: Priority32 = 0
    by: SetBy = ""

    def prepared(self, preparation: Preparation) -> SetSchedule:
        """Return the operation, checked like the jobs that it will enqueue."""
        limits = preparation.limits
        name = check_name("name", self.name, limits)
        if len(name.encode()) > limits.name_bytes - _SPARE_NAME:
            raise InvalidJobError(
                f"the name of a cron entry is {len(name.encode())} bytes long; the limit is "
                f"{limits.name_bytes - _SPARE_NAME}"
            )
        check_cron(self.cron, self.timezone)
        headers = check_headers(self.headers, limits)
        options: dict[str, Any] = {name: getattr(self, name) for name in SCHEDULE_OPTIONS}
        options["headers"] = {**headers, SCHEDULED_FOR: "2000-01-01T00:00:00+00:00"}
        inline = msgspec.structs.replace(preparation, object_bytes=None)  # the entry copies its payload into each job
        job = Enqueue(self.entrypoint, self.payload, **options).prepared(inline)
        checked = {each: getattr(job, each) for each in ("entrypoint", "payload", *SCHEDULE_OPTIONS)}
        texts = {"name": name, "cron": exact(self.cron), "timezone": exact(self.timezone)}
        return replace(self, **checked | texts | {"headers": headers, "by": _checked(self.by)})

    def change(self, draft: Draft, now: datetime) -> Schedule:
        """Set the entry, due at its next time after `now`. If it exists with the same times, its due time is kept.

        Raises:
            QueueFullError: there is no room.
        """
        values = {name: getattr(self, name) for name in Schedule.__struct_fields__ if hasattr(self, name)}
        values["headers"] = dict(self.headers or {})
        old_entry = draft.header.schedules.get(self.name)
        next_at = next_after(self.cron, self.timezone, now)
        if old_entry is not None and old_entry.declared is not None and self.by == "program":
            declared = old_entry.declared.evolve(**values)  # its time does not count
            return _set_entry(draft, old_entry.evolve(declared=declared), old_entry, now)
        fired: tuple[Fired, ...] = (passed_by(now),)
        is_alike = old_entry is not None and (old_entry.cron, old_entry.timezone) == (self.cron, self.timezone)
        if old_entry and is_alike and (old_entry.fired or old_entry.next_at - next_at < CLOCK_WAS_WRONG):
            next_at, fired = old_entry.next_at, old_entry.fired  # the entry may be overdue: keep that
        values |= {"next_at": next_at, "fired": fired}
        entry = Schedule(**values) if old_entry is None else old_entry.evolve(**values)
        if self.by == "operator" and entry.declared is None:  # of a new entry, it stands for what a program may declare
            entry = entry.evolve(declared=(old_entry or entry).evolve(fired=(), paused=False, extra=None))
        return _set_entry(draft, entry, old_entry, now)


def _set_entry(draft: Draft, entry: Schedule, old_entry: Schedule | None, now: datetime) -> Schedule:
    """Set an entry in place of a known one. Return it as callers see it.

    Raises:
        QueueFullError: there is no room.
    """
    if entry != old_entry:
        size = schedule_bytes(entry) - (0 if old_entry is None else schedule_bytes(old_entry))
        take_space(draft, size, f"the cron entry {entry.name!r}")
        draft.note(draft.header.schedules, entry.name, entry)
        if any(each is not None and each.encoding is not None for each in (entry, entry.declared)):
            draft.require(ENCODINGS)
    return as_shown(entry, now)


class PauseSchedule(Operation, frozen=True):
    """Pause a cron entry, or resume it. Its result is the `Schedule`. A paused entry enqueues no jobs.

    Attributes:
        name: the name of the entry.
        paused: False to resume it: its first occurrence after now is the next one to enqueue a job.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("schedules",)
    checked_names: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    paused: bool = True

    def change(self, draft: Draft, now: datetime) -> Schedule:
        """Set the pause.

        Raises:
            InvalidJobError: there is no such entry; or it is resumed, and this machine cannot read its times.
        """
        old_entry = _entry(draft, self.name)
        if old_entry.paused == self.paused:
            return as_shown(old_entry, now)
        if self.paused:
            draft.require(CRON_PAUSE)
        entry = old_entry if self.paused else without_missed(old_entry, now)
        return _set_entry(draft, entry.evolve(paused=self.paused), old_entry, now)


class Reset(Operation, frozen=True):
    """Replace what an operator has set with what the program declares. Its result is True if an operator had set it.

    Attributes:
        entrypoint: the entrypoint whose limits are reset.
        schedule: the name of the cron entry that is reset. A pause of either stays.
    """

    entrypoint: str = ""
    schedule: str = ""

    def prepared(self, preparation: Preparation) -> Reset:
        """Return the operation with its names checked."""
        named = {name: text for name in ("entrypoint", "schedule") if (text := getattr(self, name)) != ""}
        return Reset(**{name: check_name(name, text, preparation.limits) for name, text in named.items()})

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield the capability for each name."""
        yield from (what for what, name in (("limits", self.entrypoint), ("schedules", self.schedule)) if name)

    def change(self, draft: Draft, now: datetime) -> bool:
        """Set the program's limits, and its entry.

        Raises:
            InvalidJobError: there is no such entry.
            QueueFullError: there is no room.
        """
        was_set = False
        rules = draft.header.entrypoints.get(self.entrypoint)
        if rules is not None and (limits := rules.declared) is not None:
            draft.change_rules(self.entrypoint, **given(limits), declared=None)
            was_set = True
        if self.schedule and (declared := (old_entry := _entry(draft, self.schedule)).declared) is not None:
            _set_entry(draft, old_entry.evolve(declared=None), old_entry, now)
            SetSchedule(**given(declared)).change(draft, now)
            was_set = True
        return was_set


def _entry(draft: Draft, name: str) -> Schedule:
    """Return a cron entry.

    Raises:
        InvalidJobError: there is no such entry.
    """
    schedule = draft.header.schedules.get(name)
    if schedule is None:
        raise InvalidJobError(f"there is no cron entry {name!r}")
    return schedule


class RunSchedule(Operation, frozen=True):
    """Enqueue one job of a cron entry now, whatever its times, which stay as they are. Its result is the job.

    Attributes:
        name: the name of the entry.
        job_id: id of the new job; drawn when the operation is prepared.
        asked_by: person or program that asks, for the history; cut at 100 bytes.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("schedules",)
    checked_names: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    job_id: str = ""
    asked_by: str | None = None

    def prepared(self, preparation: Preparation) -> RunSchedule:
        """Check the name, and draw the id."""
        job_id = check_name("job_id", self.job_id, preparation.limits) if self.job_id else preparation.new_id()
        return replace(super().prepared(preparation), job_id=job_id)

    def change(self, draft: Draft, now: datetime) -> JobRecord:
        """Add the job. The header `jqueue-scheduled-for` holds the present time.

        Raises:
            InvalidJobError: there is no such entry.
            DuplicateJobError: the unique key of the entry is taken by an earlier job of it.
            QueueFullError: there is no room.
        """
        return _enqueue_of(_entry(draft, self.name), now, self.job_id).change(draft, now)

    def job_ids(self) -> Sequence[str]:
        """Return the id of the job."""
        return (self.job_id,) if self.job_id else ()


class Unschedule(Operation, frozen=True):
    """Remove a cron entry; jobs that it has enqueued stay. Its result is True if the entry existed."""

    always_needs: ClassVar[tuple[str, ...]] = ("schedules",)
    checked_names: ClassVar[tuple[str, ...]] = ("name",)

    name: str

    def change(self, draft: Draft, now: datetime) -> bool:
        """Remove the entry."""
        was_set = self.name in draft.header.schedules
        draft.forget(draft.header.schedules, self.name)
        return was_set


TRAVELLING = (Pause, Resume, SetLimits, Configure, SetSchedule, PauseSchedule, Reset, RunSchedule, Unschedule)
