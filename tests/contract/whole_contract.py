"""The whole contract of the queues, which they keep in memory: the tests that are shipped, and many more.

The contract is about the queue, which is the same on every store. So the whole of it runs in memory, and elsewhere the
tests of `jqueue.testing.queue_contract` alone.
"""

from jqueue.testing.queue_contract import QueueContract
from tests.contract.queue.aging import AgingContract
from tests.contract.queue.changes import ChangesContract
from tests.contract.queue.claim_fencing import ClaimsContract
from tests.contract.queue.concurrency import ConcurrencyContract
from tests.contract.queue.content import ContentContract
from tests.contract.queue.history import HistoryContract
from tests.contract.queue.holders import HoldersContract
from tests.contract.queue.keys import KeysContract
from tests.contract.queue.large_values import LargeValuesContract
from tests.contract.queue.limits import LimitsContract
from tests.contract.queue.looking import LookingContract
from tests.contract.queue.order import OrderContract
from tests.contract.queue.ranges import RangesContract
from tests.contract.queue.refused_rules import RefusedRulesContract
from tests.contract.queue.results import ResultsContract
from tests.contract.queue.retries import RetriesContract
from tests.contract.queue.schedules import SchedulesContract
from tests.contract.queue.staged_jobs import StagedContract
from tests.contract.queue.stopping import StoppingContract
from tests.contract.queue.timing import TimingContract
from tests.contract.queue.together import TogetherContract


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
