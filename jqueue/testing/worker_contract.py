"""What a worker does on every queue, as tests that a user's own test suite inherits.

A queue or a storage of your own that keeps its contract carries the worker; this shows that it does, from the first
claim to two workers that share their limits. With pytest and pytest-asyncio in either mode, and the same fixtures as
for `QueueContract`:

    class TestWorkersOnMyStorage(WorkerContract):
        kind = BrokerQueue

        @pytest.fixture
        def make_storage(self, tmp_path):
            return lambda: MyStorage(tmp_path / "object")

A queue that is not made of a storage has a fixture `make_queue` instead. What a queue cannot do it declares in its
`capabilities`, and the tests that need it are skipped.
"""

from __future__ import annotations

import pytest

# Before they are imported: a user whose queue breaks the contract then sees what was expected and what was found.
pytest.register_assert_rewrite("jqueue.testing._queue_contract", "jqueue.testing._worker_contract")

from jqueue.testing._worker_contract.claiming import ClaimingContract  # noqa: E402
from jqueue.testing._worker_contract.failing import FailingContract  # noqa: E402
from jqueue.testing._worker_contract.running import RunningContract  # noqa: E402
from jqueue.testing._worker_contract.sharing import SharingContract  # noqa: E402

__all__ = ["WorkerContract"]


class WorkerContract(RunningContract, FailingContract, ClaimingContract, SharingContract):
    """Subclass it, and give it a `make_storage` or a `make_queue` fixture.

    Attributes:
        kind: which queue is made of the storage: `DirectQueue`, `BrokerQueue`, or another of that form.
        worker_kind: what makes the workers: `Worker`, or a subclass of your own.
        moment: seconds that are long for the store and short for people; more for a slow or a remote one.
        patience: seconds after which a test has hung.
    """
