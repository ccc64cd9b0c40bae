"""The verbs of all queues, in a file for each protocol of `jqueue.ports.queue`, which documents them."""

from jqueue.core.verbs.consumer import ConsumerVerbs
from jqueue.core.verbs.operator import OperatorVerbs
from jqueue.core.verbs.producer import LargeValueVerbs, ProducerVerbs
from jqueue.ports.queue import JobQueue


class QueueVerbs(ProducerVerbs, ConsumerVerbs, OperatorVerbs, LargeValueVerbs, JobQueue):
    """The verbs of every queue. Each call becomes operations in one commit."""
