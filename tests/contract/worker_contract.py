"""The worker contract: tests that a worker must pass on every queue, from its first claim to shared limits."""

from tests.contract.worker.batches import BatchContract
from tests.contract.worker.claim_keeping import ClaimingContract
from tests.contract.worker.failing import FailingContract
from tests.contract.worker.running import RunningContract
from tests.contract.worker.sharing import SharingContract


class WorkerContract(RunningContract, FailingContract, ClaimingContract, SharingContract, BatchContract):
    """Subclass it, and give it a `make_storage` or a `make_queue` fixture.

    Attributes:
        worker_kind: class of the workers: `Worker`, or a subclass of it.
    """
