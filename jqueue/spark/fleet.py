"""Which queues are read: one URL, or a fleet of them, named by a list or by wildcards.

    queue.json                      one queue
    s3://bucket/a.json,b.json       two
    s3://bucket/queues/*.json       all whose names fit
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from jqueue.domain.errors import InvalidURLError
from jqueue.spark.options import url_of

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_WILDCARDS = re.compile(r"[*?\[]")


def addresses_of(options: Mapping[str, str]) -> list[str]:
    """The queues as they were named, wildcards and all.

    Raises:
        InvalidURLError: none is named.
    """
    lists = [json.loads(text) for name, text in options.items() if name.lower() == "paths"]
    return [address for path in (lists[0] if lists else [url_of(options)]) for address in split(path)]


def is_fleet(options: Mapping[str, str]) -> bool:
    """Whether several queues are read, even if there should be but one of them."""
    addresses = addresses_of(options)
    return len(addresses) > 1 or any(map(has_wildcards, addresses))


def split(path: str) -> list[str]:
    """A list of URLs, taken apart at its commas.

    Raises:
        InvalidURLError: one of them is empty.
    """
    addresses = [address.strip() for address in path.split(",")]
    if not all(addresses):
        raise InvalidURLError("there is a comma with no URL beside it: a comma in the name of a queue is written %2C")
    return addresses


def has_wildcards(address: str) -> bool:
    """Whether it stands for all queues whose names fit. In a URL, a question mark is where its options begin."""
    url = _URL.match(address) is not None
    return _WILDCARDS.search(address.partition("?")[0] if url else address) is not None
