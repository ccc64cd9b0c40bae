"""A symbolic link at the path of the queue is refused; links in the folders above are followed

Why: a write replaces the file and would replace the link. Give the path of the file itself

1.0.0: the file: done
1.0.0: the folder: done
2.0.0: the file: StorageFatalError
2.0.0: the folder: done
"""

import asyncio
import os

from jqueue import DirectQueue, JQueueError, LocalFileSystemStorage

os.mkdir("folder")
os.symlink("folder/queue.json", "link.json")
os.symlink("folder", "link")
asyncio.run(DirectQueue(LocalFileSystemStorage("folder/queue.json")).enqueue("task", b""))
for what, path in (("the file", "link.json"), ("the folder", "link/queue.json")):
    try:
        asyncio.run(DirectQueue(LocalFileSystemStorage(path)).enqueue("task", b""))
        print(f"{what}: done")
    except JQueueError as error:
        print(f"{what}: {type(error).__name__}")
