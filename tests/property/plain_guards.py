"""Guards in the plain queue: conditions under which an order of an operator is done."""

from typing import Any

from jqueue import JobNotFoundError
from jqueue.domain.errors import ChangedMeanwhileError
from jqueue.domain.operations import JobAsSeen, JobMatches, ScheduleAsSeen
from tests.property.plain_values import ENTRY, JobFields, Refused


class PlainGuards:
    """The guards of a plain queue."""

    table: dict[str, JobFields]
    schedules: dict[str, dict[str, Any]]

    def check(self, guard):
        """Raise the refusal if a guard does not hold."""
        match guard:
            case ScheduleAsSeen(seen):
                entry = self.schedules.get(seen.name)
                if entry is None or any(entry[name] != getattr(seen, name) for name in ENTRY):
                    raise Refused(ChangedMeanwhileError)
            case JobAsSeen(seen):
                job = self._there(seen.id)
                if any(job[name] != getattr(seen, name) for name in self._compared(job, seen)):
                    raise Refused(ChangedMeanwhileError)
            case JobMatches(job_id, chosen):
                job = self._there(job_id)
                statuses = {status.value for status in chosen.statuses}
                is_fit = (not statuses or job["status"] in statuses) and (
                    not chosen.entrypoints or job["entrypoint"] in chosen.entrypoints
                )
                text = job["error"]
                if chosen.error is not None and (text is None or chosen.error.casefold() not in text.casefold()):
                    is_fit = False
                if not is_fit:
                    raise Refused(ChangedMeanwhileError)
            case _:
                raise AssertionError(guard)

    def _there(self, job_id):
        if job_id not in self.table:
            raise Refused(JobNotFoundError, job_id=job_id)
        return self.table[job_id]

    def _compared(self, job, seen):
        """Return the fields that must be as they were seen: all but the heartbeat, the place, and what is elsewhere."""
        apart = {"payload"} if seen.payload_object is not None else set()
        apart |= {"result"} if seen.result_object is not None else set()
        return job.keys() - {"heartbeat_at", "place", "range"} - apart
