"""Options of `format("jqueue")`: the texts that Spark passes, checked and converted.

The case of option names and their underscores are ignored, so `maxAttempts` is `max_attempts`. Spark adds options of
its own. An unknown name is refused, since a typo would otherwise silently change what happens. Errors are one line,
without the values of options that may hold secrets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from jqueue.domain.durations import LONGEST
from jqueue.domain.errors import InvalidJobError, InvalidURLError, shown

OF_SPARK = frozenset({"path", "paths", "url", "checkpointlocation", "queryname"})
"""Options that every reader and writer accepts: the URL of the queue, and what Spark adds."""

OWN_FILE = "file:/"
"""Start of the URL that Spark makes from the path of a table."""


@dataclass(frozen=True)
class OptionType:
    """The kind of values that an option takes.

    Attributes:
        description: the valid values, in words for the error.
        convert: turns the text into the value; raises ValueError if it cannot.
    """

    description: str
    convert: Callable[[str], Any]


def parse_options(options: Mapping[str, str], kinds: Mapping[str, OptionType]) -> dict[str, Any]:
    """Return the given options, converted, under their known names.

    Args:
        options: as Spark passes them.
        kinds: the existing options, with the kind of each.

    Raises:
        InvalidJobError: an option is unknown, or its value cannot be converted.
    """
    names = {plain(name): name for name in kinds}
    parsed: dict[str, Any] = {}
    for option, text in options.items():
        name = names.get(plain(option))
        if name is not None:
            try:
                parsed[name] = kinds[name].convert(text)
            except ValueError:
                raise InvalidJobError(f"option {name} takes {kinds[name].description}, got {shown(text)}") from None
        elif option.lower() not in OF_SPARK:
            raise InvalidJobError(f"there is no option {shown(option)}: the options are {', '.join(sorted(kinds))}")
    return parsed


def plain(name: str) -> str:
    """Return the name of an option without its case and underscores."""
    return name.lower().replace("_", "")


def url_of(options: Mapping[str, str]) -> str:
    """Return the URL of the queue: the option `url`, or `path`, the argument of `load`, `save` and `start`.

    Raises:
        InvalidURLError: there is none, or there are two different ones.
    """
    urls = list(urls_of(options).values())
    if not urls:
        raise InvalidURLError(
            'the URL of the queue is missing: give it to load, save or start, as in load("s3://bucket/queue.json"), or '
            "as the option url. A table has it only if it was created without columns"
        )
    check_one_url(urls)
    return urls[0]


def urls_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options `path` and `url` that are not empty, by their names in lower case."""
    texts = {name.lower(): text for name, text in options.items() if text.strip()}
    return {name: _plain_path(texts[name]) for name in ("path", "url") if name in texts}


def check_one_url(urls: Collection[object]) -> None:
    """Refuse URLs that differ from each other.

    Raises:
        InvalidURLError: two of them differ.
    """
    if len({str(each) for each in urls}) > 1:
        raise InvalidURLError("the option url names another queue than the path does: give one of the two")


def _plain_path(url: str) -> str:
    """Return the URL with `file:///` where Spark writes `file:/`."""
    of_spark = url.startswith(OWN_FILE) and not url.startswith(f"{OWN_FILE}/")
    return f"file:///{url.removeprefix(OWN_FILE)}" if of_spark else url


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("empty")
    return text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and 0 <= seconds <= LONGEST):
        raise ValueError("not a duration")
    return seconds


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("an empty name")
    return names


TEXT = OptionType("a text that is not empty", _text)
SECONDS = OptionType("a number of seconds, 0 or more", _seconds)
NAMES = OptionType("names with commas between them", _names)


def INTEGER(low: int, high: int) -> OptionType:
    """A whole number from `low` to `high`."""

    def convert(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise ValueError("out of range")
        return number

    return OptionType(f"a whole number from {low} to {high}", convert)


def ONE_OF(*choices: str) -> OptionType:
    """One of these words in lower case, given in any case."""

    def convert(text: str) -> str:
        return choices[choices.index(text.strip().lower())]

    return OptionType(" or ".join(choices), convert)
