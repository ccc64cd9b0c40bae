"""The settings of a streaming query on a queue, read from Spark's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jqueue.domain.durations import LONGEST
from jqueue.domain.errors import InvalidURLError
from jqueue.domain.models import DEFAULT_CLAIM_TIMEOUT
from jqueue.spark.fleet import addresses_of, names_several
from jqueue.spark.option_parsing import INTEGER, NAMES, SECONDS, OptionType, parse_options

MOST_JOBS = 1_000_000
"""Largest number of jobs in one batch, even if the query asks for more."""

MOST_SINGLES = 100_000
"""Largest number of jobs in one batch that are in no range: their rows go through the driver."""

MOST_PARTITIONS = 1000
SHORTEST_TIMEOUT = 1.0


def _timeout(text: str) -> float:
    seconds = float(text)
    if not SHORTEST_TIMEOUT <= seconds <= LONGEST:
        raise ValueError("too short, or not a duration")
    return seconds


KNOWN = {
    "entrypoint": NAMES,
    "maxJobsPerTrigger": INTEGER(1, MOST_JOBS),
    "pollInterval": SECONDS,
    "claimTimeout": OptionType(f"a number of seconds, {SHORTEST_TIMEOUT:g} or more", _timeout),
    "numPartitions": INTEGER(1, MOST_PARTITIONS),
}


@dataclass(frozen=True)
class SourceOptions:
    """The settings of one streaming query.

    Attributes:
        url: of the queue.
        entrypoints: the entrypoints whose jobs it takes; None for all.
        most_jobs: largest number of jobs in a batch.
        poll_interval: seconds between two looks for jobs, unless the last one found a full batch.
        claim_timeout: seconds without a heartbeat after which its jobs may go to other workers.
        partitions: number of tasks that work on a batch; None: chosen by its size.
    """

    url: str
    entrypoints: tuple[str, ...] | None = None
    most_jobs: int = 10_000
    poll_interval: float = 1.0
    claim_timeout: float = DEFAULT_CLAIM_TIMEOUT.total_seconds()
    partitions: int | None = None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SourceOptions:
        """Return the settings from the options of `readStream`.

        Raises:
            InvalidJobError: an option is unknown, or a value is wrong.
            InvalidURLError: the URL is missing, or there are several.
        """
        addresses = addresses_of(options)
        if names_several(addresses):
            raise InvalidURLError("a stream reads one queue, by its URL: for several, start a query for each")
        given: dict[str, Any] = parse_options(options, KNOWN)
        names = {
            "entrypoint": "entrypoints",
            "maxJobsPerTrigger": "most_jobs",
            "pollInterval": "poll_interval",
            "claimTimeout": "claim_timeout",
            "numPartitions": "partitions",
        }
        return cls(addresses[0], **{names[name]: value for name, value in given.items()})
