"""There is a fourth status, `JobStatus.COMPLETED`; no job in the queue has it

Why: `enqueue(job_id=...)` answers with it when that job was finished already

1.0.0: QUEUED IN_PROGRESS DEAD
2.0.0: QUEUED IN_PROGRESS DEAD COMPLETED
"""

from jqueue import JobStatus

print(*[status.name for status in JobStatus])
