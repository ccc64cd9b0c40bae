"""There is a fourth status, `JobStatus.COMPLETED`

Why: a job has it while its result is kept, and `enqueue(job_id=...)` returns it when that job was finished

1.0.0: QUEUED IN_PROGRESS DEAD
2.0.0: QUEUED IN_PROGRESS DEAD COMPLETED
"""

from jqueue import JobStatus

print(*[status.name for status in JobStatus])
