"""What every queue must do on every store, as tests that a user's own test suite inherits.

A storage adapter that keeps the storage contract carries the queues; this shows that it does, verb by verb. With
pytest and pytest-asyncio in either mode, and the same fixture as for `StorageContract`:

    class TestBrokerOnMyStorage(QueueContract):
        kind = BrokerQueue

        @pytest.fixture
        def make_storage(self, tmp_path):
            return lambda: MyStorage(tmp_path / "object")

`make_storage` gives a function, plain or async, that opens one more handle on the object of this test, which does not
exist yet; each queue object of a test gets one, as if it were in another process. A queue that is not made of a
storage has a fixture `make_queue` instead: a function, plain or async, that makes one more queue object on the queue
of this test. It takes what a test asks for by name (`limits`, `clock`) and may leave unused what it has not. What a
queue cannot do it declares in its `capabilities`: those tests are skipped, and that it refuses is tested instead.
"""

from __future__ import annotations

import pytest

# Before they are imported: a user whose queue breaks the contract then sees what was expected and what was found.
pytest.register_assert_rewrite("jqueue.testing._queue_contract")

from jqueue.testing._queue_contract.aging import AgingContract  # noqa: E402
from jqueue.testing._queue_contract.base import QueueFactory  # noqa: E402
from jqueue.testing._queue_contract.changes import ChangesContract  # noqa: E402
from jqueue.testing._queue_contract.claims import ClaimsContract  # noqa: E402
from jqueue.testing._queue_contract.concurrency import ConcurrencyContract  # noqa: E402
from jqueue.testing._queue_contract.content import ContentContract  # noqa: E402
from jqueue.testing._queue_contract.holders import HoldersContract  # noqa: E402
from jqueue.testing._queue_contract.keys import KeysContract  # noqa: E402
from jqueue.testing._queue_contract.limits import LimitsContract  # noqa: E402
from jqueue.testing._queue_contract.order import OrderContract  # noqa: E402
from jqueue.testing._queue_contract.refused_rules import RefusedRulesContract  # noqa: E402
from jqueue.testing._queue_contract.results import ResultsContract  # noqa: E402
from jqueue.testing._queue_contract.retries import RetriesContract  # noqa: E402
from jqueue.testing._queue_contract.schedules import SchedulesContract  # noqa: E402
from jqueue.testing._queue_contract.staged import StagedContract  # noqa: E402
from jqueue.testing._queue_contract.stopping import StoppingContract  # noqa: E402
from jqueue.testing._queue_contract.timing import TimingContract  # noqa: E402
from jqueue.testing._queue_contract.together import TogetherContract  # noqa: E402

__all__ = ["QueueContract", "QueueFactory"]


class QueueContract(
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
    StoppingContract,
    StagedContract,
    HoldersContract,
    ChangesContract,
    RefusedRulesContract,
    ContentContract,
):
    """Subclass it, and give it a `make_storage` or a `make_queue` fixture.

    Attributes:
        kind: which queue is made of the storage: `DirectQueue`, `BrokerQueue`, or another of that form.
        moment: seconds that are long for the store and short for people; more for a slow or a remote one.
        patience: seconds after which a test has hung.
        cancellations: at how many moments a dequeue is cancelled.
        in_order: how many jobs are put in an order.
    """
