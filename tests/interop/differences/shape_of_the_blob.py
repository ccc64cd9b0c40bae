"""The blob has another shape: `jobs` is an object keyed by id, one job per line

Why: 1.0.0 must refuse it, because it would drop claims and every unknown field

1.0.0: list
2.0.0: dict
"""

import asyncio
import json
from pathlib import Path

from jqueue import DirectQueue, LocalFileSystemStorage

asyncio.run(DirectQueue(LocalFileSystemStorage("queue.json")).enqueue("task", b""))
print(type(json.loads(Path("queue.json").read_text())["jobs"]).__name__)
