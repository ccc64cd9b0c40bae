"""A call that changes nothing writes nothing: an empty dequeue does not even create the file

Why: an unnecessary write is a race that another writer loses

1.0.0: the file is there: True
2.0.0: the file is there: False
"""

import asyncio
from pathlib import Path

from jqueue import DirectQueue, LocalFileSystemStorage

assert asyncio.run(DirectQueue(LocalFileSystemStorage("queue.json")).dequeue()) == []
print("the file is there:", Path("queue.json").exists())
