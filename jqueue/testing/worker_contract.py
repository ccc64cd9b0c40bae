"""The worker contract: tests that a worker must pass on every queue, to be inherited by a user's own test suite.

A worker runs on any queue or storage that keeps its contract. These tests show that it does, from the first claim to
two workers that share their limits. Use pytest and pytest-asyncio in either mode, and the same fixtures as for
`QueueContract`:

    class TestWorkersOnMyStorage(WorkerContract):
        kind = BrokerQueue

        @pytest.fixture
        def make_storage(self, tmp_path):
            return lambda: MyStorage(tmp_path / "object")

A queue that is not made from a storage has a fixture `make_queue` instead. A queue declares in its `capabilities` what
it cannot do, and the tests that need it are skipped.
"""

from __future__ import annotations

import pytest

# Before the imports: assertions that fail on a user's queue then show the expected and the actual value.
pytest.register_assert_rewrite("jqueue.testing._queue_contract", "jqueue.testing._worker_contract")

from jqueue.testing._worker_contract.batches import BatchContract  # noqa: E402
from jqueue.testing._worker_contract.claim_keeping import ClaimingContract  # noqa: E402
from jqueue.testing._worker_contract.failing import FailingContract  # noqa: E402
from jqueue.testing._worker_contract.running import RunningContract  # noqa: E402
from jqueue.testing._worker_contract.sharing import SharingContract  # noqa: E402

__all__ = ["WorkerContract"]


class WorkerContract(RunningContract, FailingContract, ClaimingContract, SharingContract, BatchContract):
    """Subclass it, and give it a `make_storage` or a `make_queue` fixture.

    Attributes:
        kind: class of the queue made from the storage: `DirectQueue`, `BrokerQueue`, or another with that signature.
        worker_kind: class of the workers: `Worker`, or a subclass of your own.
        moment: seconds that are long for the store and short for people; set more for a slow or a remote store.
        patience: seconds after which a test counts as hung.
    """
