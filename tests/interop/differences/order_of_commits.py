"""Jobs of equal priority are served in the order of their commits, not of `created_at`

Why: the clocks of different machines disagree

1.0.0: b a
2.0.0: a b
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage

BLOB = b"""{"version": 2, "jobs": [
{"id": "a", "entrypoint": "a", "payload": "", "created_at": "2024-01-01T00:00:05Z"},
{"id": "b", "entrypoint": "b", "payload": "", "created_at": "2024-01-01T00:00:00Z"}]}"""

q = DirectQueue(InMemoryStorage(BLOB))
print(*[job.entrypoint for job in asyncio.run(q.dequeue(batch_size=2))])
