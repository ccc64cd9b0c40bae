"""Groups as the documentation describes them: numbers that every change of a member moves, and jobs at the end."""

from datetime import timedelta
from typing import Any

from jqueue.domain.operations.groups import AwaitGroup, CancelGroup, CloseGroup, OnGroup, OpenGroup
from jqueue.errors import GroupEndedError
from tests.simulation.plain_values import JobFields, Refused

COUNTS = ("added", "done", "dead", "gone")


class PlainGroups:
    """The part of the plain queue that knows groups.

    Attributes:
        groups: the numbers of each group by its id, whether it is closed and cancelled, and the jobs that are enqueued
            at its end, as long as they are not.
    """

    groups: dict[str, dict[str, Any]]
    table: dict[str, JobFields]
    now: Any
    changes: int
    add: Any
    change: Any
    remove: Any

    def check_member(self, group):
        """Refuse a job of a group that takes none."""
        if group is not None and (group not in self.groups or self.is_at_rest(group)):
            raise Refused(GroupEndedError, group=group)

    def is_at_rest(self, group):
        """Return True if a group is closed, and none of its jobs waits or runs."""
        return self.groups[group]["closed"] and not self.live(group)

    def live(self, group):
        """Return the number of jobs that wait or run."""
        numbers = self.groups[group]
        return max(0, numbers["added"] - numbers["done"] - numbers["dead"] - numbers["gone"])

    def count_member(self, job, **numbers):
        """Add numbers to the counts of a job's group. A check sees them only after the call."""
        group = job["group"]
        if group in self.groups:
            later = self.groups[group]["later"]
            later = {**later, **{name: later.get(name, 0) + number for name, number in numbers.items()}}
            self.groups[group] = {**self.groups[group], "later": later}

    def settle_groups(self):
        """Bring the counts up to date after a call, and enqueue the jobs of groups that have ended."""
        self.settle_counts()
        for name in sorted(self.groups):
            pending = self.groups[name] if self.is_at_rest(name) else {}
            for place in ("on_end", "then"):
                job = pending.get(place)
                if job is not None and not (place == "then" and self.groups[name]["dead"]):
                    self.groups[name] = {**self.groups[name], place: None}
                    delay = {"run_at": self.now + timedelta(seconds=job["delay"])} if job["delay"] else {}
                    self.add(
                        **{name: job[name] for name in ("id", "entrypoint", "payload")}, **delay, created_at=self.now
                    )
            ended = self.is_at_rest(name) and self.groups[name]["then"] is None
            self.groups[name] = {**self.groups[name], "ended": ended}

    def settle_counts(self):
        """Bring the counts of all groups up to date."""
        for name, group in list(self.groups.items()):
            counts = {each: max(0, group[each] + group["later"].get(each, 0)) for each in COUNTS}
            self.groups[name] = {**group, **counts, "later": {}}

    def on_group(self, asked):
        """Do an operation on a group."""
        group = asked.group
        if isinstance(asked, OpenGroup) and group not in self.groups:
            then, on_end = _pending(asked.then), _pending(asked.on_end)
            numbers = dict.fromkeys(COUNTS, 0) | {"closed": False, "cancelled": False, "ended": False, "later": {}}
            self.groups[group] = {**numbers, "then": then, "on_end": on_end, "then_id": then and then["id"]}
            self.changes += 1
        known = self.groups.get(group)
        if known is None or (isinstance(asked, OpenGroup) and known["closed"]):
            raise Refused(GroupEndedError, group=group)
        if isinstance(asked, CloseGroup):
            self.changes += not known["closed"]
            self.groups[group] = {**known, "closed": True}
        elif isinstance(asked, CancelGroup):
            self._cancel_group(group)
        elif isinstance(asked, AwaitGroup):
            return [self.status_of(group)] if self.is_at_rest(group) else []
        elif not isinstance(asked, OnGroup):
            raise TypeError(type(asked).__name__)
        return self.status_of(group)

    def _cancel_group(self, group):
        """Remove what waits, tell what runs, and count anew."""
        self.settle_counts()
        members = [job for job in self.table.values() if job["group"] == group]
        for job in members:
            if job["status"] == "queued":
                self.remove(job, 6)  # see `plain_queue.CANCELLED`
            elif job["status"] == "in_progress" and not job["cancel_requested"]:
                self.change(job, cancel_requested=True)
        self.settle_counts()
        statuses = [job["status"] for job in self.table.values() if job["group"] == group]
        dead, known = statuses.count("dead"), self.groups[group]
        gone = max(0, known["added"] - known["done"] - dead - statuses.count("in_progress"))
        counts = {"dead": dead, "gone": gone, "closed": True, "cancelled": True, "then": None}
        self.groups[group] = {**known, **counts}
        self.changes += 1

    def status_of(self, group):
        """Return what a caller is told of a group."""
        known = self.groups.get(group)
        if known is None:
            return None
        names = (*COUNTS, "closed", "cancelled", "then_id")
        return {name: known[name] for name in names} | {
            "id": group,
            "waiting": self.live(group),
            "ended": self.is_at_rest(group),
            "then_enqueued": known["then_id"] is not None and known["then"] is None and not known["cancelled"],
        }


def _pending(job):
    if job is None:
        return None
    return {"id": job.new_id, "entrypoint": job.entrypoint, "payload": bytes(job.payload), "delay": job.delay or 0.0}
