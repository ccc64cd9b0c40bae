"""An empty file is not an empty queue

Why: a write in place that was cut short leaves an empty file. Remove the file to start a new queue

1.0.0: 0 jobs
2.0.0: InvalidBlobError
"""

import asyncio
from pathlib import Path

from jqueue import DirectQueue, LocalFileSystemStorage

Path("queue.json").touch()
try:
    print(len(asyncio.run(DirectQueue(LocalFileSystemStorage("queue.json")).read_state()).jobs), "jobs")
except Exception as error:
    print(type(error).__name__)
