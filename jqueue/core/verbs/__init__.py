"""The verbs of a queue, once for all queues, a file for each protocol of `jqueue.ports.queue`, which documents them."""

from jqueue.core.verbs.consumer import ConsumerVerbs
from jqueue.core.verbs.operator import OperatorVerbs
from jqueue.core.verbs.producer import ProducerVerbs
from jqueue.ports.queue import JobQueue


class QueueVerbs(ProducerVerbs, ConsumerVerbs, OperatorVerbs, JobQueue):
    """The verbs of every queue. Each becomes operations, and one commit."""
