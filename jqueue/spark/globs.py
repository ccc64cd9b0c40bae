"""Wildcards in the names of queues, files and objects alike: `*`, `?` and `[…]` within a name, `**` across folders.

What belongs to a queue and is none (its lock, what is staged beside it) fits no wildcard, and neither does a name that
begins with a dot, unless the dot is written out.
"""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import unquote

_WILDCARDS = re.compile(r"[*?\[]")
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
LOCK, STAGED = ".lock", ".staged-"


def has_wildcards(name: str) -> bool:
    """Whether it stands for all names that fit."""
    return _WILDCARDS.search(name) is not None


@dataclass(frozen=True)
class Pattern:
    """A name with wildcards.

    Attributes:
        text: as `glob` of the standard library takes it.
    """

    text: str

    @classmethod
    def of_path(cls, path: str) -> Pattern:
        """From the path of a file, as it is."""
        return cls(path)

    @classmethod
    def of_url(cls, name: str) -> Pattern:
        """From the path of a URL: what is escaped with % there is no wildcard."""
        return cls(_ESCAPES.sub(lambda found: glob.escape(unquote(found[0], errors="surrogateescape")), name))

    def fixed_part(self) -> tuple[str, str]:
        """What all names begin with, in two: the name of an object to look beside, and the rest, which is not empty.

        The first is empty if there is too little.
        """
        found = _WILDCARDS.search(self.text)
        fixed = self.text[: found.start()] if found else self.text
        before = fixed[:-1].rstrip("/")
        return before, fixed[len(before) :]

    def fits(self, name: str) -> bool:
        """Whether the name of an object is one of those."""
        return not self.is_ours(name) and _fit(name.split("/"), self.text.split("/"))

    @staticmethod
    def is_ours(name: str) -> bool:
        """Whether it is the name of what belongs to a queue and is none."""
        last = name.rpartition("/")[2]
        return last.endswith(LOCK) or STAGED in last


def _fit(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fit(parts[skipped:], pattern[1:]) for skipped in range(len(parts)) if not _hidden(parts[:skipped]))
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatchcase(parts[0], pattern[0]) and _fit(parts[1:], pattern[1:])


def _hidden(parts: list[str]) -> bool:
    return any(part.startswith(".") for part in parts)
