"""The prices of stores, in one table, and the cost of a queue at these prices. Nothing is asked of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

MILLION = 1_000_000
DAY, MONTH = 86_400, 30 * 86_400
GIB = 1 << 30

CALLS_PER_JOB = 3
"""Calls that a job needs at least: enqueue, claim and ack."""

HEARTBEAT = 60.0
"""Seconds between two heartbeats of a busy worker, by default: one write for all of its jobs."""


@dataclass(frozen=True, slots=True)
class Price:
    """List prices of one store, in US dollars, in the provider's usual US region.

    Attributes:
        store: its name.
        schemes: schemes of URLs that may mean it.
        write: a million writes: PUT, POST and LIST requests, "class A" operations.
        read: a million reads: GET and HEAD requests, conditional or not, "class B" operations.
        upload: a GiB written, beside the requests.
        download: a GiB read within the region, beside the requests.
        source: the page that has the price.
    """

    store: str
    schemes: tuple[str, ...]
    write: float
    read: float
    source: str
    upload: float = 0.0
    download: float = 0.0


PUBLISHED = "2026"
"""The year in which these prices were published. Change a price together with its source."""

PRICES = (
    Price("Amazon S3 Standard", ("s3",), 5.00, 0.40, "https://aws.amazon.com/s3/pricing/"),
    Price("Amazon S3 Express One Zone", ("s3",), 1.13, 0.03, "https://aws.amazon.com/s3/faqs/", 0.0032, 0.0006),
    Price("Google Cloud Storage Standard", ("gs",), 5.00, 0.40, "https://cloud.google.com/storage/pricing-examples"),
    Price("Cloudflare R2", ("s3",), 4.50, 0.36, "https://developers.cloudflare.com/r2/pricing/"),
    Price("Azure Blob, hot, LRS", ("az",), 5.00, 0.40, "https://azure.microsoft.com/pricing/details/storage/blobs/"),
)
"""Prices without free quotas, discounts, taxes and storage. Azure's depend on region and redundancy most."""


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a queue, on average.

    Attributes:
        jobs: jobs a day.
        calls: calls in a commit: 1 for a `DirectQueue`, more if calls of a `BrokerQueue` are in flight together.
        workers: workers that run all day.
        poll: seconds between two polls of an idle worker.
        size: bytes of the queue's object.
        commits: commits a second, if they are known; they replace the estimate from jobs and calls.
    """

    jobs: float = 0.0
    calls: float = 1.0
    workers: int = 1
    poll: float = 1.0
    size: int = 100_000
    commits: float | None = None

    @property
    def writes(self) -> float:
        """Writes a month, without heartbeats."""
        each = self.jobs / DAY * CALLS_PER_JOB / self.calls if self.commits is None else self.commits
        return each * MONTH

    @property
    def heartbeats(self) -> float:
        """Writes a month for heartbeats. Idle workers send them, too."""
        return self.workers * MONTH / HEARTBEAT

    @property
    def polls(self) -> float:
        """Reads a month by idle workers, if they are idle all day. The content is not sent again."""
        return self.workers * MONTH / self.poll


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars a month at one store.

    Attributes:
        price: its prices.
        writes: for commits.
        heartbeats: for heartbeats, at most.
        polls: for polls, at most.
        transfer: for the bytes of commits.
    """

    price: Price
    writes: float
    heartbeats: float
    polls: float
    transfer: float

    @property
    def total(self) -> float:
        """The sum: at most that, unless writers conflict."""
        return self.writes + self.heartbeats + self.polls + self.transfer


def prices_for(scheme: str, write: float | None, read: float | None) -> Sequence[Price]:
    """Return the prices of the stores that a URL may mean; all, if it means none of them.

    Args:
        scheme: of the URL; may be empty.
        write: price of a million writes, to use instead.
        read: price of a million reads, to use instead.
    """
    if write is not None or read is not None:
        base = Price("your prices", (), 5.00, 0.40, "the options")
        given = {name: value for name, value in (("write", write), ("read", read)) if value is not None}
        return [replace(base, **given)]  # type: ignore[arg-type]
    return [price for price in PRICES if scheme in price.schemes] or PRICES


def cost_of(load: Load, price: Price) -> Cost:
    """Return the cost of a queue at one store."""
    return Cost(
        price,
        writes=load.writes / MILLION * price.write,
        heartbeats=load.heartbeats / MILLION * price.write,
        polls=load.polls / MILLION * price.read,
        transfer=(load.writes + load.heartbeats) * load.size / GIB * price.upload,
    )
