"""The verbs of all queues, in a file for each protocol of `jqueue.ports.queue`, which documents them."""

from jqueue.core.verbs.consumer import ConsumerVerbs
from jqueue.core.verbs.groups import GroupVerbs
from jqueue.core.verbs.producer import LargeValueVerbs
from jqueue.ports.queue import JobQueue


class QueueVerbs(GroupVerbs, ConsumerVerbs, LargeValueVerbs, JobQueue):
    """The verbs of every queue. Each call becomes operations in one commit."""
