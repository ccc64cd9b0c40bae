"""Every module of 1.0.0 with a public name, and that the names of the package are the objects of the modules."""

import asyncio

import jqueue
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.codec import decode, encode
from jqueue.core.direct import DirectQueue
from jqueue.core.group_commit import GroupCommitLoop
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.errors import CASConflictError, JobNotFoundError, JQueueError, StorageError
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.ports.storage import ObjectStoragePort

NAMES = (
    *(BrokerQueue, DirectQueue, HeartbeatManager, InMemoryStorage, LocalFileSystemStorage, ObjectStoragePort),
    *(CASConflictError, JobNotFoundError, JQueueError, StorageError),
    *(Job, JobStatus, QueueState),
)


async def main():
    storage = InMemoryStorage()
    queue = DirectQueue(storage)
    await queue.enqueue("task", b"data")
    content, _ = await storage.read()
    print(decode(content).jobs == (await queue.read_state()).jobs)


print([name.__name__ for name in NAMES if getattr(jqueue, name.__name__) is not name], GroupCommitLoop.__name__)
state = QueueState().with_job_added(Job.new("é\u2028", bytes(range(256)), -1)).with_job_added(Job.new("b", b""))
print(decode(encode(state)).jobs[0].payload == bytes(range(256)), decode(data=encode(state=state)).version)
print([job.entrypoint for job in decode(encode(state)).jobs], decode(b"") == QueueState(), type(encode(state)))
print(bool(jqueue.__version__), set(jqueue.__all__) >= {name.__name__ for name in NAMES})
asyncio.run(main())
