"""The verbs of a queue, once for all queues, a file for each protocol of `jqueue.ports.queue`."""

from jqueue.core.verbs.consumer import ConsumerVerbs
from jqueue.core.verbs.operator import OperatorVerbs
from jqueue.core.verbs.producer import ProducerVerbs


class QueueVerbs(ProducerVerbs, ConsumerVerbs, OperatorVerbs):
    """The verbs of every queue. Each becomes operations, and one commit.

    Every verb takes `deadline`, a timedelta or seconds: by then the call has ended. Every verb may raise
    `StorageError` (the store failed), `DeadlineExceededError` (not done), `UnknownOutcomeError` (perhaps done; ask it)
    and `InvalidJobError` (an argument is wrong).
    """
