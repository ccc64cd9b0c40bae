"""`SyncQueue`: the queue for programs without an event loop: Flask and Django views, scripts, notebooks.

    from jqueue.sync import SyncQueue

    queue = SyncQueue("queue.json")
    queue.enqueue("mail", b"hello")

It has every verb of `BrokerQueue`, as a blocking method. One thread of the process runs one event loop for all queues.
It starts with the first call, so a module may make its queue when it is imported, and a server may fork afterwards.
"""

from jqueue.sync.open_queue import KeepAlive
from jqueue.sync.queue import SyncGroup, SyncQueue

__all__ = ["KeepAlive", "SyncGroup", "SyncQueue"]
