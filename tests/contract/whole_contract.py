"""The whole contract of the queues, which they keep in memory: the tests that are shipped, and many more.

The contract is about the queue, which is the same on every store. So the whole of it runs in memory, and elsewhere the
tests of `jqueue.testing.queue_contract` alone.
"""

from jqueue.testing.queue_contract import QueueContract
from tests.contract.queue.ceilings import ConcurrencyContract, LimitsContract
from tests.contract.queue.claims import ClaimsContract, HoldersContract, RetriesContract, StoppingContract
from tests.contract.queue.commits import ChangesContract, StagedContract, TogetherContract
from tests.contract.queue.looks import ContentContract, HistoryContract, LookingContract
from tests.contract.queue.ranges import RangesContract
from tests.contract.queue.schedules import SchedulesContract
from tests.contract.queue.serving import AgingContract, KeysContract, OrderContract, TimingContract
from tests.contract.queue.values import LargeValuesContract, ResultsContract
from tests.contract.queue.wrong_calls import RefusedRulesContract


class WholeQueueContract(
    QueueContract,
    OrderContract,
    TimingContract,
    ClaimsContract,
    RetriesContract,
    KeysContract,
    TogetherContract,
    LimitsContract,
    ConcurrencyContract,
    AgingContract,
    SchedulesContract,
    ResultsContract,
    LargeValuesContract,
    StoppingContract,
    RangesContract,
    StagedContract,
    HoldersContract,
    HistoryContract,
    ChangesContract,
    RefusedRulesContract,
    LookingContract,
    ContentContract,
):
    """Every test, by every part."""
