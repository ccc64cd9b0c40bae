"""The environment variable `JQUEUE_URL`: the queue of commands whose arguments name none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

VARIABLE = "JQUEUE_URL"
ARGUMENT = "url"
"""The name of the parameter that takes the URL of a queue."""

FILE = "file"
"""The name of a parameter that takes a path. If it stands alone, it is not the URL of the queue."""


def with_default_url(parameters: Sequence[Any], words: Sequence[str]) -> list[str]:
    """Return the arguments of a command, with the URL of `JQUEUE_URL` in its place if they have no URL.

    Args:
        parameters: the parameters of the command. If none is called `url`, nothing is added.
        words: its arguments, as typed.
    """
    default, typed = os.environ.get(VARIABLE), list(words)
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    names = [each.name for each in arguments]
    if not default or ARGUMENT not in names:
        return typed
    place = names.index(ARGUMENT)
    given = list(_arguments(parameters, typed))
    if place >= len(given):
        return [*typed, default]
    one_is_missing = len(given) < sum(each.required for each in arguments)
    is_a_file = one_is_missing and names[place + 1 :][:1] == [FILE]
    if _names_a_queue(typed[given[place]]) and not is_a_file:
        return typed
    return [*typed[: given[place]], default, *typed[given[place] :]]


def _names_a_queue(word: str) -> bool:
    """Return True if an argument is a URL or a path, as opposed to an id or a name."""
    return not word or "/" in word or os.sep in word or word.endswith(".json") or os.path.exists(word)


def _arguments(parameters: Sequence[Any], words: Sequence[str]) -> Iterator[int]:
    """Yield the places of the words that are neither options nor their values."""
    taking = {
        name
        for each in parameters
        if each.param_type_name == "option" and not each.is_flag and not each.count
        for name in each.opts
    }
    is_value = False
    for place, word in enumerate(words):
        if is_value:
            is_value = False
        elif word == "--":
            yield from range(place + 1, len(words))
            return
        elif not word.startswith("-") or word == "-":
            yield place
        else:
            is_value = word in taking
