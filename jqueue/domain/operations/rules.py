"""Operations that set rules: limits and pauses of entrypoints, and the settings of a queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final

from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError, shown
from jqueue.domain.limits import check_integer, check_name
from jqueue.domain.models import COUNT_MAX
from jqueue.domain.operations.base import Operation, Preparation
from jqueue.domain.rules import EntrypointRules, QueueSettings
from jqueue.domain.size_limit import check_rules_fit

_NEEDS = {
    "dead_retention": "retention",
    "blob_bytes": "size_limit",
    "history": "history",
    "history_bytes": "history",
    "history_payloads": "history",
}
"""The capability that each setting of a queue needs."""

_DURATIONS = ("dead_retention", "history")


class Unchanged:
    """The type of `UNCHANGED`, which stands for a setting that stays as it is."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()


def _rules(draft: Draft, entrypoint: str) -> EntrypointRules:
    return draft.header.entrypoints.get(entrypoint, EntrypointRules())


@dataclass(frozen=True, slots=True)
class Pause(Operation):
    """Pause an entrypoint: no job of it is claimed until it is resumed. Jobs in progress go on; enqueue takes more."""

    always_needs: ClassVar[tuple[str, ...]] = ("limits",)

    entrypoint: str

    def prepared(self, preparation: Preparation) -> Pause:
        """Check the name of the entrypoint."""
        check_name("entrypoint", self.entrypoint, preparation.limits)
        return self

    def change(self, draft: Draft, now: datetime) -> None:
        """Set the pause.

        Raises:
            QueueFullError: too many entrypoints have limits or pauses.
        """
        check_rules_fit(draft, self.entrypoint)
        draft.set_rules(self.entrypoint, _rules(draft, self.entrypoint).model_copy(update={"paused": True}))


@dataclass(frozen=True, slots=True)
class Resume(Operation):
    """End a pause."""

    always_needs: ClassVar[tuple[str, ...]] = ("limits",)

    entrypoint: str

    def prepared(self, preparation: Preparation) -> Resume:
        """Check the name of the entrypoint."""
        check_name("entrypoint", self.entrypoint, preparation.limits)
        return self

    def change(self, draft: Draft, now: datetime) -> None:
        """Lift the pause."""
        draft.set_rules(self.entrypoint, _rules(draft, self.entrypoint).model_copy(update={"paused": False}))


@dataclass(frozen=True, slots=True)
class SetLimits(Operation):
    """Set the limits of an entrypoint. They replace its former limits; a pause stays.

    Attributes:
        entrypoint: the name of the entrypoint.
        running: number of its jobs that may be in progress at once; None means any number.
        rate: number of its jobs that may be claimed within any time of length `per`; None means any number.
        per: the window of `rate`, a timedelta or seconds.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("limits",)

    entrypoint: str
    _: KW_ONLY
    running: int | None = None
    rate: int | None = None
    per: Duration | None = None

    def prepared(self, preparation: Preparation) -> SetLimits:
        """Return the operation, checked, with the window in seconds."""
        check_name("entrypoint", self.entrypoint, preparation.limits)
        if self.running is not None:
            check_integer("running", self.running, 1, COUNT_MAX)
        if (self.rate is None) != (self.per is None):
            raise InvalidJobError("give rate and per together: rate=100, per=60 means 100 jobs a minute")
        per = None if self.per is None else to_seconds("per", self.per)
        if self.rate is not None:
            check_integer("rate", self.rate, 1, COUNT_MAX)
        if per == 0:
            raise InvalidJobError("per must be more than 0 seconds")
        return replace(self, per=per)

    def change(self, draft: Draft, now: datetime) -> None:
        """Set the limits. Earlier claims count too, if the entrypoint had a rate limit when they were made.

        Raises:
            QueueFullError: too many entrypoints have limits or pauses.
        """
        if (self.running, self.rate) != (None, None):
            check_rules_fit(draft, self.entrypoint)
        per = None if self.per is None else to_seconds("per", self.per)
        limits = {"max_running": self.running, "rate": self.rate, "per": per}
        draft.set_rules(self.entrypoint, _rules(draft, self.entrypoint).model_copy(update=limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(Operation):
    """Change settings of the queue as a whole. Its result is the new `QueueSettings`.

    Attributes:
        dead_retention: time for which dead jobs are kept; None: until they are purged.
        blob_bytes: the size limit of the blob, for every writer; None: each writer uses its own `Limits`.
        history: time for which the events of jobs are kept; None: no history is kept.
        history_bytes: size of all objects of the history above which the oldest are removed; None: no limit.
        history_payloads: True if the history keeps the payloads of enqueued jobs, up to 64 KiB each.
    """

    dead_retention: Duration | Unchanged | None = UNCHANGED
    blob_bytes: int | Unchanged | None = UNCHANGED
    history: Duration | Unchanged | None = UNCHANGED
    history_bytes: int | Unchanged | None = UNCHANGED
    history_payloads: bool | Unchanged = UNCHANGED

    def prepared(self, preparation: Preparation) -> Configure:
        """Return the operation, checked, with durations in seconds."""
        given = self._given()
        seconds: dict[str, Any] = {
            name: None if given[name] is None else to_seconds(name, given[name]) for name in _DURATIONS if name in given
        }
        if seconds.get("history") == 0:
            raise InvalidJobError("history must be more than 0 seconds, or None")
        for name in ("blob_bytes", "history_bytes"):
            if given.get(name) is not None:
                check_integer(name, given[name], 1, COUNT_MAX)
        if not isinstance(given.get("history_payloads", False), bool):
            raise InvalidJobError(f"history_payloads must be True or False, got {shown(self.history_payloads)}")
        return replace(self, **seconds)

    @property
    def history_on(self) -> bool:
        """True if it asks for a history."""
        return self.history is not None and not isinstance(self.history, Unchanged)

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield one capability for each given setting."""
        yield from (_NEEDS[name] for name in self._given())

    def change(self, draft: Draft, now: datetime) -> QueueSettings:
        """Change the given settings."""
        draft.set_settings(draft.header.settings.model_copy(update=self._given()))
        return draft.header.settings

    def _given(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in QueueSettings.model_fields}
        return {name: value for name, value in settings.items() if not isinstance(value, Unchanged)}
