"""The whole contract of the queues, which they keep in memory: the tests that are shipped, and many more.

The contract is about the queue, which is the same on every store. So the whole of it runs in memory, and elsewhere the
tests of `jqueue.testing.queue_contract` alone.
"""

from jqueue.testing.queue_contract import QueueContract
from tests.contract.queue.claims import ClaimsContract, HoldersContract
from tests.contract.queue.commits import ChangesContract, TogetherContract
from tests.contract.queue.groups import GroupsContract
from tests.contract.queue.limits import LimitsContract
from tests.contract.queue.looks import ContentContract, HistoryContract, LookingContract
from tests.contract.queue.parents import ParentsContract
from tests.contract.queue.times import SchedulesContract, TimingContract
from tests.contract.queue.values import LargeValuesContract, ResultsContract
from tests.contract.queue.wrong_calls import RefusedRulesContract


class WholeQueueContract(
    QueueContract,
    TimingContract,
    ClaimsContract,
    HoldersContract,
    TogetherContract,
    ChangesContract,
    SchedulesContract,
    LimitsContract,
    GroupsContract,
    ResultsContract,
    LargeValuesContract,
    ParentsContract,
    HistoryContract,
    RefusedRulesContract,
    LookingContract,
    ContentContract,
):
    """Every test, by every part."""
