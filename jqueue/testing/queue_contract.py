"""The queue contract: tests that every queue must pass on every store, to be inherited by a user's own test suite.

Any storage that keeps the storage contract can carry the queues. These tests show that it does, verb by verb. Use
pytest and pytest-asyncio in either mode, and the same fixture as for `StorageContract`:

    class TestBrokerOnMyStorage(QueueContract):
        kind = BrokerQueue

        @pytest.fixture
        def make_storage(self, tmp_path):
            return lambda: MyStorage(tmp_path / "object")

`make_storage` returns a function, plain or async, that opens one more handle on the object of this test. The object
does not exist at first. Each queue object of a test gets a handle of its own, as if it were in another process.

A queue that is not made from a storage has a fixture `make_queue` instead: a function, plain or async, that makes one
more queue object on the queue of this test. Tests pass it options by name (`limits`, `clock`), and it may ignore an
option that it does not support. A queue declares in its `capabilities` what it cannot do. Tests that need a missing
capability are skipped, and another test checks that the queue refuses such calls.
"""

from __future__ import annotations

import pytest

# Before the imports: assertions that fail on a user's queue then show the expected and the actual value.
pytest.register_assert_rewrite("jqueue.testing._queue_contract")

from jqueue.testing._queue_contract.aging import AgingContract  # noqa: E402
from jqueue.testing._queue_contract.base import QueueFactory  # noqa: E402
from jqueue.testing._queue_contract.changes import ChangesContract  # noqa: E402
from jqueue.testing._queue_contract.claim_fencing import ClaimsContract  # noqa: E402
from jqueue.testing._queue_contract.concurrency import ConcurrencyContract  # noqa: E402
from jqueue.testing._queue_contract.content import ContentContract  # noqa: E402
from jqueue.testing._queue_contract.history import HistoryContract  # noqa: E402
from jqueue.testing._queue_contract.holders import HoldersContract  # noqa: E402
from jqueue.testing._queue_contract.keys import KeysContract  # noqa: E402
from jqueue.testing._queue_contract.large_values import LargeValuesContract  # noqa: E402
from jqueue.testing._queue_contract.limits import LimitsContract  # noqa: E402
from jqueue.testing._queue_contract.looking import LookingContract  # noqa: E402
from jqueue.testing._queue_contract.order import OrderContract  # noqa: E402
from jqueue.testing._queue_contract.ranges import RangesContract  # noqa: E402
from jqueue.testing._queue_contract.refused_rules import RefusedRulesContract  # noqa: E402
from jqueue.testing._queue_contract.results import ResultsContract  # noqa: E402
from jqueue.testing._queue_contract.retries import RetriesContract  # noqa: E402
from jqueue.testing._queue_contract.schedules import SchedulesContract  # noqa: E402
from jqueue.testing._queue_contract.staged_jobs import StagedContract  # noqa: E402
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
    """Subclass it, and give it a `make_storage` or a `make_queue` fixture.

    Attributes:
        kind: class of the queue made from the storage: `DirectQueue`, `BrokerQueue`, or another with that signature.
        moment: seconds that are long for the store and short for people; set more for a slow or a remote store.
        patience: seconds after which a test counts as hung.
        cancellations: number of moments at which a call is cancelled.
        in_order: number of jobs whose order is checked.
    """
