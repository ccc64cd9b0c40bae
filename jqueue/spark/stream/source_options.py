"""The settings of a streaming query on a queue, read from Spark's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jqueue.domain.durations import LONGEST
from jqueue.domain.errors import InvalidJobError, InvalidURLError, shown
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT
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

SAME = {"maxrowspertrigger": "maxJobsPerTrigger", "maxoffsetspertrigger": "maxJobsPerTrigger"}
"""Options of other sources that mean the same, in lower case."""

_NO_POSITIONS = "a queue has no positions: a query gets the jobs that wait, and goes on by its checkpoint"
_ONE_LIMIT = "limit a batch by its number of jobs, with maxJobsPerTrigger"
_TRIGGER = "set the time between batches by the trigger, as in trigger(processingTime='10 seconds')"
INSTEAD = {
    "maxbytespertrigger": _ONE_LIMIT,
    "maxfilespertrigger": _ONE_LIMIT,
    "maxtriggerdelay": _TRIGGER,
    "minoffsetspertrigger": _TRIGGER,
    "minpartitions": "give numPartitions",
    "subscribe": "give entrypoint",
    **dict.fromkeys(("endingoffsets", "startingoffsets", "startingtimestamp", "startingversion"), _NO_POSITIONS),
}
"""Answers to options of other sources that have no equal here, in lower case."""


def _in_our_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with names of other sources replaced by ours.

    Raises:
        InvalidJobError: an option has no equal here, or is given twice.
    """
    ours: dict[str, str] = {}
    for given, text in options.items():
        if (answer := INSTEAD.get(given.lower())) is not None:
            raise InvalidJobError(f"there is no option {shown(given)}: {answer}")
        name = SAME.get(given.lower(), given)
        if name is not given and any(each.lower() == name.lower() for each in (*options, *ours)):
            raise InvalidJobError(f"the option {shown(given)} means {name}: give one of the two")
        ours[name] = text
    return ours


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
        given: dict[str, Any] = parse_options(_in_our_names(options), KNOWN)
        names = {
            "entrypoint": "entrypoints",
            "maxJobsPerTrigger": "most_jobs",
            "pollInterval": "poll_interval",
            "claimTimeout": "claim_timeout",
            "numPartitions": "partitions",
        }
        return cls(addresses[0], **{names[name]: value for name, value in given.items()})
