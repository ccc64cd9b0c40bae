"""Options of `format("jqueue")`: what Spark hands over as texts, checked and converted.

Spark keeps the names of options without regard to case, and adds some of its own. A name that nobody knows is refused,
since a typo would otherwise change what happens in silence. What is wrong is said in one line, without the values of
options that may hold secrets.
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
"""The start of the URL that Spark makes of the path of a table."""


@dataclass(frozen=True)
class Kind:
    """What an option takes.

    Attributes:
        words: what it takes, in words.
        convert: its text into its value; ValueError if it cannot be.
        secret: whether a wrong value is kept out of the error.
    """

    words: str
    convert: Callable[[str], Any]
    secret: bool = False


def take(options: Mapping[str, str], known: Mapping[str, Kind]) -> dict[str, Any]:
    """The options that were given, converted, by the names under which they are known.

    Args:
        options: as Spark hands them over.
        known: the options that there are, in camelCase, and what each takes.

    Raises:
        InvalidJobError: there is one that nobody knows, or a value that cannot be converted.
    """
    names = {name.lower(): name for name in known}
    taken: dict[str, Any] = {}
    for given, text in options.items():
        name = names.get(given.lower())
        if name is None:
            if given.lower() in OF_SPARK:
                continue
            raise InvalidJobError(f"there is no option {shown(given)}: there are {', '.join(sorted(known))}")
        taken[name] = _converted(name, known[name], text)
    return taken


def url_of(options: Mapping[str, str]) -> str:
    """Return the URL of the queue: the option `url`, or `path`, which is what `load`, `save` and `start` are given.

    Raises:
        InvalidURLError: there is none, or there are two.
    """
    given = list(urls_of(options).values())
    if not given:
        raise InvalidURLError(
            'the URL of the queue is missing: give it to load, save or start, as in load("s3://bucket/queue.json"), or '
            "as the option url. A table has it only if it was created without columns"
        )
    check_one_url(given)
    return given[0]


def urls_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options `path` and `url` that are not empty, by their names in small letters."""
    given = {name.lower(): text for name, text in options.items() if text.strip()}
    return {name: _plain_path(given[name]) for name in ("path", "url") if name in given}


def check_one_url(given: Collection[object]) -> None:
    """Refuse URLs that differ from each other.

    Raises:
        InvalidURLError: they do.
    """
    if len({str(each) for each in given}) > 1:
        raise InvalidURLError("the option url names another queue than the path does: give one of the two")


def _plain_path(url: str) -> str:
    """Return the URL with `file:///` where Spark writes `file:/`."""
    of_spark = url.startswith(OWN_FILE) and not url.startswith(f"{OWN_FILE}/")
    return f"file:///{url.removeprefix(OWN_FILE)}" if of_spark else url


def in_options(text: str) -> str:
    """What an error of the queue says, in the words of who writes with Spark."""
    for setting, option in _SETTINGS.items():
        text = text.replace(setting, option)
    return text


def _converted(name: str, kind: Kind, text: str) -> Any:
    try:
        return kind.convert(text)
    except ValueError:
        got = "" if kind.secret else f", got {shown(text)}"
    raise InvalidJobError(f"option {name} takes {kind.words}{got}")


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("empty")
    return text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and 0 <= seconds <= LONGEST):
        raise ValueError("not a duration")
    return seconds


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[_one_of(("true", "false"))(text)]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("an empty name")
    return names


def _within(low: int, high: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise ValueError("out of range")
        return number

    return convert


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    by_name = {choice.lower(): choice for choice in choices}

    def convert(text: str) -> str:
        if text.strip().lower() not in by_name:
            raise ValueError("not one of them")
        return by_name[text.strip().lower()]

    return convert


_SETTINGS = {
    "configure(blob_bytes=...)": "the option maxBlobBytes",
    "Limits(payload_bytes=...)": "the option maxPayloadBytes",
}

TEXT = Kind("a text that is not empty", _text)
URL = Kind("a URL", _text, secret=True)
SECONDS = Kind("a number of seconds from 0 on", _seconds)
BOOLEAN = Kind("true or false", _boolean)
NAMES = Kind("names with commas between them", _names)


def INTEGER(low: int, high: int) -> Kind:
    """A whole number from `low` to `high`."""
    return Kind(f"a whole number from {low} to {high}", _within(low, high))


def ONE_OF(*choices: str) -> Kind:
    """One of these words, in capitals or not."""
    return Kind(" or ".join(choices), _one_of(choices))
