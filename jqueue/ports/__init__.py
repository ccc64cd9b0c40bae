"""The interfaces between the queue and the world: storage, clock, queue."""

from typing import TYPE_CHECKING

from jqueue._submodules import imported_at_first_use

if TYPE_CHECKING:
    from jqueue.ports.clock import Clock, Entropy
    from jqueue.ports.queue import Capabilities, Consumer, JobGroup, JobQueue, Operator, Producer
    from jqueue.ports.storage import ObjectStoragePort
else:
    __getattr__ = imported_at_first_use(
        __name__,
        {
            "clock": "Clock Entropy",
            "queue": "Capabilities Consumer JobGroup JobQueue Operator Producer",
            "storage": "ObjectStoragePort",
        },
    )

__all__ = [
    "Capabilities",
    "Clock",
    "Consumer",
    "Entropy",
    "JobGroup",
    "JobQueue",
    "ObjectStoragePort",
    "Operator",
    "Producer",
]
