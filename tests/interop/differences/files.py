"""The file of a queue is replaced at each write, belongs to its owner alone (0600), and has a `.lock` file beside it

Why: a write in place that is cut short loses the queue, and payloads are private

1.0.0: queue.json
1.0.0: 0644, the same file after the second write: True
2.0.0: queue.json queue.json.lock
2.0.0: 0600, the same file after the second write: False
"""

import asyncio
import os

from jqueue import DirectQueue, LocalFileSystemStorage

os.umask(0o022)
q = DirectQueue(LocalFileSystemStorage("queue.json"))
asyncio.run(q.enqueue("task", b"1"))
first = os.open("queue.json", os.O_RDONLY)
asyncio.run(q.enqueue("task", b"2"))
now = os.stat("queue.json")
print(*sorted(os.listdir()))
print(f"{now.st_mode & 0o777:04o}, the same file after the second write: {os.path.samestat(os.fstat(first), now)}")
