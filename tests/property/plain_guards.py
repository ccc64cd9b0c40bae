"""Guards in the plain queue: conditions under which an order of an operator is done."""

from typing import Any

from jqueue import JobNotFoundError
from jqueue.domain.errors import ChangedMeanwhileError
from jqueue.domain.job import JobRecord
from jqueue.domain.models import job_of
from tests.property.plain_values import ENTRY, JobFields, Refused


class PlainGuards:
    """The guards of a plain queue."""

    table: dict[str, JobFields]
    schedules: dict[str, dict[str, Any]]

    def check(self, guarded):
        """Raise the refusal if something is not as the caller of a guarded operation has seen it."""
        if (seen := guarded.schedule) is not None:
            entry = self.schedules.get(seen.name)
            if entry is None or any(entry[name] != getattr(seen, name) for name in ENTRY):
                raise Refused(ChangedMeanwhileError)
        if (seen := guarded.job) is not None:
            job = self._there(seen.id)
            shown = job_of(seen) if isinstance(seen, JobRecord) else seen
            if any(job[name] != getattr(shown, name) for name in self._compared(job, shown)):
                raise Refused(ChangedMeanwhileError)
        if (chosen := guarded.selection) is not None:
            job = self._there(guarded.job_id)
            statuses = {status.value for status in chosen.statuses}
            is_fit = (not statuses or job["status"] in statuses) and (
                not chosen.entrypoints or job["entrypoint"] in chosen.entrypoints
            )
            text = job["error"]
            if chosen.error is not None and (text is None or chosen.error.casefold() not in text.casefold()):
                is_fit = False
            if not is_fit:
                raise Refused(ChangedMeanwhileError)

    def _there(self, job_id):
        if job_id not in self.table:
            raise Refused(JobNotFoundError, job_id=job_id)
        return self.table[job_id]

    def _compared(self, job, seen):
        """Return the fields that must be as they were seen: all but the heartbeat, the place, and what is elsewhere."""
        apart = {"payload"} if seen.payload_object is not None else set()
        apart |= {"result"} if seen.result_object is not None else set()
        return job.keys() - {"heartbeat_at", "place", "range"} - apart
