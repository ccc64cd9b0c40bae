"""`repr`, `print` and errors never show a payload

Why: more people read logs than queues

1.0.0: shown by: job state storage error
2.0.0: shown by:
"""

from jqueue import InMemoryStorage, Job, QueueState

job = Job(entrypoint="task", payload=b"secret")
storage = InMemoryStorage(b"secret")
try:
    Job(entrypoint="task", payload="secret!")  # type: ignore[arg-type]
except ValueError as raised:
    error = str(raised)
shown = {"job": repr(job), "state": str(QueueState(jobs=(job,))), "storage": repr(storage), "error": error}
print(" ".join(["shown by:", *[what for what, text in shown.items() if "secret" in text]]))
